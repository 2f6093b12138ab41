"""Conditions, reasons, quantities and the admin's policy."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from moe_operator.api.conditions import ConditionType, Reason
from moe_operator.api.policy import DEFAULT_STORE, OperatorPolicy
from moe_operator.api.quantity import parse_amount, parse_quantity
from pydantic import ValidationError


def test_every_reason_is_one_word_with_a_meaning_and_a_next_step() -> None:
    for reason in Reason:
        assert reason.isalpha()
        assert reason[0].isupper()
        assert len(reason) <= 64  # status words are that long
        assert reason.meaning.endswith((".", "?")) and "\n" not in reason.meaning
        assert reason.next_step.endswith(".") and "\n" not in reason.next_step


def test_no_two_reasons_are_one_word() -> None:
    assert len({reason.value for reason in Reason}) == len(Reason.__members__)


def test_conditions_that_are_absent_while_false() -> None:
    assert {c for c in ConditionType if c.only_when_true} == {
        ConditionType.RECONCILING,
        ConditionType.STALLED,
    }
    assert ConditionType.READY.meaning.startswith("Clients are served")


def test_reasons_travel_as_plain_strings() -> None:
    assert f"{Reason.PLAN_REFUSED}" == "PlanRefused"
    assert json.dumps({"reason": Reason.PLAN_REFUSED}) == '{"reason": "PlanRefused"}'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("64Gi", 64 * 2**30),
        ("1.5Gi", 3 * 2**29),
        ("2G", 2 * 10**9),
        ("1Ki", 1024),
        ("500m", 1),
        ("1E", 10**18),
    ],
)
def test_quantities_are_whole_units_rounded_up(text: str, value: int) -> None:
    assert parse_quantity(text) == value


def test_cpu_is_exact() -> None:
    assert parse_amount("250m") == Decimal("0.25")


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "-1", "1gi", "1GiB", "١Gi", "1Gi\n"])
def test_what_is_no_quantity_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


def test_an_empty_configuration_is_the_default() -> None:
    policy = OperatorPolicy.from_yaml("")
    assert policy == OperatorPolicy()
    assert policy.cache_classes["nvme"].root == DEFAULT_STORE
    assert policy.image_allowed("anything:1")
    assert policy.source_allowed("https://anywhere/x")
    assert not policy.host_access_allowed


def test_a_configuration_says_what_is_allowed() -> None:
    policy = OperatorPolicy.from_yaml(
        """
        allowedImagePrefixes: [registry.example/, vllm/vllm-openai]
        allowedSourceHosts: ["*.example.com", models.test]
        presets:
          nvl72: {product: NVIDIA-GB200, gpusPerNode: 4, domain: {type: Label, key: nvidia.com/gpu.clique}}
        """
    )
    assert policy.image_allowed("vllm/vllm-openai:v0.33.0")
    assert not policy.image_allowed("docker.example/vllm")
    assert not policy.env_allowed("LD_PRELOAD")
    assert policy.env_allowed("NCCL_DEBUG")
    assert policy.source_allowed("https://a.example.com/x")
    assert policy.source_allowed("https://models.test:8443/x")
    assert not policy.source_allowed("https://example.com.evil.test/x")
    assert not policy.source_allowed("https://notexample.com/x")
    assert policy.source_allowed("pvc://claim/x")
    assert policy.presets["nvl72"].domain.key == "nvidia.com/gpu.clique"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("allowedImagePrefix: [a]", "allowedImagePrefix"),
        ("cacheClasses: {nvme: {root: relative}}", "root"),
        ("cacheClasses: {Bad_Name: {root: /a}}", "Bad_Name"),
        ("presets: {a: {product: X, domain: {type: Label}}}", "domain.key is required"),
    ],
)
def test_a_misspelt_configuration_is_an_error(text: str, field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        OperatorPolicy.from_yaml(text)
