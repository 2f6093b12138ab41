"""``kubectl moe weights``: how far each node is with a model's files, and what stays on its disk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

import click

from moe_operator.api.conditions import ConditionType, Reason
from moe_operator.api.quantity import human_bytes
from moe_operator.api.status import StagingStatus, Status, StoreStatus
from moe_operator.cli.cluster_view import Kubectl, NoCluster

HEAD = ("NODE", "PHASE", "DONE", "OF", "%", "RATE", "LEFT", "REUSED", "FROM PEERS")
VIEW_SHOWN = 12  # digits of a digest that tell views apart


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name")
@click.option("-n", "--namespace", metavar="NS", help="Namespace of the deployment.")
@click.option("--context", "kube_context", metavar="NAME", help="kubectl's context.")
@click.option(
    "-o", "--output", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
def weights(name: str, namespace: str | None, kube_context: str | None, form: str) -> None:
    """Show how far each node is with the files of NAME, and what it keeps.

    Exit status: 0 all nodes of the wanted revision hold every byte, 3 not yet, 1 NAME cannot be read.
    """
    kubectl = Kubectl(("--context", kube_context) if kube_context else ())
    try:
        found = kubectl.deployment(name, namespace)
    except NoCluster as error:
        raise click.ClickException(str(error)) from None
    status = Status.model_validate(found.get("status") or {})
    if form == "json":
        click.echo(json.dumps(as_document(status), indent=2))
    else:
        click.echo("\n".join(as_text(name, status)))
    staged = status.condition(ConditionType.WEIGHTS_STAGED)
    if not (staged and staged.status == "True"):
        raise SystemExit(3)


def as_document(status: Status) -> dict[str, object]:
    """The parts of the status that are about files."""
    whole = status.to_dict()
    kind = ConditionType.WEIGHTS_STAGED
    conditions = [c for c in whole.get("conditions", ()) if c["type"] == kind]
    return {
        "model": whole.get("model", {}),
        "condition": conditions[0] if conditions else {},
        "staging": whole.get("staging", []),
        "stores": whole.get("stores", []),
    }


def as_text(name: str, status: Status) -> Iterator[str]:
    """Lines for people."""
    model, staged = status.manifest, status.condition(ConditionType.WEIGHTS_STAGED)
    yield f"Model    {model.source or 'not read yet'}"
    if model.resolved:
        view = model.view_digest[:VIEW_SHOWN]
        yield f"         {model.resolved}, {human_bytes(model.total_bytes)}, view {view}"
    if staged:
        yield f"Staged   {staged.status}: {staged.reason}: {staged.message}".rstrip(": ")
        step = next((r.next_step for r in Reason if r == staged.reason), "None.")
        if staged.status != "True" and step != "None.":
            yield f"         {step}"
    if status.staging:
        yield ""
        yield from _table([HEAD, *map(_cells, status.staging)])
        yield from (f"{row.node}: {row.reason}: {row.message}" for row in status.staging if row.reason)
    if status.stores:
        yield ""
        yield "On disk"
        yield from _table([("NODE", "CLASS", "LAST READ", "VIEWS"), *map(_store_cells, status.stores)])
        yield from (f"{s.node}: {text}" for s in status.stores for text in _troubles(s))


def _store_cells(store: StoreStatus) -> tuple[str, ...]:
    views = ", ".join(view[:VIEW_SHOWN] for view in store.views)
    return (store.node, store.cache_class, store.scrubbed_at or "not yet", views)


def _troubles(store: StoreStatus) -> Iterator[str]:
    """What people should know about a disk."""
    if store.message:
        yield store.message
    if store.scrub_message:
        yield f"not read again: {store.scrub_message}"
    if store.corrupt_at:
        said = f"{human_bytes(store.corrupt_bytes)} altered on the disk, found {store.corrupt_at}"
        yield f"{said}, to be fetched again: {', '.join(store.corrupt)}"


def _cells(row: StagingStatus) -> tuple[str, ...]:
    percent = f"{100 * row.bytes_done // row.bytes_total}" if row.bytes_total else ""
    rate = f"{human_bytes(row.rate_bytes_per_second)}/s" if row.rate_bytes_per_second else ""
    return (
        row.node,
        row.phase,
        human_bytes(row.bytes_done),
        human_bytes(row.bytes_total),
        percent,
        rate,
        _duration(row.eta_seconds),
        human_bytes(row.bytes_reused) if row.bytes_reused else "",
        human_bytes(row.bytes_from_peers) if row.bytes_from_peers else "",
    )


def _duration(seconds: int | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def _table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    every = [tuple(row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*every, strict=True)]
    for row in every:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
