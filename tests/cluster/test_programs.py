from pathlib import Path

import pytest

from e2e.cluster import host, programs
from e2e.cluster.go_binaries import MODULES, language_version
from e2e.cluster.programs import kubectl_fits, version_in


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("kind v0.33.0 go1.26.8 linux/amd64", (0, 33, 0)),
        ("Client Version: v1.32.4-dispatcher\nKustomize Version: v5.5.0", (1, 32, 4)),
        ("v4.3.1+g2a4c3d1", (4, 3, 1)),
        ("go1.26\namd64", (1, 26)),
        ("command not found", None),
    ],
)
def test_a_version_is_found_in_what_programs_print(printed: str, version: tuple[int, ...] | None) -> None:
    assert version_in(printed) == version


@pytest.mark.parametrize(
    ("kubectl", "fits"),
    [((1, 35, 0), True), ((1, 36, 9), True), ((1, 37, 1), True), ((1, 34, 9), False), ((1, 38, 0), False)],
)
def test_kubectl_may_be_one_minor_version_apart(kubectl: tuple[int, ...], fits: bool) -> None:
    assert kubectl_fits(kubectl, (1, 36, 3)) is fits


def test_the_newest_go_that_a_module_asks_for_is_needed() -> None:
    asked = {path.parent.name: language_version(path.read_text()) for path in MODULES.glob("*/go.mod")}
    assert programs.needed_go() == max(asked.values())
    assert len(asked) == 4


def test_uv_is_the_one_on_path_or_else_the_one_that_setup_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, on_path = tmp_path / "own", tmp_path / "bin" / "uv"
    monkeypatch.setattr(host, "PROJECT_UV", own)
    monkeypatch.setattr(host, "SEARCH_PATH", str(on_path.parent))
    assert host.uv() is None
    own.touch()
    assert host.uv() == own
    on_path.parent.mkdir()
    on_path.touch(0o755)
    assert host.uv() == on_path
