"""What the run concludes from pods, logs and answers: each conclusion can come out the other way."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from moe_operator.api.status import LayoutStatus

from e2e.real_engine import manifest
from e2e.real_engine.asking import Question, longest_silence
from e2e.real_engine.engine_words import RankWords, rank_words
from e2e.real_engine.generated import differences, expected

RECORDINGS = Path(__file__).parents[1] / "data" / "vllm-0.32"
DEPLOYMENT = manifest.deployment("moe-real-engine:1", "vllm-1", "model-1")
LAYOUT = LayoutStatus(tensor=2, nodes=2, gpus_per_node=1)


def pod(rank: int) -> dict[str, Any]:
    labels = {
        "moe-operator.io/revision": "abc",
        "moe-operator.io/replica": "0",
        "moe-operator.io/rank": str(rank),
    }
    found = {
        "metadata": {"name": f"tiny-abc-0-{rank}", "labels": labels},
        "spec": {"containers": [{"name": "engine", "args": ["serve", "/weights/views/77", "--port", "1"]}]},
    }
    command = expected(DEPLOYMENT, LAYOUT, found)
    found["spec"]["containers"][0] |= {
        "command": list(command.command),
        "args": list(command.args),
        "env": [{"name": name, "value": value} for name, value in command.env],
    }
    return found


def test_pods_as_generated_have_no_differences() -> None:
    assert differences(DEPLOYMENT, LAYOUT, [pod(0), pod(1)]) == []


def test_an_argument_more_is_a_difference() -> None:
    changed = pod(0)
    changed["spec"]["containers"][0]["args"].append("--disable-log-stats")
    (found,) = differences(DEPLOYMENT, LAYOUT, [changed, pod(1)])
    assert found.startswith("tiny-abc-0-0: argv is")


def test_ranks_that_changed_places_are_a_difference() -> None:
    leader, worker = pod(0), pod(1)
    swapped = copy.deepcopy(leader)
    swapped["spec"] = worker["spec"]
    assert len(differences(DEPLOYMENT, LAYOUT, [swapped])) == 1


def test_a_variable_with_another_value_is_a_difference() -> None:
    changed = pod(1)
    changed["spec"]["containers"][0]["env"][0]["value"] = "10.0.0.1"
    assert differences(DEPLOYMENT, LAYOUT, [changed]) == [
        "tiny-abc-0-1: VLLM_HOST_IP is '10.0.0.1', not '$(POD_IP)'"
    ]


def test_a_rank_says_with_whom_it_computes() -> None:
    log = (RECORDINGS / "tp2-two-nodes-worker.log").read_text()
    assert rank_words(log) == RankWords(world=2, rank=1, backend="gloo", loaded=True)


def test_a_leader_that_waits_for_its_worker_has_said_nothing_yet() -> None:
    log = (RECORDINGS / "tp2-worker-never-joins.log").read_text()
    words = rank_words(log)
    assert words is None or not words.loaded


def test_silence_is_the_longest_time_between_two_answers() -> None:
    told = [Question(1, ""), Question(2, ""), Question(4, "503"), Question(9, ""), Question(10, "")]
    assert longest_silence(told) == 7


def test_errors_alone_are_no_end_of_silence() -> None:
    assert longest_silence([Question(1, ""), Question(5, "503")]) == 0
