"""What service accounts asked of the API server, from its audit log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from e2e.cluster.command import run

LOG_FILES = "/var/log/kubernetes/audit*.log"


@dataclass(frozen=True, slots=True)
class Asked:
    """One kind of request: who, verb, resource (with its subresource) and what became of it."""

    account: str  # namespace:name
    verb: str
    resource: str
    allowed: bool
    created: bool


@dataclass(frozen=True, slots=True)
class Interval:
    """A time that is of interest, or that is not."""

    begin: datetime
    end: datetime

    def holds(self, moment: datetime) -> bool:
        return self.begin <= moment <= self.end


def now() -> datetime:
    """By the clock that the API server shares with us."""
    return datetime.now(UTC)


def asked(since: datetime, without: Iterable[Interval]) -> set[Asked]:
    """Every kind of request from ``since`` on, those of some intervals left out."""
    left_out = list(without)
    events = (event for at, event in _events(since) if not any(each.holds(at) for each in left_out))
    return {each for event in events if (each := parse(event))}


def moments(account: str, verb: str, target: tuple[str, str, str], since: datetime) -> list[datetime]:
    """When an account sent such requests from ``since`` on; ``target``: namespace, resource, name."""
    asker, (namespace, resource, name) = f"system:serviceaccount:{account}", target
    wanted = {"namespace": namespace, "resource": resource, "name": name}
    return [
        at
        for at, event in _events(since)
        if (event["user"]["username"], event["verb"]) == (asker, verb)
        and wanted.items() <= (event.get("objectRef") or {}).items()
    ]


def _events(since: datetime) -> Iterator[tuple[datetime, dict[str, Any]]]:
    """The log is written in the container and rolled over there, so all of its files are read."""
    for line in run("docker", "exec", "moe-control-plane", "sh", "-c", f"cat {LOG_FILES}").splitlines():
        event = json.loads(line)
        at = datetime.fromisoformat(event["requestReceivedTimestamp"])
        if at >= since:
            yield at, event


def parse(event: dict[str, object]) -> Asked | None:
    """None for what names no object, such as discovery."""
    target, user = event.get("objectRef"), event["user"]
    status, notes = event.get("responseStatus") or {}, event.get("annotations") or {}
    if not isinstance(target, dict) or not isinstance(user, dict):
        return None
    assert isinstance(status, dict) and isinstance(notes, dict)
    resource = "/".join(filter(None, (target["resource"], target.get("subresource"))))
    return Asked(
        account=str(user["username"]).removeprefix("system:serviceaccount:"),
        verb=str(event["verb"]),
        resource=resource,
        allowed=notes.get("authorization.k8s.io/decision") == "allow",
        created=status.get("code") == 201,
    )


def used(asked: Iterable[Asked], account: str) -> set[tuple[str, str]]:
    """(verb, resource) that an account needed; an apply that made an object needs both its verbs."""
    mine = [each for each in asked if each.account == account]
    return {(each.verb, each.resource) for each in mine} | {
        ("create", each.resource) for each in mine if each.verb == "patch" and each.created
    }
