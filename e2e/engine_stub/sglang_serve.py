"""``python3 -m sglang.launch_server``: every node of an SGLang group.

The leader listens at once and answers ``/health`` with 503 until it is up; other nodes run a dummy server
that is always healthy. SIGTERM drains without limit on the leader; other nodes wait for its word. A lost
node is noticed by the next step: ``/health`` turns 503 after 20 s, the watchdog ends the process after 300 s.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import localtime, strftime

from .admin import bound_socket
from .checkpoint import CheckpointError, read_config
from .generation import Generator
from .http_server import Request, Response, Server
from .memory import Facts
from .node import Node, Terminated, digest, first_faults
from .rendezvous import Group, Leader, Link, PeerLost, Refused, join
from .settings import GIB, Settings
from .sglang_api import SglangApi, Status
from .sglang_flags import Launch, parse
from .sglang_metrics import SglangMetrics
from .tokens import Tokenizer
from .vllm_group import listen_address
from .vllm_log import access, progress, say

DIST_TIMEOUT = 600
DRAIN_LOG = 5.0
WATCHDOG = 300.0
WATCHDOG_GRACE = 5.0
SIGQUIT_EXIT = 131
SLOTS = 256
SIGQUIT_LINE = "Received sigquit from a child process. It usually means the child failed."
REMAINING = (
    "Gracefully exiting... Remaining number of requests {count}. Remaining requests remaining_rids={ids}."
)
F03_KINDS = {
    "cuda_oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total "
    "capacity of {total:.2f} GiB",
    "kv_cache_none": "RuntimeError: Loaded weights leave no GPU memory for the KV cache under "
    "--mem-fraction-static={fraction}.",
    "mem_imbalance": "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other "
    "processes. pre_model_load_memory={total:.1f}, local_gpu_memory=12.1, local_gpu_memory * 0.9=10.9",
    "child_sigkill": "RuntimeError: Rank {rank} scheduler died during initialization (exit code: -9). If "
    "exit "
    "code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
}


class _Failed(Exception):
    """Start-up failed; the message is the last line of the traceback."""


async def run_sglang(arguments: Sequence[str]) -> int:
    """Run one node to its end; returns the exit code. argparse's own exits pass through."""
    launch = parse(arguments)
    settings = Settings.from_environment(os.environ)
    faults = first_faults(settings, launch.parallel.node)
    if bad := faults.active("F05"):
        parse([*arguments, str(bad.get("flag", "--no-such-flag"))])
    node = Node("sglang", settings, faults, launch.parallel)
    await node.open()
    return await _Server(launch, node).run()


def log(message: str, rank: int | None = None) -> None:
    """One log line, with the scheduler's rank when it comes from one."""
    place = "" if rank is None else f" TP{rank}"
    say(f"[{strftime('%Y-%m-%d %H:%M:%S', localtime())}{place}] {message}")


@dataclass(slots=True)
class _Server:
    launch: Launch
    node: Node
    api: SglangApi = field(init=False)
    generator: Generator = field(init=False)
    facts: Facts = field(init=False)
    group: Leader | None = None
    link: Link | None = None
    http: Server | None = None
    load_seconds: float = 0.0
    work: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def leads(self) -> bool:
        return self.node.parallel.node == 0

    async def run(self) -> int:
        try:
            self._check()
            await self._listen()
            pool = await self.node.unless_terminated(self._start())
            if self.leads:
                self._up(pool)
                return await self._lead()
            return await self._follow()
        except (_Failed, CheckpointError, Refused) as error:
            say("Traceback (most recent call last):")
            say(str(error))
            log(SIGQUIT_LINE)
            return 1
        except PeerLost as error:
            log(f"RuntimeError: Connection closed by peer {error}")
            log(SIGQUIT_LINE)
            return SIGQUIT_EXIT
        except Terminated:
            return 143
        finally:
            await self._close()

    def _check(self) -> None:
        launch, parallel = self.launch, self.node.parallel
        log(f"server_args=ServerArgs({', '.join(f'{k}={v!r}' for k, v in vars(launch.flags).items())})")
        config = read_config(Path(launch.model))
        self.facts = facts = Facts.of(config)
        length = launch.flags.context_length or facts.max_positions
        if length > facts.max_positions:
            raise _Failed(
                f"ValueError: User-specified context_length ({length}) is greater than the derived "
                f"context_length ({facts.max_positions}). This may lead to incorrect model outputs or CUDA "
                "errors. To allow overriding this maximum, set the env var "
                "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
            )
        if parallel.world % parallel.nodes:
            raise _Failed("AssertionError: tp_size must be divisible by number of nodes")
        if facts.heads % parallel.tensor:
            raise _Failed(f"AssertionError: {facts.heads} is not divisible by {parallel.tensor}")
        routed = facts.experts + (launch.flags.ep_num_redundant_experts or 0)
        if parallel.experts_whole and routed % parallel.expert_ranks:
            raise _Failed(
                f"AssertionError: {routed} experts are not divisible by ep_size {parallel.expert_ranks}"
            )
        name = launch.served_name
        self.generator = Generator(
            self.node.settings, self.node.faults, Tokenizer(facts.vocabulary), "",
            launch.flags.max_running_requests or SLOTS, on_submit=self.work.set,
        )  # fmt: skip
        version = launch.flags.weight_version or "default"
        self.api = SglangApi(
            name, launch.model, length, launch.flags.api_key, version, self.node.settings, self.generator,
            self.node.faults, None,
        )  # fmt: skip
        agreed = (parallel.tensor, parallel.pipeline, parallel.data, parallel.experts_whole, parallel.nodes)
        self.api.server_info = {"group": digest(*agreed, length, config), "tp_size": launch.flags.tp_size}

    async def _listen(self) -> None:
        flags = self.launch.flags
        try:
            sock = bound_socket(flags.host, flags.port)
        except OSError as error:
            raise _Failed(
                f"[Errno {error.errno}] error while attempting to bind on address "
                f"('{flags.host}', {flags.port}): address already in use"
            ) from None
        self.http = Server(self._answer, access)
        await self.http.listen(sock)
        say(f"INFO:     Uvicorn running on http://{flags.host}:{flags.port} (Press CTRL+C to quit)")

    async def _answer(self, request: Request) -> Response:
        if self.leads:
            return await self.api(request)
        dummy = {"/health", "/health_generate", "/ping"}
        return Response(200) if request.path in dummy else Response(404, b'{"detail":"Not Found"}')

    async def _start(self) -> int:
        group = Group(self.node.parallel.node, self.node.parallel.nodes, self.api.server_info["group"])
        if group.nodes > 1:
            await self._meet(group)
        own = await self._load()
        assert self.node.weights is not None
        identity = self.node.weights.identity
        if self.link:
            self.link.send("loaded", pool=own, identity=identity)
            return int((await self.link.expect("serve"))["pool"])
        if self.group:
            others = await self.group.collect("loaded")
            own = min(own, *(int(one["pool"]) for one in others))
            found = {identity, *(str(one["identity"]) for one in others)}
            identity = digest(*sorted(found)) if len(found) > 1 else identity
            self.group.send("serve", pool=own)
        self.generator.identity = f"{self.launch.served_name}\n{identity}"
        return own

    async def _meet(self, group: Group) -> None:
        node, faults = self.node, self.node.faults
        node.phase("rendezvous")
        host, port = self.launch.meeting_point
        limit = float((faults.active("F14") or {}).get("s", self.launch.flags.dist_timeout or DIST_TIMEOUT))
        if not self.leads:
            if faults.active("F10") is not None:
                await asyncio.Event().wait()
            if late := faults.active("F11"):
                await asyncio.sleep(node.settings.scaled(float(late.get("s", 60))))
            try:
                self.link = await asyncio.wait_for(join(group, host, port, log), node.settings.scaled(limit))
            except TimeoutError:
                raise _Failed(
                    "torch.distributed.DistNetworkError: The client socket has timed out after "
                    f"{limit * 1000:.0f}ms while trying to connect to ({host}, {port})."
                ) from None
            return
        self.group = Leader(group, log)
        await self.group.listen(listen_address(host), port)
        try:
            await self.group.gather(node.settings.scaled(limit))
        except TimeoutError:
            here = len(node.parallel.local_ranks)
            joined = (group.nodes - self.group.missing) * here
            raise _Failed(
                f"torch.distributed.DistStoreError: Timed out after {limit + 1:.0f} seconds waiting for "
                f"clients. {joined}/{node.parallel.world} clients joined."
            ) from None

    async def _load(self) -> int:
        node, flags, total = self.node, self.launch.flags, self.node.settings.gpu_memory_gib
        node.phase("load")
        ranks = node.parallel.local_ranks
        for rank in ranks:
            log(f"Load weight begin. avail mem={total - 0.5:.2f} GB", rank.number)
        self.load_seconds = await node.load(Path(self.launch.model), self._progress)
        cache_bytes = 2 if flags.kv_cache_dtype in {"auto", "bf16", "bfloat16"} else 1
        draft = flags.speculative_algorithm is not None
        length = self.api.context_length
        node.measure(self.facts, flags.mem_fraction_static, cache_bytes, length, draft=draft, overhead=0)
        for rank, memory in zip(ranks, node.memory, strict=True):
            used, left = memory.weights / GIB, total - 0.5 - memory.weights / GIB
            log(
                f"Load weight end. elapsed={self.load_seconds:.2f} s, type={self._architecture}, "
                f"avail mem={left:.2f} GB, mem usage={used:.2f} GB.",
                rank.number,
            )
        if node.kv_available <= 0:
            raise _Failed(
                F03_KINDS["kv_cache_none"].format(fraction=flags.mem_fraction_static, total=total, rank=0)
            )
        for rank, memory in zip(ranks, node.memory, strict=True):
            half = memory.kv_available / GIB / 2
            log(
                f"KV Cache is allocated. #tokens: {memory.kv_tokens}, K size: {half:.2f} GB, V size: "
                f"{half:.2f} GB",
                rank.number,
            )
        return node.kv_tokens

    @property
    def _architecture(self) -> str:
        return str((read_config(Path(self.launch.model)).get("architectures") or ["Unknown"])[0])

    def _progress(self, done: int, total: int, elapsed: float) -> None:
        if self.leads:
            progress(done, total, elapsed)
        fault = self.node.faults.active("F03")
        if fault is not None and done * 100 / total >= float(fault.get("at_pct", 0)):
            kind = fault.get("kind", "cuda_oom")
            if kind not in F03_KINDS:
                raise _Failed(f"stub: F03 has no kind {kind!r} for SGLang; known: {', '.join(F03_KINDS)}")
            raise _Failed(
                F03_KINDS[kind].format(
                    total=self.node.settings.gpu_memory_gib,
                    fraction=self.launch.flags.mem_fraction_static,
                    rank=self.node.parallel.local_ranks[-1].number,
                )
            )

    def _up(self, pool: int) -> None:
        flags, node = self.launch.flags, self.node
        memory = node.memory[0]
        log(
            f"max_total_num_tokens={pool}, chunked_prefill_size={flags.chunked_prefill_size or 8192}, "
            f"max_prefill_tokens={flags.max_prefill_tokens}, max_running_requests={self.generator.slots}, "
            f"context_len={self.api.context_length}, available_gpu_mem=4.00 GB",
            0,
        )
        if flags.enable_metrics:
            constants = {
                "weight_memory_usage_gb": memory.weights / GIB,
                "kv_cache_memory_usage_gb": memory.kv_available / GIB,
                "context_len": float(self.api.context_length),
            }
            self.api.metrics = SglangMetrics(self.launch.served_name, constants, pool, self.load_seconds)
            self.api.metrics.generator = self.generator
            self.generator.observer = self.api.metrics
        node.state |= {
            "kvPoolTokens": pool,
            "running": lambda: len(self.generator.running),
            "waiting": lambda: len(self.generator.waiting),
        }
        self.api.status = Status.UP
        node.phase("serve")
        log("The server is fired up and ready to roll!")

    async def _lead(self) -> int:
        terminated = asyncio.create_task(self.node.terminate.wait())
        watchdog = asyncio.create_task(self._until_watchdog())
        done, _ = await asyncio.wait((terminated, watchdog), return_when=asyncio.FIRST_COMPLETED)
        for task in (terminated, watchdog):
            task.cancel()
        if watchdog in done:
            return watchdog.result()
        await self._drain()
        if self.group:
            self.group.send("shutdown")
        return 0

    async def _until_watchdog(self) -> int:
        if self.group is None:
            await asyncio.Event().wait()
        assert self.group is not None
        await self.group.lost.get()
        self.generator.stalled = True
        if self.node.faults.active("F20") is not None:
            await asyncio.Event().wait()
        self.work.clear()
        if not self.generator.unfinished:
            await self.work.wait()
        return await self._bite()

    async def _bite(self) -> int:
        await asyncio.sleep(self.node.settings.scaled(WATCHDOG))
        log("Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)", 0)
        self.generator.dead = True
        await asyncio.sleep(self.node.settings.scaled(WATCHDOG_GRACE))
        log(SIGQUIT_LINE)
        return SIGQUIT_EXIT

    async def _drain(self) -> None:
        self.node.phase("shutdown")
        self.api.status = Status.EXITING
        self.generator.draining = True
        while self.generator.unfinished:
            ids = [job.id for job in (*self.generator.running, *self.generator.waiting)]
            log(
                f"Gracefully exiting... Remaining number of requests {len(ids)}. Remaining requests "
                f"remaining_rids={ids}."
            )
            await self.generator.idle(self.node.settings.scaled(DRAIN_LOG))
        log("Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].")

    async def _follow(self) -> int:
        """Another node: serve until the leader says stop, or is lost."""
        assert self.link is not None
        self.node.phase("serve")
        complaint = asyncio.create_task(self._complain_of_sigterm())
        try:
            await self.link.expect("shutdown")
            return 0
        except PeerLost:
            self.node.state["orphaned"] = True
            if self.node.faults.active("F20") is not None:
                await asyncio.Event().wait()
            return await self._bite()
        finally:
            complaint.cancel()

    async def _complain_of_sigterm(self) -> None:
        await self.node.terminate.wait()
        log(
            f"SIGTERM received on node_rank {self.node.parallel.node}; waiting for the rank-0 "
            "ShutdownReq broadcast "
            "to stop the schedulers."
        )

    async def _close(self) -> None:
        if self.http:
            await self.http.close()
        if self.group:
            await self.group.close()
        if self.link:
            self.link.close()
