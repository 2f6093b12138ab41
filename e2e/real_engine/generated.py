"""Whether running engine pods carry the command lines that ``engines/vllm.py`` makes, and nothing else.

The real engine is only worth asking when it was started the way every engine is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from moe_operator.api.names import LABEL_RANK, LABEL_REPLICA, LABEL_REVISION, PATH_STORE, leader_address
from moe_operator.api.spec import MoEDeployment
from moe_operator.api.status import LayoutStatus
from moe_operator.engines.launch import Launch, RankCommand
from moe_operator.engines.vllm import VLLM
from moe_operator.planning.plan import Layout

Obj = dict[str, Any]


def differences(deployment: Obj, layout: LayoutStatus, pods: Iterable[Obj]) -> list[str]:
    """What pods have otherwise than the engine's module generates it; empty when nothing."""
    return [found for pod in pods for found in _of(pod, expected(deployment, layout, pod))]


def expected(deployment: Obj, layout: LayoutStatus, pod: Obj) -> RankCommand:
    """The command of the pod's rank; only the digest of the weights' view is taken from the pod."""
    wish, labels = MoEDeployment.parse(deployment), pod["metadata"]["labels"]
    replica = int(labels[LABEL_REPLICA])
    launch = Launch(
        spec=wish.spec,
        layout=Layout(
            layout.tensor, layout.pipeline, layout.data, layout.expert, layout.nodes, layout.gpus_per_node,
            layout.decode_context,
        ),
        model_path=f"{PATH_STORE}/views/{_view(pod)}",
        served_name=wish.spec.model.name or wish.name,
        leader=leader_address(wish.name, labels[LABEL_REVISION], replica, wish.namespace),
    )  # fmt: skip
    return VLLM.rank_command(launch, int(labels[LABEL_RANK]))


def _of(pod: Obj, command: RankCommand) -> list[str]:
    engine, name = _engine(pod), pod["metadata"]["name"]
    argv = [*engine.get("command", ()), *engine.get("args", ())]
    wanted = [*command.command, *command.args]
    found = [] if argv == wanted else [f"{name}: argv is {argv}, generated is {wanted}"]
    env = {variable["name"]: variable.get("value") for variable in engine.get("env", ())}
    return found + [f"{name}: {k} is {env.get(k)!r}, not {v!r}" for k, v in command.env if env.get(k) != v]


def _view(pod: Obj) -> str:
    model = str(next(arg for arg in _engine(pod)["args"] if arg.startswith("/")))
    return model.rpartition("/")[2]


def _engine(pod: Obj) -> Obj:
    return next(c for c in pod["spec"]["containers"] if c["name"] == "engine")
