"""A plan as a JSON document (schema ``moe.plan/v1``) and as a table that is read in ten seconds.

Bytes in JSON, GiB in the table. Members are only ever added to the schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from moe_operator.api.quantity import human_bytes
from moe_operator.cli.cluster_view import ClusterGpus
from moe_operator.cli.model_files import ModelFacts
from moe_operator.planning.answers import Answers
from moe_operator.planning.assess import budget_bytes
from moe_operator.planning.assumed import GIB
from moe_operator.planning.plan import Assessment, Layout, Plan, Refusal, Request, Row
from moe_operator.planning.planner import KV_CACHE

SCHEMA = "moe.plan/v1"
BAR = 48
SHOWN = 5
WORTH_A_LINE = GIB // 20
COUNTS = ((1e12, "T", 1), (1e9, "B", 0), (1e6, "M", 0), (1, "", 0))
MARKS = {"Fits": ("✔", "+"), "Tight": ("!", "!"), "Refused": ("✖", "x")}


@dataclass(frozen=True, slots=True)
class Report:
    """All that a report tells of."""

    request: Request
    plan: Plan
    answers: Answers
    facts: ModelFacts
    product: str
    engine_version: str
    cluster: ClusterGpus | None = None


def as_document(report: Report) -> dict[str, Any]:
    """The report for programs."""
    plan, facts = report.plan, report.facts
    chosen = plan.chosen
    stage = chosen.stages[chosen.worst] if chosen and chosen.stages else None
    return {
        "schema": SCHEMA,
        "verdict": plan.verdict,
        "model": {
            "name": facts.name,
            "architecture": facts.checkpoint.architecture,
            "parameters": facts.checkpoint.parameters,
            "weightsBytes": facts.checkpoint.weight_bytes,
            "factsFrom": facts.origin,
        },
        "layout": _layout(plan.layout) if plan.layout else None,
        "perRank": {
            "stage": stage.number if stage else None,
            "weightsBytes": stage.weight_bytes if stage else None,
            "rows": [{"name": row.name, "bytes": row.size} for row in plan.rows],
        },
        "stages": [
            {
                "stage": s.number,
                "layers": s.layers,
                "weightsBytes": s.weight_bytes,
                "kvCacheBytes": max(0, s.pool_bytes),
            }
            for s in (chosen.stages if chosen else ())
        ],
        "kvBytesPerToken": chosen.kv_token_bytes if chosen and stage else None,
        "stateBytesPerRequest": chosen.state_bytes if chosen and stage else None,
        "maxModelLen": plan.max_model_len,
        "maxConcurrency": plan.concurrency,
        "refusals": [asdict(r) for r in plan.refusals],
        "cautions": [asdict(c) for c in plan.cautions],
        "alternatives": [_alternative(option) for option in plan.alternatives],
        "why": plan.why,
        "assumptions": list(plan.assumptions),
        "assumedConstants": asdict(report.request.assumed),
        "answers": asdict(report.answers),
        "cluster": asdict(report.cluster) if report.cluster else None,
    }


def _layout(layout: Layout) -> dict[str, Any]:
    return {**{_camel(name): value for name, value in asdict(layout).items()}, "summary": str(layout)}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def _alternative(option: Assessment) -> dict[str, Any]:
    speed = option.speed
    return {
        "layout": _layout(option.layout),
        "verdict": option.verdict,
        "weightsBytesPerRank": [stage.weight_bytes for stage in option.stages],
        "maxModelLen": option.longest,
        "maxConcurrency": option.max_concurrency,
        "decodeStepSeconds": speed.step_seconds if speed else None,
        "communicationSeconds": speed.communication_seconds if speed else None,
        "streamTokensPerSecondCeiling": speed.stream_tokens_per_second if speed else None,
        "refusals": [r.code for r in option.refusals],
    }


def as_text(report: Report, ascii_only: bool = False) -> str:
    """The report for people."""
    lines = [*_head(report), "", *_memory(report, ascii_only), "", *_answers(report), ""]
    lines += _alternatives(report.plan, ascii_only)
    lines += _remarks("Refused", report.plan.refusals)
    lines += _remarks("Mind", report.plan.cautions)
    lines += ["", "Assumed", *(f"  {text}" for text in report.plan.assumptions)]
    lines += ["", f"Result      {_result(report.plan)}"]
    text = "\n".join(lines) + "\n"
    return _plain(text) if ascii_only else text


def _head(report: Report) -> Iterator[str]:
    model, layout, facts = report.facts.checkpoint, report.plan.layout, report.facts
    experts = f"{model.routed_experts} experts ({model.experts_per_token} active)"
    yield (
        f"Model       {facts.name}  {_count(model.parameters)} params, {experts}, "
        f"{model.expert_precision.name.upper()}, weights {model.weight_bytes / 1e9:,.1f} GB"
    )
    yield f"Facts       {facts.origin}"
    if layout:
        gpus = f"{layout.nodes} × {layout.gpus_per_node} {report.product}"
        yield f"Layout      {layout.short} over {gpus}, {report.request.engine} {report.engine_version}"
    if report.plan.why:
        yield f"            {report.plan.why}"


def _memory(report: Report, ascii_only: bool) -> Iterator[str]:
    plan, chosen = report.plan, report.plan.chosen
    total = report.request.gpu_memory_bytes
    if not chosen or not chosen.stages or not total:
        yield "GPU memory  not judged"
        return
    stage = chosen.stages[chosen.worst]
    where = f", stage {stage.number} of {len(chosen.stages)}" if len(chosen.stages) > 1 else ""
    title = f"GPU memory (every GPU of the fullest rank{where})"
    yield f"{title:<54}{'GiB':>8}{'%':>5}"
    rows = [row for row in plan.rows if row.size >= WORTH_A_LINE]
    budget = budget_bytes(report.request)
    left = total - sum(row.size for row in rows)
    label = "not for the engine" if report.request.engine == "vLLM" else "free"
    for row in (*rows, Row(label, left)):
        yield f"  {row.name:<52}{row.size / GIB:>8.1f}{100 * row.size / total:>5.0f}"
    yield f"  {'of ' + report.product:<52}{total / GIB:>8.1f}  100   engine's budget {budget / GIB:.1f}"
    yield f"  {_bar(rows, total, ascii_only)}"


def _bar(rows: Iterable[Row], total: int, ascii_only: bool) -> str:
    """Weights and the rest solid, KV cache shaded, what is left over empty."""
    solid, shaded, empty = ("#", "=", ".") if ascii_only else ("█", "▒", "░")
    used = sum(row.size for row in rows if row.name != KV_CACHE)
    cache = sum(row.size for row in rows if row.name == KV_CACHE)
    first = min(BAR, round(BAR * used / total))
    second = min(BAR - first, round(BAR * cache / total))
    return f"[{solid * first}{shaded * second}{empty * (BAR - first - second)}]  KV cache {shaded}"


def _answers(report: Report) -> Iterator[str]:
    answers, chosen = report.answers, report.plan.chosen
    if chosen and chosen.stages:
        yield f"KV cache    {chosen.kv_token_bytes:,.0f} bytes per token and rank{_state(chosen)}"
    yield from _requests(report)
    if answers.fewest_nodes:
        yield f"Nodes       {answers.fewest_nodes} at least"
    yield f"Blue-green  {answers.gpus_while_replacing} GPUs while one revision replaces another"
    yield from _free(report)
    if answers.disk_bytes_per_node:
        disk = human_bytes(answers.disk_bytes_per_node)
        yield f"Disk        {disk} per node: retained revisions and the next one"
    if answers.load_seconds:
        yield f"Load        {_duration(answers.load_seconds)} to read the weights once per node"
    if answers.stream_tokens_per_second:
        ceiling = answers.stream_tokens_per_second
        yield f"Ceiling     {ceiling:.0f} tokens/s per stream, bound by bandwidth: never more, usually less"


def _requests(report: Report) -> Iterator[str]:
    plan, asked = report.plan, report.request.max_model_len
    longest, at_once = report.answers.longest_at_concurrency, report.request.concurrency
    if plan.concurrency:
        yield f"Requests    {plan.max_model_len:,} tokens long, {plan.concurrency} at once"
    elif plan.concurrency == 0 and asked:
        yield f"Requests    {asked:,} tokens long: none"
    if longest and (plan.concurrency == 0 or longest != plan.max_model_len):
        yield f"            up to {longest:,} tokens for {at_once} at once"


def _state(chosen: Assessment) -> str:
    return f", {chosen.state_bytes / (1 << 20):.1f} MiB of state per request" if chosen.state_bytes else ""


def _free(report: Report) -> Iterator[str]:
    cluster, layout = report.cluster, report.plan.layout
    if cluster is None:
        return
    needed = f"; this layout takes {layout.nodes}" if layout else ""
    yield (
        f"Free now    {cluster.free_gpus} GPUs on {cluster.usable_nodes} usable of {cluster.nodes} nodes, "
        f"{cluster.free_nodes} of them with room for a whole pod{needed}"
    )
    yield from (f"            {why}" for why in cluster.excluded)


def _alternatives(plan: Plan, ascii_only: bool) -> Iterator[str]:
    if len(plan.alternatives) < 2:
        return
    title = f"Layouts ({plan.considered} considered)"
    yield f"{title:<30}{'GiB/rank':>9}{'longest':>11}{'at once':>9}{'step ms':>9}"
    for option in plan.alternatives[:SHOWN]:
        mark = MARKS[option.verdict][ascii_only]
        weights = max((stage.weight_bytes for stage in option.stages), default=0) / GIB
        step = (option.speed.step_seconds + option.speed.communication_seconds) * 1e3 if option.speed else 0.0
        yield (
            f"  {mark} {option.layout.short:<26}{weights:>9.1f}{option.longest or 0:>11,}"
            f"{option.max_concurrency or 0:>9}{step:>9.1f}"
        )


def _remarks(title: str, said: Iterable[Refusal]) -> Iterator[str]:
    for remark in said:
        yield ""
        yield f"{title:<12}[{remark.code}] {remark.message}"
        yield f"            → {remark.fix}"


def _result(plan: Plan) -> str:
    if plan.verdict == "Refused":
        return f"REFUSED ({len(plan.refusals)} reason{'s' if len(plan.refusals) != 1 else ''})"
    return f"{plan.verdict.upper()} ({plan.layout})"


def _count(number: int) -> str:
    scale, letter, digits = next(c for c in COUNTS if number >= c[0])
    return f"{number / scale:.{digits}f}{letter}"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"


_ASCII = str.maketrans({"·": ".", "×": "x", "→": ">", "±": "+-", "–": "-"})


def _plain(text: str) -> str:
    return text.translate(_ASCII).encode("ascii", "replace").decode()
