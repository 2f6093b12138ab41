from pathlib import Path

import pytest

from e2e.cluster import go_binaries
from e2e.cluster.go_binaries import BINARIES, MODULES, binary_key, build_flags, required
from e2e.cluster.inputs import key

GO_MOD = """\
module example

go 1.26.3

require github.com/alone v0.1.0

require (
	k8s.io/kubernetes v1.36.3
	k8s.io/kubernetes-extra v9.9.9 // indirect
)
"""


@pytest.mark.parametrize(
    ("path", "version"), [("k8s.io/kubernetes", "v1.36.3"), ("github.com/alone", "v0.1.0")]
)
def test_a_version_is_read_from_go_mod(path: str, version: str) -> None:
    assert required(GO_MOD, path) == version


def test_a_module_that_is_not_required_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"k8s\.io/api"):
        required(GO_MOD, "k8s.io/api")


def test_the_language_version_is_compared_as_numbers() -> None:
    assert go_binaries.language_version(GO_MOD) == (1, 26, 3)
    assert go_binaries.language_version("go 1.9\n") < go_binaries.language_version("go 1.26\n")


@pytest.mark.parametrize("binary", BINARIES.values(), ids=lambda binary: binary.name)
def test_every_program_is_pinned_with_checksums(binary: go_binaries.Binary) -> None:
    text = go_binaries.go_mod(binary.module)
    if binary.sources:
        assert "package main" in (binary.sources / "main.go").read_text()
    else:
        assert f"\t{binary.package}\n" in text or f"tool {binary.package}\n" in text
    assert (MODULES / binary.module / "go.sum").stat().st_size > 0


def test_every_staging_module_is_replaced_by_the_release_of_the_pinned_kubernetes() -> None:
    text = go_binaries.go_mod("kubernetes")
    replaced = [line.split() for line in text.splitlines() if " => " in line]
    staging = "v0." + go_binaries.kubernetes_version().removeprefix("v1.")
    assert len(replaced) == 33
    assert {(path == twin, version) for path, _, twin, version in replaced} == {(True, staging)}


def test_the_kubernetes_programs_say_their_version() -> None:
    flags = " ".join(build_flags(BINARIES["kubelet"], "v1.36.3"))
    for stamp in ("gitVersion=v1.36.3", "gitMajor=1", "gitMinor=36"):
        assert f"-X k8s.io/component-base/version.{stamp}" in flags
    assert "gitVersion" not in " ".join(build_flags(BINARIES["etcd"], "v1.36.3"))


def test_containerd_is_built_without_the_snapshotters_that_need_c() -> None:
    flags = build_flags(BINARIES["containerd"], "v1.36.3")
    assert flags[flags.index("-tags") + 1].split(",") == ["no_btrfs", "no_devmapper", "no_zfs", "no_aufs"]


def test_a_program_has_another_key_with_another_compiler_or_architecture() -> None:
    kind = BINARIES["kind"]
    keys = {
        binary_key(kind, "go1.26.8", "amd64"),
        binary_key(kind, "go1.26.9", "amd64"),
        binary_key(kind, "go1.26.8", "arm64"),
    }
    assert len(keys) == 3


def test_a_programs_key_follows_its_go_mod_and_its_own_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keys() -> tuple[str, str]:
        return tuple(binary_key(BINARIES[name], "go1.26.8", "amd64") for name in ("kubelet", "pause"))  # type: ignore[return-value]

    kubernetes = tmp_path / "kubernetes"
    (kubernetes / "pause").mkdir(parents=True)
    for name in ("go.mod", "go.sum", "pause/main.go"):
        (kubernetes / name).write_bytes((MODULES / "kubernetes" / name).read_bytes())
    expected = keys()
    monkeypatch.setattr(go_binaries, "MODULES", tmp_path)
    assert keys() == expected

    (kubernetes / "pause/main.go").write_text("package main\n")
    kubelet, pause = keys()
    assert kubelet == expected[0]
    assert pause != expected[1]

    (kubernetes / "go.sum").write_text("")
    assert keys()[0] != kubelet


def test_a_key_does_not_depend_on_order_and_cannot_be_confused_by_moved_bytes() -> None:
    assert key({"a": "1", "b": "2"}) == key({"b": b"2", "a": b"1"})
    assert key({"a": "12", "b": ""}) != key({"a": "1", "b": "2"})
    assert key({"ab": "c"}) != key({"a": "bc"})
