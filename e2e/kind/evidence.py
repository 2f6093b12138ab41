"""What a person would look at first when something went wrong on the cluster."""

from __future__ import annotations

from collections.abc import Iterator

from e2e.cluster.command import attempt
from e2e.cluster.record import Record
from e2e.kind.release import NAME, NAMESPACE

LOG_LINES = "40"
LOOKS: tuple[tuple[str, ...], ...] = (
    ("get", "nodes", "-o", "wide"),
    ("get", "moed", "-A", "-o", "yaml"),
    ("get", "pods", "-A", "-o", "wide"),
    ("get", "events", "-A", "--sort-by=.lastTimestamp"),
    ("-n", NAMESPACE, "logs", f"deployment/{NAME}", "--all-pods", f"--tail={LOG_LINES}", "--prefix"),
)


def evidence(record: Record, namespace: str = "default") -> str:
    """Objects, events, the operator's last words and those of every pod in ``namespace``."""
    return "\n".join(_parts(record, namespace))


def _parts(record: Record, namespace: str) -> Iterator[str]:
    for look in LOOKS:
        yield _said(record, *look)
    names = attempt(
        record.kubectl, "--kubeconfig", record.kubeconfig, "-n", namespace, "get", "pods", "-o", "name"
    )
    for name in names.out.split():
        yield _said(
            record, "-n", namespace, "logs", name, "--all-containers", "--prefix", f"--tail={LOG_LINES}",
            "--ignore-errors",
        )  # fmt: skip


def _said(record: Record, *arguments: str) -> str:
    outcome = attempt(record.kubectl, "--kubeconfig", record.kubeconfig, *arguments, timeout=30)
    return f"--- kubectl {' '.join(arguments)}\n{outcome.out}{outcome.err}"
