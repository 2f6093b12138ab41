"""What a person watching a deployment wants to be told, and only when it is news.

:func:`facts` says everything about one moment as ``subject → sentence``; :func:`news` the sentences that
the moment before did not have.
"""

from __future__ import annotations

from collections.abc import Mapping

from moe_operator.runtime.kube import Obj

STAGING_STEP_PERCENT = 10


def facts(deployment: Obj) -> dict[str, str]:
    """Subject → sentence, in the order in which a deployment comes up."""
    status = deployment.get("status") or {}
    found: dict[str, str] = {}
    for condition in status.get("conditions") or ():
        if condition["status"] != "Unknown" or condition.get("message"):
            found[f"condition {condition['type']}"] = _condition(condition)
    for placement in status.get("placement") or ():
        nodes = ", ".join(f"{r['rank']}→{r['node']}" for r in placement.get("ranks") or ())
        found[f"placement {_group(placement)}"] = f"placed {_group(placement)}: {nodes}"
    for entry in status.get("staging") or ():
        found[f"staging {entry['node']}"] = _staging(entry)
    ranks = {_group(p): len(p.get("ranks") or ()) for p in status.get("placement") or ()}
    for group in status.get("groups") or ():
        total = ranks.get(_group(group), 0)
        ready = f"{group.get('readyRanks', 0)}/{total} ranks ready" if total else "no nodes"
        found[f"group {_group(group)}"] = f"group {_group(group)}: {group.get('phase', 'Pending')}, {ready}"
    if active := status.get("activeRevision"):
        found["active"] = f"revision {active} serves"
    return found


def news(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Sentences that are new or have changed."""
    return [sentence for subject, sentence in now.items() if before.get(subject) != sentence]


def is_true(deployment: Obj, kind: str) -> bool:
    """Whether a condition holds for the newest generation of the spec."""
    meta, status = deployment["metadata"], deployment.get("status") or {}
    return status.get("observedGeneration") == meta.get("generation") and any(
        c["type"] == kind and c["status"] == "True" for c in status.get("conditions") or ()
    )


def _condition(condition: Obj) -> str:
    text = f"{condition['type']}={condition['status']} {condition.get('reason', '')}"
    message = condition.get("message") or ""
    return f"{text}: {message}" if message else text


def _group(entry: Obj) -> str:
    return f"{entry.get('revision', '')}/{entry.get('replica', 0)}"


def _staging(entry: Obj) -> str:
    """Percent in steps, so that a terminal shows movement and not every byte."""
    node, phase, total = entry["node"], entry.get("phase", "Pending"), entry.get("bytesTotal") or 0
    done = 100 * (entry.get("bytesDone") or 0) // total if total else 0
    percent = done - done % STAGING_STEP_PERCENT
    return f"staging {node}: {phase}" + (f" {percent} %" if total else "")
