"""Where the node image comes from, what is installed, and whether there is room."""

import pytest

from e2e.cluster.disk import GIB, Need, shortfall
from e2e.cluster.prerequisites import AskUser, Host, Install, missing_packages, plan
from e2e.cluster.source import Source, choose


def choose_when(
    asked: Source | None = None, *, pinned: bool, built: bool, registry: bool
) -> tuple[Source, bool]:
    """The source, and whether a registry was asked."""
    questions: list[bool] = []

    def registry_answers() -> bool:
        questions.append(registry)
        return registry

    choice = choose(asked, pinned_is_here=pinned, built_is_here=built, registry_answers=registry_answers)
    return choice.source, bool(questions)


@pytest.mark.parametrize(
    ("pinned", "built", "registry", "source", "asks"),
    [
        (True, True, True, Source.REGISTRY, False),
        (True, False, False, Source.REGISTRY, False),
        (False, True, True, Source.BUILD, False),
        (False, False, True, Source.REGISTRY, True),
        (False, False, False, Source.BUILD, True),
    ],
)
def test_what_is_on_the_machine_comes_before_what_must_be_fetched(
    pinned: bool, built: bool, registry: bool, source: Source, asks: bool
) -> None:
    assert choose_when(pinned=pinned, built=built, registry=registry) == (source, asks)


@pytest.mark.parametrize("asked", Source)
def test_the_user_has_the_last_word(asked: Source) -> None:
    assert choose_when(asked, pinned=True, built=True, registry=True) == (asked, False)


def test_each_missing_package_is_named_once() -> None:
    wanted = {"dockerd": "docker.io", "docker": "docker.io", "iptables": "iptables"}
    assert missing_packages(wanted, ["iptables"]) == ("docker.io",)
    assert missing_packages(wanted, wanted) == ()


@pytest.mark.parametrize(
    ("host", "installs"),
    [
        (Host(root=True, disposable=True, apt=True), True),
        (Host(root=True, disposable=False, apt=True), False),
        (Host(root=False, disposable=True, apt=True), False),
        (Host(root=True, disposable=True, apt=False), False),
    ],
)
def test_packages_are_installed_only_by_root_on_a_disposable_machine(host: Host, installs: bool) -> None:
    answer = plan(("debootstrap", "docker.io"), host)
    assert isinstance(answer, Install if installs else AskUser)


@pytest.mark.parametrize(
    ("root", "command"), [(True, "  apt-get install"), (False, "  sudo apt-get install")]
)
def test_the_user_is_given_the_exact_command(root: bool, command: str) -> None:
    answer = plan(("debootstrap", "docker.io"), Host(root=root, disposable=False, apt=True))
    assert isinstance(answer, AskUser)
    assert f"{command} --no-install-recommends debootstrap docker.io\n" in answer.message


def test_nothing_missing_needs_no_plan() -> None:
    assert plan((), Host(root=False, disposable=False, apt=False)) is None


def test_needs_on_one_file_system_are_added_up() -> None:
    needs = [Need("/cache", 1, 10 * GIB, 9 * GIB), Need("/docker", 1, 10 * GIB, 6 * GIB)]
    assert shortfall(needs) == "/cache and /docker: 10.0 GiB free, 15.0 GiB needed"


def test_needs_on_two_file_systems_are_looked_at_apart() -> None:
    assert shortfall([Need("/cache", 1, 10 * GIB, 9 * GIB), Need("/docker", 2, 6 * GIB, 6 * GIB)]) == ""
    assert shortfall([Need("/cache", 1, 10 * GIB, 9 * GIB), Need("/docker", 2, 5 * GIB, 6 * GIB)]) == (
        "/docker: 5.0 GiB free, 6.0 GiB needed"
    )
