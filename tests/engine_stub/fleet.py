"""Starts stubs as processes, each on its own loopback address, and ends every one of them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "tests" / "data" / "vllm-0.32"
PORT = 8001
ADMIN = 9999
DEADLINE = 30.0  # seconds; generous, because a test machine may be busy
ANSWER = 90.0  # seconds a client waits, longer than any deadline of a test that lets it hang
# One test run uses 127.30.x.y with x from its own process id, so two runs side by side do not meet.
_addresses = (f"127.30.{os.getpid() % 250}.{host}" for host in itertools.count(1))


def until(condition: Callable[[], Any], what: str, deadline: float = DEADLINE) -> Any:
    """Wait for a truthy value of ``condition``; fails with ``what`` after ``deadline`` seconds."""
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    pytest.fail(f"waited {deadline} s in vain for {what}")


@dataclass
class Stub:
    """One running stub process."""

    process: subprocess.Popen[str]
    address: str
    output: Path
    client: httpx.Client = field(init=False)
    admin: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=f"http://{self.address}:{PORT}", timeout=ANSWER)
        self.admin = httpx.Client(base_url=f"http://{self.address}:{ADMIN}", timeout=ANSWER)

    @property
    def log(self) -> str:
        """Everything that it has printed."""
        return self.output.read_text()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def health(self) -> int | None:
        """Status of /health, None when nobody answers."""
        try:
            return self.client.get("/health").status_code
        except httpx.TransportError:
            return None

    def state(self) -> dict[str, Any]:
        """What the admin port says, empty when it is not there yet."""
        try:
            return self.admin.get("/_stub/state").json()
        except httpx.TransportError:
            return {}

    def ready(self) -> Stub:
        """Wait until it serves."""
        until(lambda: self.health() == 200 or not self.running, f"{self.address} to serve")
        assert self.running, self.log
        return self

    def exit_code(self) -> int:
        """Wait for its end; a death by signal is 128 + the signal, as a container runtime says it."""
        code = self.process.wait(DEADLINE)
        return 128 - code if code < 0 else code

    def says(self, text: str) -> None:
        """Wait until ``text`` is in the log."""
        until(lambda: text in self.log, f"{text!r} in the log:\n{self.log}")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE)

    def chat(self, **more: Any) -> httpx.Response:
        """One chat completion."""
        return self.client.post("/v1/chat/completions", json=question(**more))


def question(**more: Any) -> dict[str, Any]:
    """A chat request for the model under the name ``tiny``."""
    return {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, **more}


def frames(body: str) -> list[Any]:
    """The JSON values of an event stream; ``[DONE]`` as a string."""
    data = [line.removeprefix("data: ") for line in body.split("\n") if line]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


class Fleet:
    """Starts stubs and ends what is left of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.stubs: list[Stub] = []

    def start(self, *argv: str, address: str | None = None, **environment: str) -> Stub:
        """Run ``python -m e2e.engine_stub …``; ``{address}`` in argv becomes the stub's own address."""
        own = address or next(_addresses)
        output = self.directory / f"stub-{len(self.stubs)}.log"
        inherited = {
            key: value for key, value in os.environ.items() if not key.startswith(("STUB_", "VLLM_"))
        }
        values = {
            "STUB_TIME_SCALE": "0.05",
            "STUB_TTFT_MS": "1",
            "STUB_ITL_MS": "1",
            "STUB_ADMIN_HOST": own,
            "STUB_ADMIN_PORT": str(ADMIN),
            "VLLM_HOST_IP": own,
            **environment,
        }
        with output.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "e2e.engine_stub", *(word.format(address=own) for word in argv)],
                cwd=ROOT,
                env=inherited | values,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
            )
        stub = Stub(process, own, output)
        self.stubs.append(stub)
        return stub

    def vllm(self, model: Path, *flags: str, **more: str) -> Stub:
        """A vLLM server under the served name ``tiny``."""
        http = ("--served-model-name", "tiny", "--host", "{address}", "--port", str(PORT))
        return self.start("vllm", "serve", str(model), *http, *flags, **more)

    def headless(self, model: Path, *flags: str, **more: str) -> Stub:
        """A vLLM node without HTTP."""
        return self.start("vllm", "serve", str(model), "--headless", *flags, **more)

    def sglang(self, model: Path, *flags: str, **more: str) -> Stub:
        """An SGLang node."""
        http = ("--served-model-name", "tiny", "--host", "{address}", "--port", str(PORT))
        return self.start("sglang", "--model-path", str(model), *http, *flags, **more)

    def close(self) -> None:
        for stub in self.stubs:
            stub.client.close()
            stub.admin.close()
            if stub.running:
                stub.process.kill()
            stub.process.wait()


def faults(*entries: dict[str, Any]) -> str:
    """The value of STUB_FAULTS."""
    return json.dumps(entries)
