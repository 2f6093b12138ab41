"""The pages beside the chart name what there is."""

from __future__ import annotations

import re

from moe_operator.api.policy import CacheClass, Images, NetworkPolicies, OperatorPolicy

from e2e.chart import render
from e2e.chart.generate import FILLED_IN
from e2e.images.recipes import RECIPES

PAGE = (render.REPOSITORY / "docs" / "install.md").read_text(encoding="utf-8")


def first_cells(heading: str) -> list[str]:
    """First column of the table below a heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| (?!---)([^|]+?) \|", section, re.MULTILINE)[1:]


def test_every_key_of_the_policy_is_explained() -> None:
    keys = {cell.strip("`").split(".")[0] for cell in first_cells("The policy is the admin's")}
    assert keys == {f.alias for f in OperatorPolicy.model_fields.values()}
    explained = {cell.strip("`").split(".")[-1] for cell in first_cells("The policy is the admin's")}
    for model in (CacheClass, Images, NetworkPolicies):
        members = {f.alias for f in model.model_fields.values()} - set(FILLED_IN.get(model.__name__, ()))
        assert members <= explained


def test_every_image_is_explained() -> None:
    assert {cell.strip("`") for cell in first_cells("Images")} == {r.image for r in RECIPES.values()}


def test_every_resource_of_the_operators_roles_is_explained() -> None:
    cells = first_cells("What the operator may do")
    explained = {word.strip(" /") for cell in cells for word in re.split(r"[,;]", cell)}
    explained = {word.split(" in its own")[0] for word in explained} - {"in its own namespace"}
    roles = [
        o
        for o in render.objects()
        if o["kind"] in {"Role", "ClusterRole"} and not o["metadata"]["name"].endswith(("-view", "-edit"))
    ]
    granted = {r.split("/")[-1] for o in roles for rule in o["rules"] for r in rule["resources"]}
    assert {word.split("/")[-1] for word in explained} == granted
