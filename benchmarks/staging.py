"""How fast and how cheaply weights arrive: ``python -m benchmarks.staging [--clients-python PATH]``.

Two questions, both answered side by side in one run:

1. One node against other clients, all from the same origin process: MB/s, and the client's own CPU seconds
   per GB. ``moestage pull`` verifies, journals and syncs; the others do what they do, and where they do not
   verify there is a second figure with the SHA-256 that a user would have to compute. Rounds take turns,
   the best round of each counts, since the machine may be shared.
2. Four nodes from one rate-limited origin: four pulls that know nothing of each other against four that
   are peers. What counts is the origin's bytes, in copies of the model, and the time until the last is ready.

Clients of another environment (huggingface_hub, boto3) are run with ``--clients-python``; without it they
are left out and the result says so. Writes benchmarks/results/staging.json and ends with one ``figure:``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe_operator.api.manifest import Manifest, ManifestFile
from moe_operator.staging.store import init_store

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks/results/staging.json"
HOST = "127.74.9.1"
MOESTAGE = [sys.executable, "-m", "moe_operator.staging"]
ROUNDS = 3
PEER_RATE = 40_000_000
MB = 1_000_000


@dataclass(frozen=True)
class Spent:
    """One run of one client: wall-clock and CPU seconds of it and its children."""

    seconds: float
    cpu: float


@dataclass(frozen=True)
class Model:
    directory: Path
    manifest: Manifest

    @property
    def names(self) -> list[str]:
        return [file.path for file in self.manifest.files]

    @property
    def total(self) -> int:
        return self.manifest.total_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--clients-python", type=Path, help="a python with huggingface_hub and boto3")
    parser.add_argument("--directory", type=Path, help="where to write; default: the system's temporary one")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--file-mb", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as scratch:
        figures = {
            "directory": str(given.directory or tempfile.gettempdir()),
            "cpus": os.cpu_count(),
            "clients": _clients(Path(scratch), given),
            "peers": _peers(Path(scratch)),
        }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(figures, indent=2) + "\n")
    _print(figures)


def _clients(scratch: Path, given: argparse.Namespace) -> dict[str, Any]:
    model = make_model(scratch / "model", given.files, given.file_mb * MB)
    with origin(model.directory, 0) as url:
        runs: dict[str, Callable[[Path], Spent]] = {
            "moestage pull": lambda out: pull(model, url, out),
            "curl | sha256sum": lambda out: curl(model, url, out),
        }
        if given.clients_python:
            python = str(given.clients_python)
            runs["huggingface_hub"] = lambda out: measured([python, "-c", HUB, url, str(out)], HUB_PLAIN)
            runs["huggingface_hub + sha256"] = lambda out: verified(runs["huggingface_hub"](out), out)
            runs["boto3"] = lambda out: measured([python, "-c", BOTO3, url, str(out), *model.names])
            runs["boto3 + sha256"] = lambda out: verified(runs["boto3"](out), out)
        best: dict[str, Spent] = {}
        for _round in range(given.rounds):
            for name, run in runs.items():
                spent = _fresh(scratch / "out", run)
                best[name] = min(best.get(name, spent), spent, key=lambda s: s.seconds)
    ours = best["moestage pull"]
    return {
        "bytes": model.total,
        "left_out": [] if given.clients_python else ["huggingface_hub", "boto3"],
        "runs": {
            name: {
                "mb_per_second": round(model.total / MB / spent.seconds, 1),
                "cpu_seconds_per_gb": round(spent.cpu * 1e9 / model.total, 2),
                "time_ratio": round(spent.seconds / ours.seconds, 2),
                "cpu_ratio": round(spent.cpu / ours.cpu, 2),
            }
            for name, spent in best.items()
        },
    }


def _peers(scratch: Path) -> dict[str, Any]:
    model = make_model(scratch / "shared", 24, 4 * MB)
    outcome = {}
    for name, with_peers in (("independent", False), ("peers", True)):
        with origin(model.directory, PEER_RATE) as url:
            seconds = _four(model, url, scratch / name, with_peers)
            outcome[name] = {
                "seconds": round(seconds, 2),
                "origin_copies": round(_sent(url) / model.total, 3),
            }
    return {
        "bytes": model.total,
        "origin_bytes_per_second": PEER_RATE,
        **outcome,
        "time_ratio": round(outcome["independent"]["seconds"] / outcome["peers"]["seconds"], 2),
    }


def _four(model: Model, url: str, at: Path, with_peers: bool) -> float:
    """Seconds until the last of four nodes has published."""
    at.mkdir()
    (at / "token").write_text("bench")
    stores = [at / f"node-{number}" for number in range(4)]
    with ExitStack() as stack:
        servers = []
        for number, store in enumerate(stores):
            init_store(store)
            if with_peers:
                servers.append(stack.enter_context(seeder(store, at / "token", f"127.74.9.{10 + number}")))
        started = time.perf_counter()
        pulls = [
            subprocess.Popen(
                [*pull_command(model, url, store), "--peer-token-file", str(at / "token"),
                 *(f"--peer={server}" for server in servers if server != servers[number])],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for number, store in enumerate(stores)
        ]  # fmt: skip
        codes = [process.wait() for process in pulls]
        seconds = time.perf_counter() - started
    if any(codes):
        raise SystemExit(f"a pull failed: {codes}")
    return seconds


def make_model(directory: Path, files: int, size: int) -> Model:
    """Random bytes with the names of shards."""
    directory.mkdir()
    rng, listed = random.Random(1), []
    for number in range(1, files + 1):
        path = directory / f"model-{number:05d}-of-{files:06d}.safetensors"
        data = rng.randbytes(size)
        path.write_bytes(data)
        listed.append(ManifestFile(path=path.name, size=size, sha256=hashlib.sha256(data).hexdigest()))
    return Model(directory, Manifest(source="https://bench", files=listed))


@contextmanager
def origin(directory: Path, rate: int) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.origin", str(directory), f"{HOST}:0", str(rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        try:
            yield f"http://{HOST}:{int(server.stdout.readline())}"
        finally:
            server.terminate()


@contextmanager
def seeder(store: Path, token: Path, host: str) -> Iterator[str]:
    command = [*MOESTAGE, "serve", "--store", str(store), "--token-file", str(token), "--listen", f"{host}:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            yield f"http://{json.loads(server.stderr.readline())['address']}"
        finally:
            server.terminate()


def pull(model: Model, url: str, out: Path) -> Spent:
    init_store(out)
    return measured(pull_command(model, url, out))


def pull_command(model: Model, url: str, store: Path) -> list[str]:
    manifest = model.directory.with_suffix(".json")
    manifest.write_text(model.manifest.model_dump_json(by_alias=True))
    return [
        *MOESTAGE, "pull", "--manifest", str(manifest), "--source", url, "--store", str(store),
        "--reserve-bytes", "0", "--allow-http-host", url.removeprefix("http://"),
    ]  # fmt: skip


def curl(model: Model, url: str, out: Path) -> Spent:
    """As many at once as moestage has threads, each written and hashed in one pass."""
    out.mkdir()
    one = f'curl -sf "{url}/$1" | tee "{out}/$1" | sha256sum > "{out}/$1.sha256"'
    names = "\n".join(model.names)
    return measured(["sh", "-c", f"printf '%s\\n' \"$0\" | xargs -P 4 -I@ sh -c '{one}' sh @", names])


def measured(command: list[str], environment: dict[str, str] | None = None) -> Spent:
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        command,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | (environment or {}),
    )
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spent(seconds, cpu)


def verified(spent: Spent, out: Path) -> Spent:
    """Add what it costs to hash what was written, as fast as Python can."""
    code = (
        "import hashlib, pathlib, sys\n"
        "for p in pathlib.Path(sys.argv[1]).rglob('*.safetensors'):\n"
        "    hashlib.file_digest(p.open('rb'), 'sha256')"
    )
    more = measured([sys.executable, "-c", code, str(out)])
    return Spent(spent.seconds + more.seconds, spent.cpu + more.cpu)


def _fresh(out: Path, run: Callable[[Path], Spent]) -> Spent:
    shutil.rmtree(out, ignore_errors=True)
    try:
        return run(out)
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _sent(url: str) -> int:
    with urllib.request.urlopen(f"{url}/sent") as answer:
        return int(json.load(answer)["sent"])


def _print(figures: dict[str, Any]) -> None:
    clients, peers = figures["clients"], figures["peers"]
    print(f"{clients['bytes'] / 1e9:.2f} GB, {figures['cpus']} CPUs, in {figures['directory']}")
    for name, run in clients["runs"].items():
        print(
            f"  {name:26} {run['mb_per_second']:8.1f} MB/s  {run['cpu_seconds_per_gb']:6.2f} CPU s/GB"
            f"  time ×{run['time_ratio']:.2f}  CPU ×{run['cpu_ratio']:.2f}"
        )
    for name in clients["left_out"]:
        print(f"  {name:26} left out: --clients-python was not given")
    for name in ("independent", "peers"):
        print(
            f"  4 nodes, {name:12} {peers[name]['seconds']:8.2f} s  {peers[name]['origin_copies']:.2f} copies"
        )
    print(
        f"figure: peers take {peers['peers']['origin_copies']:.2f} copies from the origin and are"
        f" {peers['time_ratio']:.2f}× as fast as 4 independent pulls"
    )


HUB_PLAIN = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
HUB = """
import sys
from huggingface_hub import snapshot_download
snapshot_download("bench/model", endpoint=sys.argv[1], local_dir=sys.argv[2], max_workers=4)
"""
BOTO3 = """
import pathlib, sys
from concurrent.futures import ThreadPoolExecutor
import boto3
from botocore import UNSIGNED
from botocore.config import Config
url, out, *names = sys.argv[1:]
pathlib.Path(out).mkdir()
config = Config(signature_version=UNSIGNED, s3={"addressing_style": "path"})
s3 = boto3.client("s3", endpoint_url=url, region_name="us-east-1", config=config)
with ThreadPoolExecutor(4) as pool:
    list(pool.map(lambda name: s3.download_file("bucket", name, f"{out}/{name}"), names))
"""

if __name__ == "__main__":
    main()
