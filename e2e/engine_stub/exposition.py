"""Counters, gauges, histograms and summaries in the Prometheus text format, as prometheus_client writes it.

Labels are sorted by name, counters carry ``_total`` and every counter, histogram and summary has its own
``_created`` gauge family, which is what both engines expose.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

Labels = tuple[tuple[str, str], ...]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def labels(**values: str) -> Labels:
    """A label set, sorted by name."""
    return tuple(sorted(values.items()))


@dataclass(slots=True)
class Family:
    """One metric family. Gauges may be computed when they are read: ``read`` gives all samples."""

    name: str
    kind: str
    help: str
    buckets: tuple[float, ...] = ()
    read: Callable[[], dict[Labels, float]] | None = None
    values: dict[Labels, float] = field(default_factory=dict)
    counts: dict[Labels, list[int]] = field(default_factory=dict)
    created: dict[Labels, float] = field(default_factory=dict)

    def declare(self, at: Labels) -> None:
        """Make a sample appear with the value 0."""
        if at not in self.values:
            self.values[at] = 0.0
            self.counts[at] = [0] * (len(self.buckets) + 1)
            self.created[at] = time.time()

    def add(self, at: Labels, amount: float = 1.0) -> None:
        """Count something, or observe ``amount`` in a histogram or summary."""
        self.declare(at)
        self.values[at] += amount
        self.counts[at][bisect_left(self.buckets, amount)] += 1

    def render(self) -> Iterator[str]:
        """Lines of the exposition."""
        suffix = "_total" if self.kind == "counter" else ""
        yield f"# HELP {self.name}{suffix} {self.help}"
        yield f"# TYPE {self.name}{suffix} {self.kind}"
        values = self.read() if self.read else self.values
        for at, value in values.items():
            if self.kind in {"histogram", "summary"}:
                yield from self._distribution(at, value)
            else:
                yield f"{self.name}{suffix}{_braces(at)} {number(value)}"
        if self.kind != "gauge" and self.created:
            yield f"# HELP {self.name}_created {self.help}"
            yield f"# TYPE {self.name}_created gauge"
            for at, born in self.created.items():
                yield f"{self.name}_created{_braces(at)} {number(born)}"

    def _distribution(self, at: Labels, total: float) -> Iterator[str]:
        running = 0
        if self.kind == "histogram":
            for bound, count in zip((*self.buckets, inf), self.counts[at], strict=True):
                running += count
                edge = tuple(sorted((*at, ("le", number(bound)))))
                yield f"{self.name}_bucket{_braces(edge)} {number(running)}"
        yield f"{self.name}_count{_braces(at)} {number(sum(self.counts[at]))}"
        yield f"{self.name}_sum{_braces(at)} {number(total)}"


def render(families: Sequence[Family]) -> bytes:
    """The whole page."""
    return ("\n".join(line for family in families for line in family.render()) + "\n").encode()


def number(value: float) -> str:
    """A float as Go prints it, which is what scrapers see."""
    if value == inf:
        return "+Inf"
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+{dot - 1:02d}"
    return text


def steps_to(limit: float) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 … not above ``limit``."""
    found: list[float] = []
    scale = 1
    while scale <= limit:
        found += [digit * scale for digit in (1, 2, 5) if digit * scale <= limit]
        scale *= 10
    return tuple(float(one) for one in found)


def _braces(at: Labels) -> str:
    if not at:
        return ""
    escaped = (
        (name, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")) for name, value in at
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"
