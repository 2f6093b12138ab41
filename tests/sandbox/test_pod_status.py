from __future__ import annotations

from pathlib import Path

import pytest
from moe_operator.sandbox.api import MemoryApi, MemoryKube
from moe_operator.sandbox.environment import ConfigMissing, PodFacts, field_value, resolve
from moe_operator.sandbox.pod_status import (
    ContainerView,
    Running,
    State,
    Terminated,
    Waiting,
    phase,
    pod_status,
)
from moe_operator.sandbox.probes import Verdicts
from moe_operator.sandbox.volumes import write_atomically

from tests.sandbox.objects import container, pod

NOW = 1_800_000_000.0
WAITS, RUNS = Waiting("PodInitializing"), Running(NOW)
WELL, BADLY = Terminated(0, "Completed", NOW, NOW), Terminated(3, "Error", NOW, NOW)


def view(state: State, *, done: bool = False, last: Terminated | None = None, **more: bool) -> ContainerView:
    return ContainerView("main", "sh", state, last=last, done=done, **more)


@pytest.mark.parametrize(
    ("inits", "containers", "expected"),
    [
        ([], [view(WAITS)], "Pending"),
        ([], [view(RUNS)], "Running"),
        ([], [view(RUNS), view(WAITS)], "Pending"),
        ([], [view(RUNS), view(WELL, done=True)], "Running"),
        ([], [view(Waiting("CrashLoopBackOff"), last=BADLY)], "Running"),
        ([], [view(WELL)], "Running"),  # it will run again
        ([], [view(WELL, done=True)], "Succeeded"),
        ([], [view(WELL, done=True), view(BADLY, done=True)], "Failed"),
        ([view(RUNS)], [view(WAITS)], "Pending"),
        ([view(BADLY)], [view(WAITS)], "Pending"),  # it will be tried again
        ([view(BADLY, done=True)], [view(WAITS)], "Failed"),
        ([view(WELL, done=True)], [view(RUNS)], "Running"),
        ([view(RUNS, sidecar=True)], [view(WAITS)], "Pending"),
        ([view(RUNS, sidecar=True, started=True)], [view(RUNS)], "Running"),
        ([view(WELL, sidecar=True, started=True, done=True)], [view(WELL, done=True)], "Succeeded"),
    ],
)
def test_the_phase_follows_from_the_containers(
    inits: list[ContainerView], containers: list[ContainerView], expected: str
) -> None:
    assert phase(inits, containers) == expected


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    def status(ready: bool, now: float, before: dict[str, object]) -> dict[str, object]:
        made = {**pod("p"), "status": before}
        shown = [view(RUNS, ready=ready)]
        return pod_status(made, [], shown, pod_ip="127.60.0.5", host_ip="127.60.0.2", started_at=NOW, now=now)

    def when(status: dict[str, object], kind: str) -> str:
        conditions = status["conditions"]
        assert isinstance(conditions, list)
        return str(next(c for c in conditions if c["type"] == kind)["lastTransitionTime"])

    first = status(False, NOW, {})
    second = status(False, NOW + 60, first)
    third = status(True, NOW + 120, second)
    assert when(first, "Ready") == when(second, "Ready") != when(third, "Ready")
    assert when(first, "Initialized") == when(third, "Initialized")


@pytest.mark.parametrize(
    ("answers", "states"),
    [
        ([True], [True]),
        ([False, False], [None, None]),
        ([False, False, False], [None, None, False]),
        ([True, False, False, True, False, False, False], [True, True, True, True, True, True, False]),
    ],
)
def test_thresholds_count_answers_in_a_row(answers: list[bool], states: list[bool | None]) -> None:
    verdicts = Verdicts.of({})
    seen = []
    for answer in answers:
        verdicts.count(answer)
        seen.append(verdicts.state)
    assert seen == states


def test_fields_of_the_downward_api() -> None:
    facts = PodFacts(pod_ip="127.60.0.5", host_ip="127.60.0.2")
    made = pod("p", labels={"b": "2", "a": "1"})
    assert field_value(made, "status.podIP", facts) == "127.60.0.5"
    assert field_value(made, "metadata.labels['a']", facts) == "1"
    assert field_value(made, "metadata.labels['none']", facts) == ""
    assert field_value(made, "metadata.labels", facts) == 'a="1"\nb="2"'
    with pytest.raises(ConfigMissing, match=r"unsupported fieldPath: spec\.containers"):
        field_value(made, "spec.containers", facts)


async def test_resources_and_earlier_variables_reach_the_environment() -> None:
    reference = {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Gi"}}
    asks = container(
        resources={"limits": {"memory": "1500Mi"}},
        env=[
            {"name": "MEMORY", "valueFrom": reference},
            {"name": "SAID", "value": "$(MEMORY) GiB, $(LATER)"},
            {"name": "LATER", "value": "x"},
        ],
    )
    facts = PodFacts(pod_ip="127.60.0.5", host_ip="127.60.0.2")
    seen = await resolve(MemoryKube(MemoryApi()), pod("p", asks), asks, facts)
    assert seen == {"MEMORY": "2", "SAID": "2 GiB, $(LATER)", "LATER": "x"}


def test_a_directory_of_files_changes_by_one_rename_and_only_when_it_must(tmp_path: Path) -> None:
    where = tmp_path / "volume"
    write_atomically(where, {"a": b"1", "deep/b": b"2"})
    first = (where / "..data").readlink()
    write_atomically(where, {"a": b"1", "deep/b": b"2"})
    assert (where / "..data").readlink() == first
    write_atomically(where, {"a": b"9", "c": b"3"})
    assert (where / "..data").readlink() != first
    shown = {p.name: p.read_bytes() for p in where.iterdir() if not p.name.startswith("..")}
    assert shown == {"a": b"9", "c": b"3"}
    assert len([p for p in where.iterdir() if p.name.startswith("..0")]) == 1
    write_atomically(where, {})
    assert [p for p in where.iterdir() if not p.name.startswith("..")] == []
