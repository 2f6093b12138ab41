"""The real engine behind the product: it serves, loses a worker, then its leader, and serves again each time.

Knows a Kubernetes API, the gateway's URL and the engines' logs; never helps the group back.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from moe_operator.api.names import (
    COMPONENT_ENGINE,
    LABEL_COMPONENT,
    LABEL_DEPLOYMENT,
    LABEL_RANK,
)
from moe_operator.api.status import GroupStatus
from moe_operator.runtime.kube import POD, Kube, Obj

from e2e.real_engine.asking import Asking, longest_silence
from e2e.real_engine.engine_words import rank_words
from e2e.real_engine.generated import differences
from e2e.real_engine.manifest import LEADER, NAME, NAMESPACE, NODES, WORKER
from e2e.scenarios import chat
from e2e.scenarios.follow import Follower
from e2e.scenarios.replace_revision import MANAGER, misplaced
from e2e.scenarios.report import RankPod
from e2e.scenarios.view import View

SECONDS = 1800.0  # for each thing that is waited for: every rank of a group starts on the same few cores
TOKENS = 32
QUESTION = "What is a mixture of experts?"
ROLES = {LEADER: "leader", WORKER: "worker"}


@dataclass(slots=True)
class Told:
    """What was seen, row by row, and what is not as it has to be."""

    say: Callable[[str], None]
    rows: list[tuple[str, str]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    def row(self, what: str, figure: str) -> None:
        """Something seen."""
        self.rows.append((what, figure))
        self.say(f"{what}: {figure}")


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the story is told."""

    kube: Kube
    gateway_url: Callable[[], Awaitable[str]]
    log_of: Callable[[str], str]  # pod → its engine's log
    deployment: Obj
    told: Told

    async def pods(self) -> dict[int, Obj]:
        """Rank → engine pod."""
        labels = f"{LABEL_DEPLOYMENT}={NAME},{LABEL_COMPONENT}={COMPONENT_ENGINE}"
        found = (await self.kube.list(POD, NAMESPACE, labels=labels)).items
        return {int(pod["metadata"]["labels"][LABEL_RANK]): pod for pod in found}


async def real_engine(stage: Stage) -> None:
    """Tell the whole story. Raises NotReached, NoAnswer, ApiError or TimeoutError."""
    async with Follower(stage.kube, NAMESPACE, NAME) as follower:
        began = time.monotonic()
        await stage.kube.apply(stage.deployment, manager=MANAGER)
        view = await follower.until(_serves(0), "the group serves", SECONDS, lambda _: None)
        stage.told.row("applied → a completion has proved it, Ready", f"{time.monotonic() - began:.1f} s")
        await _examine(stage, view)
        await _ask(stage)
        for rank in (WORKER, LEADER):
            await _lose(stage, follower, rank)


async def _examine(stage: Stage, view: View) -> None:
    """Placement, command lines, and what the ranks say of themselves."""
    told, pods = stage.told, await stage.pods()
    told.findings += misplaced(view, {RankPod.of(pod) for pod in pods.values()})
    layout = view.status.plan.layout
    if layout is None or (layout.tensor, layout.nodes) != (NODES, NODES):
        told.findings.append(f"the plan's layout is {layout}")
    else:
        told.findings += differences(stage.deployment, layout, pods.values())
    for rank, pod in sorted(pods.items()):
        name = pod["metadata"]["name"]
        words = rank_words(stage.log_of(name))
        if words is None or (words.world, words.rank, words.loaded) != (NODES, rank, True):
            told.findings.append(f"{name} says of itself: {words}")
        else:
            told.row(
                f"{ROLES[rank]} {name}",
                f"on {pod['spec'].get('nodeName')}: rank {words.rank} of {words.world} over {words.backend}",
            )


async def _ask(stage: Stage) -> None:
    """One streamed answer through the gateway, as any program would get it."""
    began = time.monotonic()
    reply = await chat.ask(await stage.gateway_url(), NAME, QUESTION, max_tokens=TOKENS, hear=lambda _: None)
    took = time.monotonic() - began
    if not reply.pieces or not reply.finish_reason:
        stage.told.findings.append(
            f"the stream held {len(reply.pieces)} pieces, ended {reply.finish_reason!r}"
        )
    stage.told.row(
        "streamed answer",
        f"{len(reply.pieces)} pieces in {took:.2f} s, the first after {1000 * reply.first_token:.0f} ms, "
        f"finish_reason {reply.finish_reason}",
    )


async def _lose(stage: Stage, follower: Follower, rank: int) -> None:
    """Delete one rank's pod while a client asks, and wait until the group has come back by itself."""
    told, role = stage.told, ROLES[rank]
    before = await stage.pods()
    life = _group(follower.latest).incarnation
    async with Asking(await stage.gateway_url(), NAME) as asking:
        await asking.answer_after(0, SECONDS)
        lost = time.monotonic()
        await stage.kube.delete(POD, NAMESPACE, before[rank]["metadata"]["name"])
        await follower.until(
            lambda v: _group(v).incarnation > life, f"the loss of the {role} is seen", SECONDS, lambda _: None
        )
        told.row(f"{role} deleted → the operator gives the group up", f"{time.monotonic() - lost:.1f} s")
        await follower.until(_runs(life + 1), "every rank of the new life runs", SECONDS, lambda _: None)
        told.row(f"{role} deleted → new engines run on every node", f"{time.monotonic() - lost:.1f} s")
        view = await follower.until(
            _serves(life + 1), f"the group serves without its old {role}", SECONDS, lambda _: None
        )
        ready = time.monotonic()
        answered = await asking.answer_after(ready, SECONDS)
    told.row(f"{role} deleted → Ready again", f"{ready - lost:.1f} s")
    told.row(f"{role} deleted → the client has an answer of the new group", f"{answered - lost:.1f} s")
    errors = [question.error for question in asking.questions if question.error]
    told.row(
        "  meanwhile the client asked on",
        f"{len(asking.questions)} questions, {len(errors)} errors, "
        f"longest time without an answer {longest_silence(asking.questions):.1f} s",
    )
    for error in dict.fromkeys(errors):
        told.row("  it was told", error[:160])
    kept = _uids(before) & _uids(await stage.pods())
    told.findings += [f"pod {uid} of the group that lost its {role} is still there" for uid in kept]
    await _examine(stage, view)


def _serves(incarnation: int) -> Callable[[View], bool]:
    """Whether that life of the only group has answered a completion and nothing else is left to do."""

    def check(view: View) -> bool:
        group = _group(view)
        settled = view.settled(view.status.target_revision)
        return settled and group.verified and group.incarnation == incarnation

    return check


def _runs(incarnation: int) -> Callable[[View], bool]:
    """Whether the engine's container of every rank of that life has started."""

    def check(view: View) -> bool:
        group = _group(view)
        return group.incarnation == incarnation and group.boot_timeline.started is not None

    return check


def _group(view: View | None) -> GroupStatus:
    groups = view.status.groups if view else ()
    return groups[0] if groups else GroupStatus()


def _uids(pods: dict[int, Obj]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods.values()}
