from __future__ import annotations

import pytest
from moe_operator.engines.known import ENGINES
from moe_operator.engines.launch import args_conflict, canonical_flag

VLLM, SGLANG = ENGINES["vLLM"], ENGINES["SGLang"]
GENERATED = ("/weights/views/v", "--tensor-parallel-size", "8", "--gpu-memory-utilization", "0.92")


@pytest.mark.parametrize(
    ("arg", "flag"),
    [
        ("--tensor-parallel-size", "--tensor-parallel-size"),
        ("--tensor-parallel-size=4", "--tensor-parallel-size"),
        ("--tensor_parallel_size=4", "--tensor-parallel-size"),
        ("-tp", "--tensor-parallel-size"),
        ("-tp=4", "--tensor-parallel-size"),
        ("--no-enable-prefix-caching", "--enable-prefix-caching"),
        ("--seed", "--seed"),
    ],
)
def test_one_flag_has_one_name(arg: str, flag: str) -> None:
    assert canonical_flag(VLLM, arg) == flag


@pytest.mark.parametrize(
    "args",
    [
        ["--tensor-parallel-size", "4"],
        ["--tensor_parallel_size=4"],
        ["-tp", "4"],
        ["--seed", "1", "-dp=2"],
        ["--port", "9000"],
        ["--host=127.0.0.1"],
        ["--headless"],
        ["--max-model-len", "4096"],
        ["--no-enable-prefix-caching"],
        ["--enable-expert-parallel"],
        ["--model", "other"],
        ["--api-key", "secret"],
    ],
)
def test_vllm_args_that_are_ours_are_refused_by_name(args: list[str]) -> None:
    refusal = args_conflict(VLLM, args, GENERATED)
    assert refusal is not None and refusal.code == "ARG_CONTRADICTS_SPEC"
    mine = next(a.split("=")[0] for a in args if a.startswith("-") and "seed" not in a)
    assert repr(mine) in refusal.message and canonical_flag(VLLM, mine) in refusal.message


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--seed", "1"],
        ["--compilation-config", '{"mode": 3}'],
        ["--max-log-len", "100"],  # only begins like a reserved one
        ["--data-parallel-backend", "mp"],
        ["8"],
    ],
)
def test_what_the_spec_has_no_field_for_is_passed_on(args: list[str]) -> None:
    assert args_conflict(VLLM, args, GENERATED) is None


@pytest.mark.parametrize(
    "args",
    [["--tp", "4"], ["--tp-size=4"], ["--dp", "2"], ["--ep", "2"], ["--model", "x"], ["--nnodes", "2"]],
)
def test_sglang_spells_them_in_its_own_way(args: list[str]) -> None:
    assert args_conflict(SGLANG, args, ()) is not None


@pytest.mark.parametrize("args", [["--moe-a2a-backend", "deepep"], ["--attention-backend=fa3"]])
def test_sglang_takes_the_rest(args: list[str]) -> None:
    assert args_conflict(SGLANG, args, ()) is None


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_an_alias_is_of_a_flag_that_is_ours(engine: object) -> None:
    assert set(engine.aliases.values()) <= engine.reserved  # type: ignore[attr-defined]
