"""What Gateways say about a route or pool of ours: why it is not taken, in their own words.

The Gateway of an HTTPRoute is known from its spec and has to answer. Those of an InferencePool are whichever
have an HTTPRoute that leads to it, so at least one has to answer and none may object. An answer about an
older generation is none.
"""

from __future__ import annotations

from collections.abc import Iterable

from moe_operator.reconcile.actions import Obj

CONDITIONS = ("Accepted", "ResolvedRefs")


def objections_to_route(route: Obj) -> Iterable[str]:
    """Why the Gateways of an HTTPRoute do not send by it; nothing when all do."""
    for parent in route["spec"]["parentRefs"]:
        answers = [p for p in _parents(route) if _is_of(p["parentRef"], parent, route)]
        if not answers:
            yield f"{_name(parent, route)} has not answered"
        for answer in answers:
            yield from _objections(answer, route)


def objections_to_pool(pool: Obj) -> Iterable[str]:
    """Why Gateways do not send to an InferencePool; nothing when all that know it do."""
    answers = _parents(pool)
    if not answers:
        name = pool["metadata"]["name"]
        yield f"no Gateway has answered: an HTTPRoute has to lead to InferencePool {name}"
    for answer in answers:
        yield from _objections(answer, pool)


def _parents(obj: Obj) -> list[Obj]:
    return (obj.get("status") or {}).get("parents") or []


def _is_of(answered: Obj, asked: Obj, route: Obj) -> bool:
    here = route["metadata"]["namespace"]
    place = [(ref["name"], ref.get("namespace", here), ref.get("sectionName")) for ref in (answered, asked)]
    return place[0] == place[1]


def _objections(answer: Obj, about: Obj) -> Iterable[str]:
    name = _name(answer["parentRef"], about)
    conditions = {c["type"]: c for c in answer.get("conditions") or ()}
    for kind in CONDITIONS:
        condition = conditions.get(kind)
        if condition is None or condition.get("observedGeneration", 0) < about["metadata"]["generation"]:
            yield f"{name}: {kind} is not known yet"
        elif condition["status"] != "True":
            said = f"{condition['reason']}: {condition.get('message', '')}"
            yield f"{name}: {kind} is {condition['status']}: {said}"


def _name(parent: Obj, about: Obj) -> str:
    return f"Gateway {parent.get('namespace') or about['metadata']['namespace']}/{parent['name']}"
