import pytest

from e2e.cluster.recovery import Course, Seen, Verdict, judge

NAMES = ("moe-control-plane", "moe-worker", "moe-worker2")
WANTED = "d1"


def seen(recorded: str | None = WANTED, ready: bool | None = True, **states: str) -> Seen:
    """Three running, ready nodes, except for what is said (worker="exited")."""
    containers = {name: states.get(name.removeprefix("moe-").replace("-", "_"), "running") for name in NAMES}
    return Seen(containers, recorded, None if ready is None else dict.fromkeys(NAMES, ready))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Seen(), Verdict(Course.CREATE, "there is no cluster")),
        (seen(), Verdict(Course.REUSE, "every node is Ready")),
        (seen(recorded=None), Verdict(Course.RECREATE, "its creation was never finished")),
        (seen(recorded="d0"), Verdict(Course.RECREATE, "it was made from another configuration")),
        (
            seen(worker="exited", worker2="paused"),
            Verdict(Course.REVIVE, "stopped: moe-worker, moe-worker2", ("moe-worker",), ("moe-worker2",)),
        ),
        (
            seen(worker="dead", worker2="exited"),
            Verdict(Course.RECREATE, "half removed: moe-worker is dead"),
        ),
        (seen(worker="removing"), Verdict(Course.RECREATE, "half removed: moe-worker is removing")),
        (
            seen(control_plane="created"),
            Verdict(Course.RECREATE, "half removed: moe-control-plane is created"),
        ),
        (seen(ready=None), Verdict(Course.REVIVE, "its API server does not answer yet")),
        (seen(ready=False), Verdict(Course.REVIVE, f"not Ready: {', '.join(NAMES)}")),
    ],
)
def test_every_morning_has_one_course(found: Seen, expected: Verdict) -> None:
    assert judge(WANTED, len(NAMES), found) == expected


def test_a_cluster_that_lost_a_node_is_made_again() -> None:
    two = Seen(dict.fromkeys(NAMES[:2], "running"), WANTED, dict.fromkeys(NAMES[:2], True))
    assert judge(WANTED, 3, two) == Verdict(Course.RECREATE, "2 of 3 nodes are left")


def test_a_node_that_the_api_server_does_not_know_is_not_ready() -> None:
    found = Seen(dict.fromkeys(NAMES, "running"), WANTED, dict.fromkeys(NAMES[:2], True))
    assert judge(WANTED, 3, found) == Verdict(Course.REVIVE, "not Ready: moe-worker2")


def test_a_half_removed_cluster_is_never_started_even_if_its_record_fits() -> None:
    verdict = judge(WANTED, 3, seen(worker="dead", worker2="exited"))
    assert (verdict.start, verdict.unpause) == ((), ())
