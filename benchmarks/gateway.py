"""What the gateway costs: ``python -m benchmarks.gateway``.

One upstream, asked directly and through Envoy as the operator configures it (keys off), and through nginx
and HAProxy doing the same job where they are installed: forward exact paths, add a request id, log a JSON
line, check health. Each proxy has one worker. Latency: one client, requests alternate between all targets,
so that a busy machine disturbs them alike; ``added`` is a target's percentile minus the direct one.
Throughput: several connections at once; ``perCore`` divides by the CPU time that the proxy itself took.
Memory is the proxy's resident set after that. Writes benchmarks/results/gateway.json and ends with one
``figure:`` line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe_operator.api.intent import Colour, Endpoint, Intent
from moe_operator.gateway.address import Address
from moe_operator.gateway.boot import prepare

RESULT = Path(__file__).resolve().parents[1] / "benchmarks/results/gateway.json"
PATH = "/v1/chat/completions"
BODY = json.dumps({"model": "kimi", "messages": [{"role": "user", "content": "hello " * 100}]}).encode()
REQUEST = (
    f"POST {PATH} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    f"content-length: {len(BODY)}\r\n\r\n"
).encode() + BODY
ANSWER_BODY = json.dumps({"choices": [{"message": {"content": "x" * 400}}]}).encode()
ANSWER = (
    f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(ANSWER_BODY)}\r\n\r\n"
).encode() + ANSWER_BODY
LATENCY_REQUESTS = 4000
WARM_UP = 200
CONNECTIONS = 16
THROUGHPUT_REQUESTS = 12_000
START_SECONDS = 30.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Target:
    """One way to the upstream; ``pids`` are the proxy's processes."""

    name: str
    address: Address
    pids: tuple[int, ...] = ()


def main() -> None:
    figures = asyncio.run(_measure())
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))
    ours = figures["targets"]["envoy"]
    print(
        f"figure: gateway adds p50 {ours['addedP50Ms']} ms, p99 {ours['addedP99Ms']} ms; "
        f"{ours['requestsPerCoreSecond']} requests per core and second, {ours['residentMiB']} MiB"
    )


async def _measure() -> dict[str, Any]:
    host = f"127.71.{random.randint(1, 250)}.{random.randint(1, 250)}"
    missing = [name for name in ("nginx", "haproxy") if not _command(name)]
    for name in missing:
        print(f"{name} is not installed and left out", file=sys.stderr)
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moe-bench-")))
        upstream = Address(host, 8000)
        await stack.enter_async_context(_upstream(upstream))
        targets = [Target("direct", upstream)]
        for name, port, start in (
            ("envoy", 8080, _envoy),
            ("nginx", 8081, _nginx),
            ("haproxy", 8082, _haproxy),
        ):
            if name in missing:
                continue
            home = directory / name
            home.mkdir()
            command = start(home, Address(host, port), upstream)
            pid = await stack.enter_async_context(_running(command, home))
            await _serving(Address(host, port))
            targets.append(Target(name, Address(host, port), _family(pid)))
        latency = await _latency(targets)
        figures = {target.name: await _figures(target, latency) for target in targets}
    return {
        "cores": os.cpu_count(),
        "loadAverage": os.getloadavg()[0],
        "missing": missing,
        "targets": figures,
    }


async def _figures(target: Target, latency: dict[str, list[float]]) -> dict[str, Any]:
    seconds, cpu = await _throughput(target)
    mine, direct = latency[target.name], latency["direct"]
    return {
        "p50Ms": _ms(_percentile(mine, 50)),
        "p99Ms": _ms(_percentile(mine, 99)),
        "addedP50Ms": _ms(_percentile(mine, 50) - _percentile(direct, 50)),
        "addedP99Ms": _ms(_percentile(mine, 99) - _percentile(direct, 99)),
        "requestsPerSecond": round(THROUGHPUT_REQUESTS / seconds),
        "requestsPerCoreSecond": round(THROUGHPUT_REQUESTS / cpu) if cpu else None,
        "cpuMicrosecondsPerRequest": round(cpu / THROUGHPUT_REQUESTS * 1e6, 1) if cpu else None,
        "residentMiB": round(sum(map(_resident, target.pids)) / 2**20, 1) if target.pids else None,
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _percentile(values: list[float], percent: int) -> float:
    return sorted(values)[len(values) * percent // 100]


async def _latency(targets: list[Target]) -> dict[str, list[float]]:
    """One request to each target in turn, on one kept connection each; seconds."""
    taken: dict[str, list[float]] = {target.name: [] for target in targets}
    async with AsyncExitStack() as stack:
        ask = {t.name: await stack.enter_async_context(_connection(t.address)) for t in targets}
        for number in range(WARM_UP + LATENCY_REQUESTS):
            for target in random.sample(targets, len(targets)):
                start = time.perf_counter()
                await ask[target.name]()
                if number >= WARM_UP:
                    taken[target.name].append(time.perf_counter() - start)
    return taken


async def _throughput(target: Target) -> tuple[float, float]:
    """Wall-clock seconds, and CPU seconds of the proxy, for :data:`THROUGHPUT_REQUESTS`."""

    async def one() -> None:
        async with _connection(target.address) as ask:
            for _ in range(THROUGHPUT_REQUESTS // CONNECTIONS):
                await ask()

    before, start = sum(map(_cpu, target.pids)), time.perf_counter()
    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))
    return time.perf_counter() - start, sum(map(_cpu, target.pids)) - before


@asynccontextmanager
async def _connection(address: Address) -> AsyncIterator[Callable[[], Any]]:
    reader, writer = await asyncio.open_connection(address.host, address.port)

    async def ask() -> None:
        writer.write(REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{address}: {head!r}")
        await reader.readexactly(len(ANSWER_BODY))

    try:
        yield ask
    finally:
        writer.close()


class _Answering(asyncio.Protocol):
    """The upstream: reads requests that come whole, answers all of them alike."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].lower()
            _, found, rest = head.partition(b"content-length:")
            whole = end + 4 + (int(rest.split(b"\r\n")[0]) if found else 0)
            if len(self._received) < whole:
                return
            self._received = self._received[whole:]
            self._transport.write(ANSWER)


@asynccontextmanager
async def _upstream(address: Address) -> AsyncIterator[None]:
    async with await asyncio.get_running_loop().create_server(_Answering, address.host, address.port):
        yield


def _envoy(home: Path, listen: Address, upstream: Address) -> list[str]:
    intent = Intent(
        generation=1,
        model="kimi",
        colours=[
            Colour(revision="b", weight=100, endpoints=[Endpoint(address=upstream.host, port=upstream.port)])
        ],
        allowed_paths=[PATH],
    )
    mounted = home / "intent.json"
    mounted.write_text(intent.model_dump_json(by_alias=True))
    prepare(home / "xds", mounted, listen, Address(listen.host, 9901))
    return [
        _command("envoy") or "envoy", "-c", str(home / "xds/bootstrap.json"), "--use-dynamic-base-id",
        "--concurrency", "1", "--reject-unknown-dynamic-fields", "-l", "error",
    ]  # fmt: skip


def _nginx(home: Path, listen: Address, upstream: Address) -> list[str]:
    config = home / "nginx.conf"
    config.write_text(f"""
daemon off; worker_processes 1; pid {home}/pid; error_log {home}/error.log error;
events {{ worker_connections 1024; }}
http {{
  log_format line escape=json
    '{{"time":"$time_iso8601","id":"$request_id","path":"$uri","status":"$status"}}';
  access_log {home}/access.log line;
  client_body_temp_path {home}/body; proxy_temp_path {home}/proxy; fastcgi_temp_path {home}/f;
  uwsgi_temp_path {home}/u; scgi_temp_path {home}/s;
  upstream engines {{ server {upstream}; keepalive 64; }}
  server {{
    listen {listen} backlog=4096; client_max_body_size 64m; keepalive_requests 1000000;
    location = {PATH} {{
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_set_header X-Request-Id $request_id; proxy_buffering off;
      add_header X-Request-Id $request_id;
    }}
    location / {{ return 404; }}
  }}
}}
""")
    return [_command("nginx") or "nginx", "-c", str(config), "-p", str(home)]


def _haproxy(home: Path, listen: Address, upstream: Address) -> list[str]:
    config = home / "haproxy.cfg"
    config.write_text(f"""
global
  nbthread 1
  log stdout format raw local0
defaults
  mode http
  log global
  option http-keep-alive
  option http-no-delay
  timeout connect 1s
  timeout client 600s
  timeout server 600s
frontend clients
  bind {listen}
  unique-id-format %[uuid()]
  unique-id-header x-request-id
  log-format '{{"time":"%t","id":"%ID","path":"%HP","status":"%ST","total":"%Ta"}}'
  acl allowed path -m str {PATH}
  http-request deny deny_status 404 unless allowed
  default_backend engines
backend engines
  http-reuse always
  option httpchk GET /health
  server one {upstream} check
""")
    return [_command("haproxy") or "haproxy", "-f", str(config), "-db"]


def _command(name: str) -> str | None:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin"))
    return shutil.which(name, path=path)


@asynccontextmanager
async def _running(command: list[str], home: Path) -> AsyncIterator[int]:
    with (home / "output.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    try:
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _serving(address: Address) -> None:
    """Until the target answers 200: its health checks have to see the upstream first."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            with contextlib.suppress(OSError, RuntimeError, asyncio.IncompleteReadError):
                async with _connection(address) as ask:
                    await ask()
                    return
            await asyncio.sleep(0.1)


def _family(pid: int) -> tuple[int, ...]:
    """A process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return (pid, *map(int, children))


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
