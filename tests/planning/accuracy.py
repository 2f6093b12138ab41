"""The planner against everything published: docs/planner-accuracy.md is made here.

    python -m tests.planning.accuracy

Three questions, each answered case by case: are sizes right (weights, KV bytes, memory), are verdicts right,
are the layouts that people benchmarked found and ranked high. A disagreement that is not explained in
tests/data/planner/inputs.json (``explained``) fails tests/planning/test_accuracy.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from moe_operator.engines.known import ENGINES
from moe_operator.planning.assess import assess
from moe_operator.planning.layouts import candidates
from moe_operator.planning.plan import Plan, Request
from moe_operator.planning.planner import plan
from moe_operator.planning.ranking import ranked

from tests.planning.known_cases import Case, Json, cases, explained, question, role_question, roles
from tests.planning.known_models import checkpoint, models
from tests.planning.measures import LOOSE, MEASURES

DOC = Path(__file__).parents[2] / "docs" / "planner-accuracy.md"
FIRST = 5
MEMORY = frozenset({"WEIGHTS_EXCEED_MEMORY", "NO_KV_MEMORY", "KV_CACHE_TOO_SMALL"})
CODES = {
    "oom_load": MEMORY,
    "kv": frozenset({"KV_CACHE_TOO_SMALL", "NO_KV_MEMORY"}),
    "block_quant": frozenset({"FP8_BLOCK_NOT_DIVISIBLE"}),
    "quant_group": frozenset({"QUANT_GROUP_NOT_DIVISIBLE"}),
    "heads": frozenset({"HEADS_NOT_DIVISIBLE"}),
    "unsupported": frozenset({"PRECISION_UNSUPPORTED"}) | MEMORY,
    "interconnect": frozenset({"ALL_TO_ALL_UNSUPPORTED"}),
    "interconnect_slow": frozenset({"TP_BEYOND_NVLINK_DOMAIN"}),
}
DECIDABLE = ("oom_load", "kv", "block_quant", "quant_group", "heads", "unsupported")


@dataclass(frozen=True)
class Size:
    """One published number beside the planner's. ``within``: the tolerance, in the numbers' own unit."""

    subject: str
    what: str
    published: float
    planned: float
    unit: str
    within: float

    @property
    def key(self) -> str:
        return f"{self.subject}: {self.what}"

    @property
    def agrees(self) -> bool:
        return abs(self.planned - self.published) <= self.within


@dataclass(frozen=True)
class Outcome:
    """One case: what happened, what the planner says."""

    case: Case
    answer: Plan | None

    @property
    def codes(self) -> list[str]:
        return [r.code for r in self.answer.refusals] if self.answer else []

    @property
    def agrees(self) -> bool:
        if self.answer is None:
            return False
        if self.case.works:
            return self.answer.verdict != "Refused"
        return bool(CODES.get(self.case.kind, frozenset()) & set(self.codes))


@cache
def of_decidable_kinds() -> tuple[Outcome, ...]:
    """Failures of the kinds that facts can decide, whether or not facts decide this one."""
    return tuple(o for o in outcomes() if not o.case.works and o.case.kind in DECIDABLE)


@dataclass(frozen=True)
class Placed:
    """One benchmarked role: where its layout stands among the planner's; None = not enumerated."""

    role: Json
    layout: str
    place: int | None
    verdict: str
    codes: tuple[str, ...]
    first: str

    @property
    def valid(self) -> bool:
        return self.place is not None and self.verdict != "Refused"

    @property
    def early(self) -> bool:
        return self.valid and self.place is not None and self.place < FIRST

    @property
    def key(self) -> str:
        return f"{self.role['model']} {self.role['gpu']} {self.layout}"


@cache
def answer(case_id: str) -> tuple[Request, Plan]:
    case = next(c for c in cases() if c.id == case_id)
    request = question(case)
    return request, plan(request, ENGINES[request.engine].judges)


@cache
def outcomes() -> tuple[Outcome, ...]:
    return tuple(Outcome(c, None if c.unjudged else answer(c.id)[1]) for c in cases())


@cache
def placed() -> tuple[Placed, ...]:
    return tuple(found for role in roles() if (found := _placed(role)))


def _placed(role: Json) -> Placed | None:
    asked = role_question(role)
    if asked is None:
        return None
    request, layout = asked
    assert request.checkpoint
    judges = ENGINES[request.engine].judges
    order = ranked(
        assess(option, request.checkpoint, request, judges) for option in candidates(request, layout.nodes)
    )
    place = next((i for i, option in enumerate(order) if option.layout == layout), None)
    verdict = order[place].verdict if place is not None else "not enumerated"
    codes = tuple(r.code for r in order[place].refusals) if place is not None else ()
    return Placed(role, str(layout), place, verdict, codes, order[0].layout.short)


def published_sizes() -> Iterator[Size]:
    """Whole checkpoints: config.json's shapes against the published size, within 1 %."""
    for name, entry in models().items():
        if "total_bytes" in entry:
            total = entry["total_bytes"]
            found = checkpoint(name, with_total=False).computed_bytes
            yield Size(name, "checkpoint", total / 1e9, found / 1e9, "GB", 0.01 * total / 1e9)


def measured_sizes() -> Iterator[Size]:
    """Numbers of single runs."""
    for case in cases():
        for what, published, unit, within, measure in MEASURES.get(case.id, ()):
            request, found = answer(case.id)
            assert found.chosen
            yield Size(case.id, what, published, measure(request, found.chosen), unit, within)


def sizes() -> list[Size]:
    return [*published_sizes(), *measured_sizes()]


def share(hits: int, of: int) -> str:
    return f"{hits} of {of} ({hits / of:.1%})" if of else "none"


def agreeing(found: list[Size]) -> str:
    return share(sum(size.agrees for size in found), len(found))


def document() -> str:
    return "\n".join([*_head(), *_sizes(), *_verdicts(), *_roles()]) + "\n"


def _head() -> Iterator[str]:
    works = [o for o in outcomes() if o.case.works and o.answer]
    fails = [o for o in outcomes() if not o.case.works and o.answer]
    found = placed()
    yield "# How right the planner is"
    yield ""
    yield "<!-- Generated by `python -m tests.planning.accuracy`; data and reasons: tests/data/planner. -->"
    yield ""
    yield "Everything that was published about memory and layouts of the models in tests/data/planner, beside"
    yield "what `plan()` says. None of it was run for this page. A disagreement is shown with its reason, not"
    yield "left out."
    yield ""
    yield "| question | answer |"
    yield "|---|---|"
    known = list(published_sizes())
    yield f"| sizes of whole checkpoints within 1 % | {agreeing(known)} |"
    runs = list(measured_sizes())
    yield f"| numbers of single runs within their tolerance | {agreeing(runs)} |"
    yield f"| runs that work, not refused | {share(sum(o.agrees for o in works), len(works))} |"
    refused = share(sum(o.agrees for o in fails), len(fails))
    yield f"| failures that facts decide, refused with the right code | {refused} |"
    kinds = of_decidable_kinds()
    all_of_kinds = share(sum(o.agrees for o in kinds), len(kinds))
    yield f"| … of all failures of kinds that facts can decide, judged or not | {all_of_kinds} |"
    valid = share(sum(p.valid for p in found), len(found))
    yield f"| benchmarked layouts that are valid for the planner | {valid} |"
    yield f"| … and among its first {FIRST} | {share(sum(p.early for p in found), len(found))} |"
    yield ""


def _sizes() -> Iterator[str]:
    reasons = explained()
    yield "## Sizes"
    yield "Checkpoints: shapes of config.json against the published bytes. Runs: what the engine logged."
    yield "Tolerances: weights 1 %, KV bytes exact (or as far as the log rounds), other memory"
    yield f"±{LOOSE:.0f} GiB per GPU."
    yield ""
    yield "| of | what | published | planner | difference | |"
    yield "|---|---|---|---|---|---|"
    for size in sizes():
        off = size.planned / size.published - 1
        note = "" if size.agrees else reasons.get(size.key, "NOT EXPLAINED")
        numbers = f"{size.published:,.2f} {size.unit} | {size.planned:,.2f} {size.unit} | {off:+.2%}"
        yield f"| {size.subject} | {size.what} | {numbers} | {note} |"
    yield ""


def _verdicts() -> Iterator[str]:
    yield "## Verdicts"
    yield "What a case leaves open was filled in from the run's own scripts or threads where they are public;"
    yield "the remark says so. A case is not judged where its cause is not in config, sizes and numbers."
    yield ""
    yield "| case | run | what happened | planner | agrees | remark |"
    yield "|---|---|---|---|---|---|"
    for outcome in outcomes():
        raw = outcome.case.raw
        run = f"{raw['model']}, {raw['engine']}, {raw.get('gpus') or '?'}× {raw['gpu'] or '?'}"
        happened = "works" if outcome.case.works else raw["kind"]
        if outcome.answer is None:
            yield f"| {outcome.case.id} | {run} | {happened} | not judged | | {outcome.case.unjudged} |"
            continue
        said = ", ".join(outcome.codes) or f"{outcome.answer.verdict}, {outcome.answer.layout}"
        agrees = "yes" if outcome.agrees else "**no**"
        why = outcome.case.more.get("why", "")
        yield f"| {outcome.case.id} | {run} | {happened} | {said} | {agrees} | {why} |"
    yield ""


def _roles() -> Iterator[str]:
    reasons = explained()
    yield "## Benchmarked layouts"
    yield f"{len(placed())} roles of public multi-node benchmarks. The planner got the model, the GPUs and"
    yield "the role's memory settings, not its layout. TensorRT-LLM's roles are planned with SGLang's rules,"
    yield f"since both count ranks alike. Listed are those that are not among its first {FIRST}."
    yield ""
    yield "| role | layout | place | planner's first | remark |"
    yield "|---|---|---|---|---|"
    for found in placed():
        if found.early:
            continue
        role = found.role
        place = "not enumerated" if found.place is None else f"{found.place + 1}"
        if found.codes:
            place += f", {', '.join(found.codes)}"
        name = f"{role['engine']} {role['role']}, {role['model']}, {role['gpu']}"
        remark = reasons.get(found.key, "NOT EXPLAINED")
        yield f"| {name} | {found.layout} | {place} | {found.first} | {remark} |"


if __name__ == "__main__":
    DOC.write_text(document())
