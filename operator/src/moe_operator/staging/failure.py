"""How staging fails: one exception with everything an operator needs to say why and what next.

Invariants: every failure carries the :class:`StageExit` the process ends with; ``Transient`` means that
asking the source again may help and is raised only for the source's side, never for the store's.
A termination message never exceeds what a kubelet keeps.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from moe_operator.api.manifest import StageExit, StageProgress, TerminationMessage

TERMINATION_BYTES = 4096
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class StageError(Exception):
    """Staging cannot go on; ``exit`` is the code the process ends with."""

    def __init__(
        self,
        exit: StageExit,
        message: str,
        *,
        file: str = "",
        expected: str = "",
        actual: str = "",
        hint: str = "",
        corrupt: Sequence[str] = (),
        bytes_corrupt: int = 0,
    ) -> None:
        super().__init__(message)
        self.exit = exit
        self.message = message
        self.file = file
        self.expected = expected
        self.actual = actual
        self.hint = hint
        self.corrupt = tuple(corrupt)
        self.bytes_corrupt = bytes_corrupt


class Transient(StageError):
    """The source failed in a way that may pass.

    ``code`` is a bounded word for metrics (an HTTP status, ``cut``, ``timeout``, ``connect``);
    ``retry_after`` is what the source asked for, in seconds. ``exit`` holds once patience ends.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        exit: StageExit = StageExit.NETWORK,
        retry_after: float | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(exit, message, hint=hint)
        self.code = code
        self.retry_after = retry_after


class Unauthorized(StageError):
    """401 or 403 of the host that was asked; ``challenge`` is its WWW-Authenticate header."""

    def __init__(self, message: str, *, challenge: str, hint: str) -> None:
        super().__init__(StageExit.AUTH, message, hint=hint)
        self.challenge = challenge


class RangeRefused(Transient):
    """416: the source has no byte at the offset asked for; ``total`` is the length it admits to."""

    def __init__(self, message: str, total: int | None) -> None:
        super().__init__("416", message)
        self.total = total


class Stopped(Exception):
    """A signal asked the process to end, or another worker failed."""


@contextmanager
def store_faults(root: Path) -> Iterator[None]:
    """Turn an OSError of the node's store into INSUFFICIENT_DISK or STORE_UNUSABLE."""
    try:
        yield
    except OSError as fault:
        where = str(fault.filename or root)
        if fault.errno in _DISK_FULL:
            raise StageError(
                StageExit.INSUFFICIENT_DISK,
                f"the store {root} is full: {fault.strerror} at {where}",
                hint="free space in the store or choose a cache class with a larger disk",
            ) from fault
        raise StageError(
            StageExit.STORE_UNUSABLE,
            f"the store {root} cannot be used: {fault.strerror} at {where}",
            hint="check that the disk is mounted read-write and belongs to the stager's user",
        ) from fault


def termination_message(error: StageError | None, progress: StageProgress) -> bytes:
    """The JSON for the termination log, shortened where needed to fit into a kubelet's limit."""
    code = StageExit.OK if error is None else error.exit
    message = TerminationMessage(
        code=int(code),
        reason=code.name,
        message=progress.message if error is None else error.message,
        file="" if error is None else error.file,
        expected="" if error is None else error.expected,
        actual="" if error is None else error.actual,
        hint="" if error is None else error.hint,
        bytes_done=progress.bytes_done,
        bytes_total=progress.bytes_total,
        bytes_reused=progress.bytes_reused,
        bytes_from_peers=progress.bytes_from_peers,
        corrupt=() if error is None else error.corrupt,
        bytes_corrupt=0 if error is None else error.bytes_corrupt,
        retryable=error is not None and not code.permanent,
    )
    return _fit(message)


def _fit(message: TerminationMessage) -> bytes:
    texts = ("message", "hint", "file", "expected", "actual")
    raw = message.model_dump_json(by_alias=True).encode()
    while len(raw) > TERMINATION_BYTES:
        longest = max(texts, key=lambda name: len(getattr(message, name)))
        text: str = getattr(message, longest)
        message = message.model_copy(update={longest: text[: len(text) // 2].rstrip("…") + "…"})
        raw = message.model_dump_json(by_alias=True).encode()
    return raw
