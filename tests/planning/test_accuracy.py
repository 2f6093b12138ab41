"""The planner against public runs: what docs/planner-accuracy.md tells is measured here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import moe_operator
import pytest

from tests.planning import accuracy
from tests.planning.known_cases import cases, explained, roles
from tests.planning.known_models import models

PACKAGE = Path(moe_operator.__file__).parent


@pytest.mark.parametrize("size", list(accuracy.published_sizes()), ids=lambda size: size.subject)
def test_shapes_of_the_config_give_the_published_size_within_one_percent(size: accuracy.Size) -> None:
    assert size.agrees or size.key in explained()


@pytest.mark.parametrize("size", list(accuracy.measured_sizes()), ids=lambda size: size.key)
def test_numbers_of_public_runs_are_met_within_their_tolerance(size: accuracy.Size) -> None:
    assert size.agrees or size.key in explained()


def test_few_numbers_need_an_explanation_and_every_explanation_is_needed() -> None:
    off = {size.key for size in accuracy.sizes() if not size.agrees}
    late = {found.key for found in accuracy.placed() if not found.early}
    assert off | late == set(explained())
    assert len(off) <= 5


def test_kv_bytes_per_token_are_exact_wherever_they_are_stated() -> None:
    stated = [s for s in accuracy.measured_sizes() if s.what.startswith("KV bytes per token")]
    assert len(stated) >= 2
    assert all(s.planned == s.published for s in stated)


def test_runs_that_work_are_not_refused() -> None:
    judged = [o for o in accuracy.outcomes() if o.case.works and o.answer]
    assert len(judged) >= 35
    assert sum(o.agrees for o in judged) >= 0.97 * len(judged)


def test_failures_that_facts_decide_are_refused_with_the_right_code() -> None:
    judged = [o for o in accuracy.outcomes() if not o.case.works and o.answer]
    assert len(judged) >= 20
    assert sum(o.agrees for o in judged) >= 0.9 * len(judged)


def test_every_kind_of_failure_that_the_rules_know_occurs() -> None:
    met = {o.case.kind for o in accuracy.outcomes() if not o.case.works and o.agrees}
    assert met == set(accuracy.CODES)


def test_a_case_that_is_not_judged_says_why() -> None:
    for case in cases():
        if case.model not in models() and not case.unjudged:
            pytest.fail(f"{case.id}: {case.model} is not known")
        assert case.unjudged != "" or case.raw["status"] in {"works", "fails"}


def test_benchmarked_layouts_are_valid_and_ranked_early() -> None:
    found = accuracy.placed()
    assert len(found) == len(roles()) == 104
    assert sum(p.valid for p in found) >= 0.97 * len(found)
    assert sum(p.early for p in found) >= 0.8 * len(found)


def test_the_page_is_up_to_date() -> None:
    assert accuracy.DOC.read_text() == accuracy.document(), "run python -m tests.planning.accuracy"


def test_planning_and_rules_know_no_model_by_name() -> None:
    """Architectures are named in the checkpoint readers only; comments and docstrings may cite models."""
    names = {part.lower() for name in models() for part in (name.split("/")[-1],)}
    families = re.compile(
        r"kimi|deepseek|qwen|glm|minimax|nemotron|gpt.?oss|llama|mixtral|step.?3|gemma", re.I
    )
    for room in ("planning", "engines", "hardware", "placement", "reconcile"):
        for path in (PACKAGE / room).rglob("*.py"):
            for text in _strings(path):
                assert not families.search(text), f"{path.name}: {text!r}"
                assert text.lower() not in names


def _strings(path: Path) -> list[str]:
    """String constants of the code, without docstrings."""
    tree = ast.parse(path.read_text())
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare
    ]
