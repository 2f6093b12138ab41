"""What starts each rank, as golden files: one for each way of spreading a model over nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from moe_operator.api.spec import MoESpec
from moe_operator.engines.known import ENGINES
from moe_operator.engines.launch import Launch, RankCommand
from moe_operator.planning.plan import Layout

from tests.golden import assert_golden

GOLDEN = Path(__file__).parent / "golden"
EVERYTHING: dict[str, Any] = {
    "maxModelLen": 131072,
    "maxNumSeqs": 64,
    "maxNumBatchedTokens": 8192,
    "kvCacheDtype": "FP8",
    "memoryUtilization": "0.85",
    "chunkedPrefill": False,
    "prefixCaching": False,
    "expertBalancing": {"enabled": True, "redundantExperts": 16},
    "speculative": {"method": "mtp", "tokens": 2},
    "args": ["--seed", "7"],
}


@dataclass(frozen=True)
class Case:
    layout: Layout
    engine: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)


CASES = {
    "one-node": Case(Layout(8, 1, 1, False, 1, 8)),
    "one-node-experts": Case(Layout(8, 1, 1, True, 1, 8)),
    "data-parallel-in-a-node": Case(Layout(1, 1, 8, True, 1, 8)),
    "data-parallel-over-nodes": Case(Layout(8, 1, 4, True, 4, 8)),
    "two-data-ranks-a-node": Case(Layout(4, 1, 4, True, 2, 8)),
    "pipeline-over-nodes": Case(Layout(8, 2, 1, True, 2, 8)),
    "tensor-over-nodes": Case(Layout(16, 1, 1, False, 2, 8)),
    "decode-context": Case(Layout(8, 1, 1, False, 1, 8, decode_context=4)),
    "every-setting": Case(Layout(8, 1, 1, True, 1, 8), EVERYTHING, {"trustRemoteCode": True}),
}


def launch(kind: str, case: Case) -> Launch:
    spec = {
        "model": {"source": "hf://org/model@main", **case.model},
        "engine": {"type": kind, "image": "engine:1", **case.engine},
        "accelerators": {"product": "NVIDIA-H20"},
        "startup": {"timeoutSeconds": 3600},
        "rollout": {"drainSeconds": 120},
    }
    leader = "m-abc-0-0.m-abc-0.team.svc"
    return Launch(MoESpec.model_validate(spec), case.layout, "/weights/views/v", "served", leader)


def commands(kind: str, case: Case) -> list[RankCommand]:
    ranks = range(case.layout.nodes)
    return [ENGINES[kind].rank_command(launch(kind, case), rank) for rank in ranks]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ENGINES)
def test_the_ranks_start_with_these_command_lines(kind: str, name: str) -> None:
    said = [
        {"argv": " ".join([*c.command, *c.args]), "env": dict(c.env)} for c in commands(kind, CASES[name])
    ]
    assert_golden(GOLDEN / kind.lower() / f"{name}.yaml", said)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ENGINES)
def test_user_arguments_come_last_and_no_flag_is_given_twice(kind: str, name: str) -> None:
    case = Case(CASES[name].layout, {**CASES[name].engine, "args": ["--mine", "1"]})
    for command in commands(kind, case):
        assert command.args[-2:] == ("--mine", "1")
        flags = [a for a in command.args if a.startswith("--")]
        assert len(flags) == len(set(flags))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ENGINES)
def test_every_generated_flag_is_reserved(kind: str, name: str) -> None:
    """What we may set on some rank of some layout, a user may set on none."""
    engine = ENGINES[kind]
    case = CASES[name]
    settings = {k: v for k, v in case.engine.items() if k != "args"}
    for command in commands(kind, Case(case.layout, settings, case.model)):
        for arg in command.args:
            if arg.startswith("--"):
                assert arg.replace("--no-", "--") in engine.reserved, arg


def test_only_the_leader_of_vllm_opens_http() -> None:
    leader, *workers = commands("vLLM", CASES["data-parallel-over-nodes"])
    assert "--headless" not in leader.args and "--port" in leader.args
    assert all("--headless" in w.args and "--port" not in w.args for w in workers)
    assert [w.args[w.args.index("--data-parallel-start-rank") + 1] for w in workers] == ["1", "2", "3"]


def test_every_rank_meets_the_leader_under_one_address() -> None:
    for kind in ENGINES:
        for name in ("data-parallel-over-nodes", "pipeline-over-nodes"):
            for command in commands(kind, CASES[name]):
                assert sum("m-abc-0-0.m-abc-0.team.svc" in arg for arg in command.args) == 1
