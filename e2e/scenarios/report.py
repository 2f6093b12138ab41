"""The tables of a scenario."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moe_operator.api.names import LABEL_RANK, LABEL_REPLICA, LABEL_REVISION
from moe_operator.runtime.kube import Obj
from rich.table import Table

from .load import Tally
from .stopwatch import Stopwatch
from .view import View


@dataclass(frozen=True, slots=True, order=True)
class RankPod:
    """An engine pod and the node it runs on."""

    revision: str
    replica: int
    rank: int
    name: str
    node: str

    @classmethod
    def of(cls, pod: Obj) -> RankPod:
        """From the Pod object."""
        meta, labels = pod["metadata"], pod["metadata"]["labels"]
        return cls(
            labels[LABEL_REVISION],
            int(labels[LABEL_REPLICA]),
            int(labels[LABEL_RANK]),
            meta["name"],
            pod["spec"].get("nodeName", ""),
        )


def plan_table(view: View) -> Table:
    """What was planned and where it goes."""
    plan, revision = view.status.plan, view.status.target_revision
    table = _table("Plan", "", "")
    table.add_row("model", f"{view.status.manifest.source}, {_mebibytes(view.status.manifest.total_bytes)}")
    if plan.layout:
        gpus = plan.layout.nodes * plan.layout.gpus_per_node
        table.add_row("layout", f"{plan.layout.summary} on {gpus} GPUs")
        table.add_row("sizes", _sizes(view))
    for row in plan.per_rank:
        table.add_row(row.name, f"{row.gibibytes} GiB a GPU")
    table.add_row("verdict", plan.verdict or "none")
    for placement in view.placements(revision):
        for rank in placement.ranks:
            table.add_row(f"rank {rank.rank}", f"{rank.node}, {placement.gpus_per_node} GPUs")
    for assumption in plan.assumptions:
        table.add_row("assumed", assumption)
    return table


def time_table(stopwatch: Stopwatch) -> Table:
    """Seconds of each part."""
    table = _table("Time", "phase", "seconds", right=(1,))
    for name, seconds in stopwatch.parts:
        table.add_row(name, f"{seconds:.1f}")
    table.add_section()
    table.add_row("all", f"{stopwatch.total:.1f}")
    return table


def traffic_table(tally: Tally, switched: float) -> Table:
    """What became of the requests."""
    table = _table("Requests during the change", "", "", right=(1,))
    table.add_row("sent", str(tally.sent))
    for revision, count in tally.by_revision().items():
        table.add_row(f"answered by {revision}", str(count))
    table.add_row("streams that were open at the switch", str(tally.across(switched)))
    table.add_row("requests failed", str(tally.count("failed")))
    table.add_row("streams broken", str(tally.count("broken")))
    table.add_row("first token, median", f"{1000 * tally.first_token(0.5):.0f} ms")
    table.add_row("first token, 95 %", f"{1000 * tally.first_token(0.95):.0f} ms")
    return table


def pod_table(pods: Iterable[RankPod], active: str) -> Table:
    """Where every rank of every revision was, and which of them serve now."""
    table = _table("Pods and nodes", "revision", "rank", "pod", "node", "now")
    for pod in sorted(pods, key=lambda p: (p.revision == active, p)):
        now = "serves" if pod.revision == active else "retired"
        table.add_row(pod.revision, str(pod.rank), pod.name, pod.node, now)
    return table


def _table(title: str, *columns: str, right: Sequence[int] = ()) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=any(columns))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number in right else "left", overflow="fold")
    return table


def _sizes(view: View) -> str:
    layout = view.status.plan.layout
    if layout is None:
        return ""
    named = {"tensor": layout.tensor, "pipeline": layout.pipeline, "data": layout.data}
    words = [f"{name} {size}" for name, size in named.items() if size > 1]
    return ", ".join([*words, *(["experts spread over all"] if layout.expert else [])])


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
