"""Move one file from a source into a sink, whatever the network does.

Rules: a broken transfer goes on where it stopped; it starts over only when the source's file changed
or the source cannot seek. Patience counts attempts that brought nothing new, so a slow source that
keeps moving is never given up, and one that does not is. Lengths are compared on every answer: a
source whose file is not as long as the manifest says has changed, and no retry will help.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol, TypeVar

from moe_operator.api.manifest import StageExit
from moe_operator.staging.failure import RangeRefused, StageError, Transient
from moe_operator.staging.pace import Backoff, Bucket, Gate
from moe_operator.staging.progress import Progress
from moe_operator.staging.stop import Stop
from moe_operator.staging.transport import Stream

CHUNK = 1 << 20
CONTENT_TAG = "sha256"  # of a stream that is named by its digest: it continues whatever is held of that blob
T = TypeVar("T")


class Readable(Protocol):
    """Where a file comes from."""

    def open(self, path: str, offset: int = 0) -> Stream:
        """The file's bytes from ``offset`` on, or from 0 when the source cannot seek."""
        ...


class Sink(Protocol):
    """Where a file goes."""

    position: int  # bytes held, without a gap
    tag: str  # of the source's file those bytes came from

    def write(self, chunk: memoryview) -> None:
        """Take the next bytes."""
        ...

    def restart(self) -> None:
        """Forget everything."""
        ...


@dataclass(frozen=True, slots=True)
class Link:
    """What all transfers of a process share."""

    stop: Stop
    progress: Progress
    gate: Gate
    bucket: Bucket
    backoff: Backoff
    retries: int  # attempts in a row that may bring nothing new
    chunk: int = CHUNK
    from_peer: bool = False


def transfer(
    source: Readable, path: str, size: int | None, sink: Sink, link: Link, *, enough: int | None = None
) -> None:
    """Bring ``sink`` to ``size`` bytes (None: to the source's end; ``enough``: stop once that many are held).

    Raises SOURCE_CHANGED when lengths differ, the source's StageError, or the last Transient when
    patience ends.
    """
    if sink.position != size:
        patiently(path, lambda: _attempt(source, path, size, sink, link, enough), link, lambda: sink.position)


def patiently(what: str, act: Callable[[], T], link: Link, position: Callable[[], int] = lambda: 0) -> T:
    """``act`` until it succeeds, fails for good, or brought nothing new too often."""
    attempt, best = 0, position()
    while True:
        try:
            with link.gate.slot(link.stop):
                result = act()
        except Transient as fault:
            link.stop.check()  # a connection that was hung up on looks like one that was cut
            attempt = 1 if position() > best else attempt + 1
            best = max(best, position())
            if attempt > link.retries:
                raise
            _pause(what, attempt, fault, link)
        else:
            link.gate.served()
            return result


def _attempt(
    source: Readable, path: str, size: int | None, sink: Sink, link: Link, enough: int | None
) -> None:
    with closing(_opened(source, path, size, sink, link)) as stream:
        if size is not None and stream.total not in (None, size):
            raise length_differs(path, size, stream.total)
        sink.tag = stream.tag
        buffer = memoryview(bytearray(link.chunk))
        while count := stream.readinto(buffer):
            link.stop.check()
            if size is not None and sink.position + count > size:
                raise length_differs(path, size, None)
            link.progress.throttle(link.bucket.take(count, link.stop))
            sink.write(buffer[:count])
            link.progress.receive(count, from_peer=link.from_peer)
            if enough is not None and sink.position >= enough:
                return
        expected = stream.total if size is None else size
        if expected is not None and sink.position < expected:
            raise Transient("cut", f"{path} broke off at byte {sink.position} of {expected}")


def _opened(source: Readable, path: str, size: int | None, sink: Sink, link: Link) -> Stream:
    """A stream that continues exactly where the sink stands."""
    try:
        stream = source.open(path, sink.position)
    except RangeRefused as fault:
        if size is not None and fault.total not in (None, size):
            raise length_differs(path, size, fault.total) from fault
        _drop(sink, link)
        raise
    same = stream.tag == sink.tag or CONTENT_TAG in (stream.tag, sink.tag)
    if stream.start == sink.position and (not sink.position or same):
        return stream
    _drop(sink, link)
    if stream.start == 0:
        return stream
    stream.close()
    return source.open(path, 0)


def _drop(sink: Sink, link: Link) -> None:
    link.progress.drop(sink.position)
    sink.restart()


def _pause(what: str, attempt: int, fault: Transient, link: Link) -> None:
    delay = link.backoff.delay(attempt, fault.retry_after)
    link.progress.retry(fault.code, f"{what}: {fault.message}; again in {delay:.1f} s")
    if fault.exit is StageExit.THROTTLED:
        link.gate.throttled()
        link.progress.throttle(delay)
    link.stop.wait(delay)


def length_differs(path: str, expected: int, actual: int | None) -> StageError:
    """The source's file is not as long as the manifest says."""
    return StageError(
        StageExit.SOURCE_CHANGED,
        f"{path} at the source is not the file of the manifest: its length differs",
        file=path,
        expected=f"{expected} bytes",
        actual="more bytes" if actual is None else f"{actual} bytes",
        hint="the source was overwritten or an upload is incomplete; resolve the model again",
    )
