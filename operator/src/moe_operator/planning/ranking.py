"""Which layout is best, and why, in this order:

1. verdict: Fits before Tight before Refused, with KV cache for the wanted requests;
2. communication hides behind memory: the bytes of a decode step take no longer to send than its weights
   take to read;
3. no pipeline inside one NVLink domain: tensor parallelism there costs less than a pipeline's bubbles;
4. time of a bandwidth-bound decode step, reading and sending together, in steps of 15 % above the best;
5. fewer nodes; then expert parallelism (no kernel padding, no quantization blocks cut), no decode-context
   parallelism, wider tensor parallelism.

The best of every *family* (the set of ways by which a layout splits) comes before the second of any, so
that the first few show real choices rather than neighbours of the winner. Decode-context parallelism is a
family of its own only where the same layout without it does worse: it costs communication and is not for
free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf, log

from moe_operator.planning.layouts import family
from moe_operator.planning.plan import Assessment

VERDICTS = ("Fits", "Tight", "Refused")
STEP = log(1.15)
MEMORY_CODES = frozenset({"WEIGHTS_EXCEED_MEMORY", "NO_KV_MEMORY", "KV_CACHE_TOO_SMALL"})


def ranked(assessments: Iterable[Assessment]) -> list[Assessment]:
    """Best first; the best of every family before the rest."""
    every = list(assessments)
    best = min((_seconds(a) for a in every if a.verdict != "Refused"), default=inf)
    ordered = sorted(every, key=lambda assessment: _key(assessment, best))
    plain = {a.layout: a.verdict for a in ordered if a.layout.decode_context == 1}
    seen: set[tuple[bool, ...]] = set()
    first: list[Assessment] = []
    rest: list[Assessment] = []
    for assessment in ordered:
        kind = family(assessment.layout)
        without = plain.get(replace(assessment.layout, decode_context=1))
        needless = kind[-1] and without == assessment.verdict
        (rest if kind in seen or needless else first).append(assessment)
        seen.add(kind)
    return sorted(first, key=_verdict) + sorted(rest, key=_verdict)


def _verdict(assessment: Assessment) -> int:
    return VERDICTS.index(assessment.verdict)


def _seconds(assessment: Assessment) -> float:
    speed = assessment.speed
    return speed.communication_seconds + speed.step_seconds if speed else inf


def _key(assessment: Assessment, best: float) -> tuple[float, ...]:
    layout, speed, seconds = assessment.layout, assessment.speed, _seconds(assessment)
    hidden = bool(speed and speed.communication_seconds <= speed.step_seconds)
    return (
        _verdict(assessment),
        *_shortfall(assessment),
        not hidden,
        bool(speed and speed.inner_pipeline),
        max(0, int(log(seconds / best) / STEP)) if speed and best < inf else inf,
        layout.nodes,
        not layout.expert,
        layout.decode_context,
        -layout.tensor,
        layout.pipeline,
    )


def _shortfall(assessment: Assessment) -> tuple[float, ...]:
    """Among refused layouts: those that no rule forbids first, then the one that lacks least memory."""
    if assessment.verdict != "Refused":
        return 0, 0, 0
    forbidden = any(r.code not in MEMORY_CODES for r in assessment.refusals)
    lacking = -min((stage.pool_bytes for stage in assessment.stages), default=0)
    return forbidden, lacking, -(assessment.longest or 0)


def why(order: Sequence[Assessment]) -> str:
    """Why the first was chosen over the second, in one sentence; "" when there was no choice."""
    if len(order) < 2 or order[0].verdict == "Refused":
        return ""
    first, second = order[0], order[1]
    if first.verdict != second.verdict:
        return f"{first.layout.short} {first.verdict.lower()}, {second.layout.short} {_said(second)}"
    return f"{_times(first)}; next is {_times(second)}"


def _said(assessment: Assessment) -> str:
    return "is refused" if assessment.verdict == "Refused" else f"is {assessment.verdict.lower()}"


def _times(assessment: Assessment) -> str:
    speed, name = assessment.speed, assessment.layout.short
    if speed is None:
        return name
    return (
        f"{name} reads {speed.step_seconds * 1e3:.1f} ms of weights and sends "
        f"{speed.communication_seconds * 1e3:.1f} ms per decode step"
    )
