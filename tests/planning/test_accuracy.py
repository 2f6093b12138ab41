"""The planner against public runs: what docs/planner-accuracy.md tells is measured here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import moe_operator
import pytest

from tests.planning import accuracy
from tests.planning.known_cases import cases, explained, filled_in, roles
from tests.planning.known_models import models

PACKAGE = Path(moe_operator.__file__).parent


@pytest.mark.parametrize("size", list(accuracy.published_sizes()), ids=lambda size: size.subject)
def test_shapes_of_the_config_give_the_published_size_within_one_percent(size: accuracy.Size) -> None:
    assert size.agrees


def test_every_disagreement_is_explained_and_every_explanation_is_needed() -> None:
    off = {size.key for size in accuracy.sizes() if not size.agrees}
    late = {found.key for found in accuracy.placed() if not found.early}
    assert off | late == set(explained())


def test_few_numbers_disagree() -> None:
    runs = list(accuracy.measured_sizes())
    assert sum(size.agrees for size in runs) >= 29 and len(runs) >= 33


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


def test_few_cases_are_not_judged_and_no_two_for_the_same_reason() -> None:
    reasons = [case.unjudged for case in cases() if case.unjudged]
    assert len(cases()) == 93 and len(reasons) <= 29
    assert len(set(reasons)) == len(reasons)


def test_what_is_filled_in_is_for_a_case_and_says_why() -> None:
    known = {case.id for case in cases()}
    assert set(filled_in()) <= known
    decisive = {"gpu_memory_utilization", "kv_cache_dtype", "engine_version", "max_model_len", "all_to_all"}
    for name, inputs in filled_in().items():
        if decisive & set(inputs):
            assert inputs.get("why") or inputs.get("unjudged"), name


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
