"""``vllm serve`` on node 0 (or alone): start, serve, and end as the real API server does.

How it ends, as recorded: SIGTERM aborts or drains and exits 0. A lost node is noticed by the next step of
the model only: the running completion hangs, ``/health`` stays 200 for about four seconds, then turns 503
while requests get 500, and the process exits with code 0 (1 where data-parallel ranks were lost).
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field

from .admin import bound_socket
from .generation import Generator
from .http_server import Request, Response, Server
from .node import Node, Terminated
from .rendezvous import Leader
from .settings import GIB
from .tokens import Tokenizer
from .vllm_api import VllmApi
from .vllm_flags import Serve
from .vllm_group import Loaded, agree, announce_start, gather, group_of, load
from .vllm_log import ROUTES, access, banner, crash, log, say, traceback
from .vllm_metrics import CacheConfig, VllmMetrics
from .vllm_start import (
    Model,
    StartFailure,
    check_model,
    check_parallel,
    core_name,
    report_failure,
    worker_name,
)

HANG = 4.0  # seconds from the step that a lost node stops to the engine's death
DYING = 1.0  # seconds from its death to the end of the process
STATS = 10.0  # seconds between the lines with throughput
HANG_LOG = 60.0  # seconds between the lines of a hanging engine
DEFAULT_SLOTS = 256  # --max-num-seqs
INTERRUPTED = 130  # SIGTERM while starting is raised as KeyboardInterrupt


async def run_leader(serve: Serve, node: Node) -> int:
    """Serve until the end; returns the exit code."""
    return await _Leader(serve, node).run()


@dataclass(slots=True)
class _Leader:
    serve: Serve
    node: Node
    process: str = "APIServer"
    group: Leader | None = None
    generator: Generator = field(init=False)
    api: VllmApi = field(init=False)
    server: Server = field(init=False)
    ended: asyncio.Future[int] = field(init=False)
    work: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def run(self) -> int:
        flags, node = self.serve.flags, self.node
        self.process = "ApiServer_0" if node.parallel.data > 1 else "APIServer"
        banner(self.process, node.settings.vllm_version, self.serve.model)
        log(self.process, "api_utils.py:286", f"non-default args: {self.serve.non_default()}")
        host = flags.host or "0.0.0.0"
        try:
            sock = bound_socket(host, flags.port)
        except OSError as error:
            crash(f"OSError: [Errno {error.errno}] {os.strerror(error.errno or 0)}")
            return 1
        try:
            return await self._start_and_serve(sock, host)
        except StartFailure as failure:
            return report_failure(failure, node.parallel)
        except Terminated:
            log(
                core_name(node.parallel),
                "core.py:1454",
                "[shutdown] EngineCore: trigger received signal=SIGTERM",
            )
            crash("KeyboardInterrupt: terminated")
            return INTERRUPTED
        finally:
            sock.close()
            await self._close()

    async def _start_and_serve(self, sock: object, host: str) -> int:
        serve, node = self.serve, self.node
        self.ended = asyncio.get_running_loop().create_future()
        model = check_model(serve, self.process)
        if node.parallel.nodes > 1 and not serve.spans_by_data:
            log(self.process, "arg_utils.py:2472", "Inferred data_parallel_rank 0 from node_rank 0")
        check_parallel(serve, model.facts, node)
        tokens = serve.flags.max_num_batched_tokens or 8192
        log(
            self.process,
            "scheduler.py:307",
            f"Chunked prefill is enabled with max_num_batched_tokens={tokens}.",
        )
        self._prepare(model)
        listening = node.faults.active("F35") is not None
        if listening:
            self.api.loading = True
            await self._listen(sock, host)
        loaded = await node.unless_terminated(self._form_group(model))
        self._take(model, loaded)
        if not listening:
            await self._listen(sock, host)
        self.api.loading = False
        node.phase("serve")
        return await self._serve()

    def _prepare(self, model: Model) -> None:
        node, flags = self.node, self.serve.flags
        self.generator = Generator(
            node.settings,
            node.faults,
            Tokenizer(model.facts.vocabulary),
            identity="",
            slots=flags.max_num_seqs or DEFAULT_SLOTS,
            engines=node.parallel.data,
            on_submit=self.work.set,
        )
        cache = CacheConfig(16, 0, None, "auto", flags.gpu_memory_utilization, True, 0, 0, 0.0)
        self._install(model, cache)

    def _install(self, model: Model, cache: CacheConfig) -> None:
        names, data = self.serve.served_names, self.node.parallel.data
        metrics = VllmMetrics(names[0], model.max_len, cache, data)
        metrics.generator = self.generator
        self.generator.observer = metrics
        self.api = VllmApi(
            names,
            self.serve.model,
            model.max_len,
            self.node.settings.vllm_version,
            self.serve.api_keys,
            self.generator,
            metrics,
            self.node.faults,
            self.process,
            echo_request_ids=self.serve.flags.enable_request_id_headers,
        )

    async def _form_group(self, model: Model) -> Loaded:
        announce_start(self.serve, self.node)
        self.group = await gather(self.serve, group_of(self.serve, model, self.node), self.node)
        if self.group:
            self.group.send("start")
        return await agree(self.group, await load(self.serve, model, self.node))

    def _take(self, model: Model, loaded: Loaded) -> None:
        """Weights and cache are there: answers and metrics can refer to them."""
        flags, node = self.serve.flags, self.node
        self.generator.identity = f"{self.serve.served_names[0]}\n{loaded.identity}"
        concurrency = loaded.pool_tokens / model.max_len
        block = flags.block_size or 16
        loading = self.api.loading
        self._install(
            model,
            CacheConfig(
                block,
                loaded.pool_tokens // block,
                flags.num_gpu_blocks_override,
                flags.kv_cache_dtype,
                flags.gpu_memory_utilization,
                flags.enable_prefix_caching,
                node.kv_available,
                loaded.pool_tokens,
                concurrency,
            ),
        )
        self.api.loading = loading
        core = core_name(node.parallel)
        log(
            core,
            "kv_cache_utils.py:2327",
            f"GPU KV cache size: {loaded.pool_tokens:,} tokens, Maximum concurrency for "
            f"{model.max_len:,} tokens "
            f"per request: {concurrency:.2f}x",
        )
        age = time.monotonic() - node.faults.began
        log(core, "core.py:402", f"init engine (profile, create kv cache, warmup model) took {age:.2f} s")
        log(self.process, "entry.py:136", "Supported tasks: ['generate']")
        node.state["kvPoolTokens"] = loaded.pool_tokens
        node.state["kvAvailableGiB"] = round(node.kv_available / GIB, 2)

    async def _listen(self, sock: object, host: str) -> None:
        port = self.serve.flags.port
        log(self.process, "entry.py:140", f"Starting vLLM server on http://{host}:{port}")
        log(self.process, "launcher.py:186", "Available routes are:")
        for route in ROUTES:
            log(self.process, "launcher.py:195", f"Route: {route}")
        say(f"INFO:     Started server process [{os.getpid()}]")
        say("INFO:     Waiting for application startup.")
        quiet = self.serve.flags.disable_uvicorn_access_log
        self.server = Server(self._answer, (lambda request, status: None) if quiet else access)
        await self.server.listen(sock)
        say("INFO:     Application startup complete.")

    async def _answer(self, request: Request) -> Response:
        return await self.api(request)

    async def _serve(self) -> int:
        self.node.state |= {
            "running": lambda: len(self.generator.running),
            "waiting": lambda: len(self.generator.waiting),
            "dead": lambda: self.generator.dead,
        }
        self.tasks = [
            asyncio.create_task(self._stats()),
            asyncio.create_task(self._until_dead()),
            asyncio.create_task(self._until_terminated()),
        ]
        if self.group:
            self.tasks.append(asyncio.create_task(self._until_lost(self.group)))
        for task in self.tasks:
            task.add_done_callback(self._pass_on)
        return await self.ended

    def _pass_on(self, task: asyncio.Task[None]) -> None:
        """A bug in a background task ends the process instead of being lost."""
        if not task.cancelled() and (error := task.exception()) and not self.ended.done():
            self.ended.set_exception(error)

    async def _until_terminated(self) -> None:
        await self.node.terminate.wait()
        self.node.phase("shutdown")
        limit, core = self.serve.flags.shutdown_timeout, core_name(self.node.parallel)
        mode = "drain" if limit > 0 else "abort"
        name, client = self.process, "core_client.py"
        log(name, "launcher.py:254", "[shutdown] API server: shutdown triggered")
        log(
            name,
            "launcher.py:270",
            f"[shutdown] API server: stopping engine client mode={mode} timeout={limit}s",
        )
        log(name, f"{client}:770", f"[shutdown] MPClient: start timeout={limit}s")
        log(name, f"{client}:772", "[shutdown] MPClient: stopping engine manager")
        log(name, "utils.py:628", "[shutdown] Process manager: send sigterm to process EngineCore")
        log(core, "core.py:1454", "[shutdown] EngineCore: trigger received signal=SIGTERM")
        log(core, "core.py:1635", f"[shutdown] EngineCore: start mode={mode} timeout={limit}s")
        await self._finish_requests(limit, core)
        log(
            core,
            "core.py:1666",
            "[shutdown] EngineCore: request processing complete; starting resource teardown",
        )
        log(core, "core.py:1499", "[shutdown] EngineCore: exiting busy loop")
        workers = len(self.node.parallel.local_ranks)
        log(
            core, "multiproc_executor.py:479", f"[shutdown] Executor: waiting for worker exit count={workers}"
        )
        log(name, f"{client}:774", "[shutdown] MPClient: engine manager stopped")
        log(name, f"{client}:775", "[shutdown] MPClient: cleaning up background resources")
        log(name, f"{client}:777", "[shutdown] MPClient: complete")
        log(name, "launcher.py:279", "[shutdown] API server: engine client stopped")
        log(name, "launcher.py:282", "[shutdown] API server: signalling HTTP server shutdown")
        log(name, "launcher.py:304", "[shutdown] API server: shutting down FastAPI HTTP server")
        await self._close_server()
        self._end(0)

    async def _finish_requests(self, limit: int, core: str) -> None:
        """Let running requests finish for ``limit`` seconds, then end what is left with ``abort``."""
        count = self.generator.unfinished
        if limit > 0 and count:
            log(
                core,
                "core.py:1655",
                f"[shutdown] EngineCore: draining in-flight requests count={count} timeout={limit}s",
            )
        elif count:
            log(core, "core.py:1644", f"[shutdown] EngineCore: aborting in-flight requests count={count}")
        self.generator.draining = True
        await self.generator.idle(limit)
        self.generator.aborting = True
        await self.generator.idle(None)

    async def _until_lost(self, group: Leader) -> None:
        lost = await group.lost.get()
        self.generator.stalled = True
        if self.node.faults.active("F20") is not None:
            await self._hang_for_ever()
        self.work.clear()
        if not self.generator.unfinished:
            await self.work.wait()  # nothing steps while the engine idles, so nothing notices
        await asyncio.sleep(self.node.settings.scaled(HANG))
        worker = worker_name(self.node.parallel, self.node.parallel.local_ranks[0])
        error = (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
            f"[rank {lost}]. This is typically caused by a remote worker crashing. Check the logs of the "
            "remote "
            "worker before reporting an error."
        )
        log(worker, "multiproc_executor.py:1063", "WorkerProc hit an exception.", "ERROR")
        traceback(worker, "multiproc_executor.py:1063", error)
        await self._die(error)

    async def _die(self, error: str) -> None:
        core = core_name(self.node.parallel)
        log(core, "core.py:1512", "EngineCore encountered a fatal error.", "ERROR")
        traceback(core, "core.py:1512", f"RuntimeError: Worker failed with error '{error}'")
        log(self.process, "async_llm.py:906", "AsyncLLM output_handler failed.", "ERROR")
        traceback(
            self.process,
            "async_llm.py:906",
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. "
            "See stack trace (above) for the root cause.",
        )
        self.generator.dead = True
        await asyncio.sleep(self.node.settings.scaled(DYING))
        await self._close_server()
        say(f"INFO:     Finished server process [{os.getpid()}]")
        if self.serve.spans_by_data:
            crash("RuntimeError: Process ApiServer_0 died with exit code None")
            self._end(1)
        else:
            self._end(0)

    async def _until_dead(self) -> None:
        """F36: the engine core dies by itself."""
        while (dead := self.node.faults.active("F36")) is None or "exit_after_s" not in dead:
            await self.node.wait(0.1)
        await asyncio.sleep(self.node.settings.scaled(float(dead["exit_after_s"])))
        await self._die("stub: F36")

    async def _hang_for_ever(self) -> None:
        while True:
            say(
                "[c10d] recvValue failed on SocketImpl: Connection was likely closed. "
                "Did the remote server shutdown or crash?"
            )
            await asyncio.sleep(max(1.0, self.node.settings.scaled(HANG_LOG)))

    async def _stats(self) -> None:
        """Throughput while there is any, and the line of an engine that hangs."""
        seen, every = 0, max(1.0, self.node.settings.scaled(STATS))
        hung_at = 0.0
        while True:
            await asyncio.sleep(every)
            generated = sum(int(v) for v in self.api.metrics.counters["generation_tokens"].values.values())
            if generated != seen or self.generator.unfinished:
                self._stat_line((generated - seen) / every)
            seen = generated
            patience = max(1.0, self.node.settings.scaled(HANG_LOG))
            if self.generator.hangs and self.generator.unfinished and time.monotonic() - hung_at >= patience:
                hung_at = time.monotonic()
                log(
                    core_name(self.node.parallel),
                    "shm_broadcast.py:733",
                    "No available shared memory broadcast block found in 60 seconds. This typically "
                    "happens when "
                    "some processes are hanging or doing some time-consuming work (e.g. compilation, "
                    "weight/kv "
                    "cache quantization).",
                )

    def _stat_line(self, rate: float) -> None:
        used = sum(job.prompt_tokens + job.generated for job in self.generator.running)
        share = 100 * used / max(1, self.api.metrics.cache.tokens)
        log(
            self.process,
            "loggers.py:335",
            f"Engine 000: Avg generation throughput: {rate:.1f} tokens/s, Running: "
            f"{len(self.generator.running)} reqs, Waiting: {len(self.generator.waiting)} reqs, GPU KV cache "
            f"usage: {share:.1f}%, Prefix cache hit rate: 0.0%",
        )

    async def _close_server(self) -> None:
        say("INFO:     Shutting down")
        await self.server.close()
        say("INFO:     Waiting for application shutdown.")
        say("INFO:     Application shutdown complete.")

    def _end(self, code: int) -> None:
        if not self.ended.done():
            self.ended.set_result(code)

    async def _close(self) -> None:
        current = asyncio.current_task()
        for task in self.tasks:
            if task is not current:
                task.cancel()
        if self.group:
            await self.group.close()
