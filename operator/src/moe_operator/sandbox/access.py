"""Who may do what over HTTP: one administrator, and service accounts as their Roles say.

RBAC as far as namespaced Roles go: a request is allowed when some Role bound to the account has a rule
with its verb, API group and resource; ``resourceNames`` narrow it to objects of that name, and a list or
watch has a name only by ``fieldSelector=metadata.name=…``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from moe_operator.runtime import kube
from moe_operator.runtime.kube import Obj
from moe_operator.sandbox.api_server import MemoryApi


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """The identity behind a pod's token."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.name}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """What somebody wants to do; ``resource`` is ``plural`` or ``plural/subresource``."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str = ""


def allowed(api: MemoryApi, account: ServiceAccount, attempt: Attempt) -> bool:
    """Whether a Role in the attempt's namespace grants it."""
    return any(_grants(rule, attempt) for rule in _rules(api, account, attempt.namespace))


def _rules(api: MemoryApi, account: ServiceAccount, namespace: str) -> Iterator[Obj]:
    roles = {stored.key[1]: stored.obj for stored in api.select(kube.ROLE, namespace)}
    for binding in api.select(kube.ROLE_BINDING, namespace):
        if any(_is(subject, account, namespace) for subject in binding.obj.get("subjects", ())):
            yield from roles.get(binding.obj["roleRef"]["name"], {}).get("rules", ())


def _is(subject: Obj, account: ServiceAccount, namespace: str) -> bool:
    return bool(
        subject.get("kind") == "ServiceAccount"
        and subject.get("name") == account.name
        and subject.get("namespace", namespace) == account.namespace
    )


def _grants(rule: Obj, attempt: Attempt) -> bool:
    names = rule.get("resourceNames")
    return (
        _covers(rule.get("verbs", ()), attempt.verb)
        and _covers(rule.get("apiGroups", ()), attempt.group)
        and _covers(rule.get("resources", ()), attempt.resource)
        and (not names or attempt.name in names)
    )


def _covers(listed: list[str], wanted: str) -> bool:
    return "*" in listed or wanted in listed
