"""Logs of containers, as ``kubectl logs`` asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from moe_operator.runtime.kube import ApiError, Obj
from moe_operator.sandbox.kubelet import Kubelet
from moe_operator.sandbox.objects import key_of
from moe_operator.sandbox.rest_verbs import LogRequest

CHUNK_BYTES = 64 * 1024
FOLLOW_SECONDS = 0.2


async def read_log(kubelet: Kubelet, pod: Obj, wanted: LogRequest) -> AsyncGenerator[bytes, None]:
    """One run's log; with ``follow`` until the container's process has ended."""
    name = wanted.container or pod["spec"]["containers"][0]["name"]
    runs = kubelet.log_files(*key_of(pod), name)
    position = -2 if wanted.previous else -1
    if len(runs) < -position:
        raise ApiError(
            400, "BadRequest", f'container "{name}" in pod "{key_of(pod).name}" has no such log yet'
        )
    path = runs[position]
    start = _start_of_tail(path, wanted.tail_lines)
    with path.open("rb") as log:
        log.seek(start)
        while True:
            running = _runs(kubelet, pod, name)
            while chunk := log.read(CHUNK_BYTES):
                yield chunk
            if not (wanted.follow and running):
                return
            await asyncio.sleep(FOLLOW_SECONDS)


def _runs(kubelet: Kubelet, pod: Obj, container: str) -> bool:
    return any((r.namespace, r.pod, r.container) == (*key_of(pod), container) for r in kubelet.running())


def _start_of_tail(path: Path, lines: int | None) -> int:
    """Offset of the last ``lines`` lines."""
    if lines is None:
        return 0
    content = path.read_bytes()
    tail = content.splitlines(keepends=True)[len(content.splitlines()) - lines :] if lines else []
    return len(content) - sum(map(len, tail))
