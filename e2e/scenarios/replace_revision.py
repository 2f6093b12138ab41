"""Bring a MoEDeployment up, ask it something, and replace its revision while clients stream.

Nothing may be lost: not a request, not a stream. The scenario knows a Kubernetes API and the gateway's URL;
which cluster that is, is the backend's business.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from moe_operator.api.names import COMPONENT_ENGINE, LABEL_COMPONENT, LABEL_DEPLOYMENT, gateway_name
from moe_operator.runtime.kube import MOE_DEPLOYMENT, POD, Kube, Obj

from . import chat, report
from .backend import Backend
from .follow import Follower
from .load import Load, Tally
from .report import RankPod
from .screen import Movement, Screen
from .stopwatch import Stopwatch
from .view import View

MANAGER = "kubectl"
SECONDS = 240.0  # for each thing that is waited for
QUESTION = "What is a mixture of experts?"
ANSWER_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Wish:
    """``deployment``: the object to apply; ``next_image``: the engine of the second revision.

    ``clients`` stream from before the change until the old revision is gone, and at least ``requests``.
    """

    deployment: Obj
    next_image: str
    clients: int = 20
    requests: int = 0
    max_tokens: int = 24


@dataclass(slots=True)
class Told:
    """What happened, for tables and tests."""

    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    first: View | None = None
    last: View | None = None
    pods: set[RankPod] = field(default_factory=set)
    left: tuple[RankPod, ...] = ()
    tally: Tally = field(default_factory=lambda: Tally(()))
    switched: float = 0.0

    def findings(self) -> list[str]:
        """What is not as it has to be; empty when all is well."""
        found = [] if self.tally.sent else ["no request was sent"]
        found += self.tally.complaints()
        if self.first is None or self.last is None:
            return [*found, "the story did not come to its end"]
        old, new = self.first.status.active_revision, self.last.status.active_revision
        if old == new or self.last.status.target_revision != new:
            found.append(f"revision {new} serves, {self.last.status.target_revision} was asked for")
        found += [f"no request was answered by {r}" for r in (old, new) if r not in self.tally.by_revision()]
        for view in (self.first, self.last):
            found += misplaced(view, self.pods)
        found += [f"pod {pod.name} of the old revision is left" for pod in self.left if pod.revision != new]
        return found


def misplaced(view: View, pods: set[RankPod]) -> list[str]:
    """Ranks of the active revision that are not where status.placement says, or share a node."""
    revision = view.status.active_revision
    promised = {(p.replica, r.rank): r.node for p in view.placements(revision) for r in p.ranks}
    seen = {(p.replica, p.rank): p.node for p in pods if p.revision == revision}
    found = [] if seen == promised else [f"revision {revision}: promised {promised}, pods are on {seen}"]
    if len(set(promised.values())) < len(promised):
        found.append(f"revision {revision}: ranks share a node: {promised}")
    return found


@dataclass(slots=True)
class Stage:
    """Where the story is told: a cluster, somebody who watches, and what has been told so far."""

    backend: Backend
    screen: Screen
    wish: Wish
    told: Told

    @property
    def name(self) -> str:
        """Of the deployment."""
        return str(self.wish.deployment["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Of the deployment."""
        return str(self.wish.deployment["metadata"].get("namespace", "default"))

    @property
    def model(self) -> str:
        """The id that clients ask for."""
        return str(self.wish.deployment["spec"]["model"].get("name", self.name))

    async def url(self) -> str:
        """Of the gateway."""
        return await self.backend.gateway_url(self.namespace, gateway_name(self.name))

    async def note_pods(self) -> tuple[RankPod, ...]:
        """Remember where the engine pods are."""
        pods = await engine_pods(self.backend.kube, self.namespace, self.name)
        self.told.pods |= set(pods)
        return pods


async def replace_revision(backend: Backend, screen: Screen, wish: Wish, told: Told) -> None:
    """Tell the whole story; ``told`` grows with it. Raises NotReached, NoAnswer or ApiError."""
    stage = Stage(backend, screen, wish, told)
    async with Follower(backend.kube, stage.namespace, stage.name) as follower:
        await _bring_up(stage, follower)
        await _ask(stage)
        await _replace(stage, follower)


async def _bring_up(stage: Stage, follower: Follower) -> None:
    """From the object to a group that serves."""
    spec = stage.wish.deployment["spec"]
    stage.screen.title(f"Apply MoEDeployment {stage.name}: {spec['model']['source']}")
    await stage.backend.kube.apply(stage.wish.deployment, manager=MANAGER)
    view = await _planned(stage, follower, "")
    stage.screen.put(report.plan_table(view))
    revision = view.status.target_revision
    with stage.screen.movement() as movement:
        await _started(stage, follower, revision, movement)
        stage.told.first = await follower.until(
            lambda v: v.settled(revision), "Ready", SECONDS, lambda v: movement.show(v.bars())
        )
    stage.told.stopwatch.part("a completion proves it, the gateways are told")
    await stage.note_pods()
    stage.screen.say(f"revision {revision} serves at {await stage.url()}", "green")


async def _ask(stage: Stage) -> None:
    """One streamed answer, as any program would get it."""
    stage.screen.title(f"Ask it with the openai client: {QUESTION}")
    stage.screen.piece("  ")
    url, screen = await stage.url(), stage.screen
    reply = await chat.ask(url, stage.model, QUESTION, max_tokens=ANSWER_TOKENS, hear=screen.piece)
    stage.told.stopwatch.part("a streamed answer")
    screen.say("")
    screen.say(
        f"{len(reply.pieces)} tokens, the first after {1000 * reply.first_token:.0f} ms, "
        f"finish_reason {reply.finish_reason}, from {reply.fingerprint}",
        "green",
    )
    screen.say("(the engine is a stub: real protocol and weights' bytes, made-up words)", "dim")


async def _replace(stage: Stage, follower: Follower) -> None:
    """Another engine image while clients stream."""
    wish, told, screen = stage.wish, stage.told, stage.screen
    screen.title(f"Change the engine image to {wish.next_image} while {wish.clients} clients stream")
    load = Load(await stage.url(), stage.model, clients=wish.clients, max_tokens=wish.max_tokens)
    async with load:
        await load.reach(wish.clients)
        told.stopwatch.part(f"{wish.clients} clients at work")
        await stage.backend.kube.patch_json(
            MOE_DEPLOYMENT, stage.namespace, stage.name, [_new_image(wish.next_image)]
        )
        view = await _planned(stage, follower, "second revision: ")
        revision = view.status.target_revision
        with screen.movement() as movement:
            await _started(stage, follower, revision, movement)
            await stage.note_pods()
            await follower.until(
                lambda v: v.status.active_revision == revision,
                f"revision {revision} takes over",
                SECONDS,
                lambda v: movement.show(v.bars()),
            )
            told.switched = time.monotonic()
            told.stopwatch.part("a completion proves it, the gateways switch")
            told.last = await follower.until(
                lambda v: v.settled(revision),
                "the old revision is gone",
                SECONDS,
                lambda v: movement.show(v.bars()),
            )
        told.stopwatch.part("old revision finishes its streams and goes")
        await load.reach(wish.requests)
        told.tally = await load.finish()
    told.stopwatch.part("the last streams end")
    told.left = await stage.note_pods()
    screen.say(f"revision {revision} serves, {told.tally.sent} requests went through", "green")


async def _planned(stage: Stage, follower: Follower, which: str) -> View:
    """A plan for the newest spec, and nodes promised to a revision that does not serve yet."""
    view = await follower.until(
        lambda v: v.planned() and v.status.target_revision != v.status.active_revision,
        "a plan and its nodes",
        SECONDS,
        lambda _: None,
    )
    stage.told.stopwatch.part(f"{which}model known, plan made, nodes promised")
    return view


async def _started(stage: Stage, follower: Follower, revision: str, movement: Movement) -> None:
    """Weights on every node of a revision, then all of its ranks."""

    def show(view: View) -> None:
        movement.show(view.bars())

    await follower.until(lambda v: v.staged(revision), "weights on every node", SECONDS, show)
    stage.told.stopwatch.part("weights staged and verified on every node")
    await follower.until(lambda v: v.complete(revision), "every rank ready", SECONDS, show)
    stage.told.stopwatch.part("ranks meet and load")


def _new_image(image: str) -> Obj:
    return {"op": "replace", "path": "/spec/engine/image", "value": image}


async def engine_pods(kube: Kube, namespace: str, deployment: str) -> tuple[RankPod, ...]:
    """The engine pods that there are."""
    labels = f"{LABEL_DEPLOYMENT}={deployment},{LABEL_COMPONENT}={COMPONENT_ENGINE}"
    return tuple(RankPod.of(pod) for pod in (await kube.list(POD, namespace, labels=labels)).items)
