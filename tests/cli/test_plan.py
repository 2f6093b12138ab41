"""kubectl moe plan: what it prints, what it exits with, what it says about bad input."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from moe_operator.cli.kubectl import main

from tests.planning.known_models import CONFIGS

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "manifests" / "examples").glob("*.yaml"))
GOLDEN = Path(__file__).parent / "golden"
K3_CONFIG = CONFIGS / "moonshotai--Kimi-K3.config.json"
K3_BYTES = 1_560_860_324_864
HARDWARE = ["--gpu", "NVIDIA-H20", "--nodes", "4"]


def plan(*args: object) -> Result:
    return CliRunner().invoke(main, ["plan", *map(str, args)], catch_exceptions=False)


def document(*args: object) -> dict[str, Any]:
    return dict(json.loads(plan(*args, "-o", "json").stdout))


def assert_text(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_planned_offline(example: Path) -> None:
    result = plan("-f", example)
    assert result.exit_code == 0, result.output
    assert_text(example.stem, result.stdout)


def test_a_refusal_says_what_why_and_the_way_out_and_exits_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CONFIGS)
    result = plan(
        "--config", K3_CONFIG.name, "--weights-bytes", K3_BYTES, *HARDWARE, "--tensor", 8, "--data", 4,
        "--decode-context", 1, "--max-model-len", 1_048_576,
    )  # fmt: skip
    assert result.exit_code == 2
    assert_text("refused", result.stdout)


def test_plain_ascii_where_a_terminal_knows_no_more() -> None:
    result = plan("-f", ROOT / "manifests" / "examples" / "kimi-k3-4x8-h20.yaml", "--ascii")
    assert result.stdout.isascii()
    assert "TP8.DP4.EP32 over 4 x 8" in result.stdout


def test_json_is_versioned_and_complete() -> None:
    found = document(
        "--config", K3_CONFIG, "--weights-bytes", K3_BYTES, *HARDWARE, "--max-num-batched-tokens", 4096
    )
    assert found["schema"] == "moe.plan/v1" and found["verdict"] == "Fits"
    assert found["layout"]["summary"] == "TP8·DP4·EP32 on 4×8"
    assert 64 << 30 <= found["perRank"]["weightsBytes"] <= 66 << 30
    rows = {row["name"]: row["bytes"] for row in found["perRank"]["rows"]}
    assert rows["routed experts"] == 28 * 17_547_264 * 92 and "KV cache" in rows
    assert found["kvBytesPerToken"] == 27_648
    assert found["maxModelLen"] and found["maxConcurrency"]
    assert found["refusals"] == [] and found["assumptions"]
    assert {"TP8·PP4 on 4×8"} <= {option["layout"]["summary"] for option in found["alternatives"]}
    assert found["answers"]["gpus_while_replacing"] == 64
    assert found["model"]["weightsBytes"] == K3_BYTES


def test_yaml_says_the_same() -> None:
    asked = ("--config", K3_CONFIG, *HARDWARE)
    assert yaml.safe_load(plan(*asked, "-o", "yaml").stdout) == document(*asked)


def test_flags_go_before_the_object() -> None:
    example = ROOT / "manifests" / "examples" / "kimi-k3-4x8-h20.yaml"
    assert document("-f", example)["maxModelLen"] == 131_072
    assert document("-f", example, "--max-model-len", 4096)["maxModelLen"] == 4096
    assert document("-f", example, "--nodes", 5)["layout"]["nodes"] == 5


def test_assumed_constants_can_be_overridden_and_are_shown() -> None:
    asked = ("--config", K3_CONFIG, *HARDWARE)
    more = document(*asked, "--assume", "runtime_bytes=8e9")
    assert more["assumedConstants"]["runtime_bytes"] == 8_000_000_000
    assert more["stages"][0]["kvCacheBytes"] < document(*asked)["stages"][0]["kvCacheBytes"]


def test_arguments_that_contradict_the_spec_are_refused(tmp_path: Path) -> None:
    example = yaml.safe_load((ROOT / "manifests" / "examples" / "qwen3-235b-1x8-h100.yaml").read_text())
    example["spec"]["engine"]["args"] = ["--tensor-parallel-size=4"]
    (tmp_path / "cr.yaml").write_text(yaml.safe_dump(example))
    result = plan("-f", tmp_path / "cr.yaml")
    assert result.exit_code == 2 and "ARG_CONTRADICTS_SPEC" in result.stdout


def config_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.json"
    path.write_text(text)
    return path


DENSE = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100,
         "num_attention_heads": 8, "intermediate_size": 128}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (K3_CONFIG.read_text()[:3000], "is not JSON, or was cut off"),
        ("hello", "is not JSON"),
        ("[]", "holds no JSON object"),
        ("{}", "names no architecture"),
        ('{"architectures": ["DeepseekV3ForCausalLM"]}', "does not say num_hidden_layers"),
        (
            json.dumps({**DENSE, "num_hidden_layers": 10**9}),
            "num_hidden_layers = 1000000000 is not a plausible",
        ),
        (json.dumps(DENSE), "is a dense model"),
    ],
)
def test_a_config_nobody_can_use_is_one_line_and_exit_1(tmp_path: Path, text: str, words: str) -> None:
    assert_error(plan("--config", config_file(tmp_path, text), *HARDWARE), words)


def assert_error(result: Result, words: str) -> None:
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("Error: ") and words in lines[0]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "give a MoEDeployment with -f, or --config with --gpu"),
        (("--config", K3_CONFIG), "give the GPU with --gpu"),
        (("--config", K3_CONFIG, "--gpu", "NVIDIA-H19", "--nodes", 4), "GPU NVIDIA-H19 is not known"),
        (("--config", K3_CONFIG, "--gpu", "NVIDIA-H20", "--nodes", 0), "0 is not in the range"),
        (("--config", K3_CONFIG, *HARDWARE, "--tensor", "x"), "'x' is not a valid integer"),
        (("--config", "/nowhere/config.json", *HARDWARE), "does not exist"),
        (("--config", K3_CONFIG, *HARDWARE, "--assume", "magic=1"), "the names are runtime_bytes"),
        (("--config", K3_CONFIG, *HARDWARE, "--weights-bytes", 10_000), "not of the same model"),
        (("--bogus",), "No such option"),
    ],
    ids=str,
)
def test_a_question_that_cannot_be_answered_is_one_line_and_exit_1(
    args: tuple[object, ...], words: str
) -> None:
    assert_error(plan(*args), words)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ('{"metadata": {"total_size": 5000000000}}', "not of the same model"),
        ('{"weight_map": {}}', "states no plausible metadata.total_size"),
        ('{"metadata": {"total_size": "big"}}', "states no plausible metadata.total_size"),
        ('{"metadata": ', "is not JSON, or was cut off"),
    ],
)
def test_an_index_that_does_not_belong_is_one_line_and_exit_1(tmp_path: Path, index: str, words: str) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(index)
    assert_error(plan("--config", K3_CONFIG, "--index", path, *HARDWARE), words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not YAML"),
        ("kind: Pod", "holds no MoEDeployment"),
        ("kind: MoEDeployment\nmetadata: {name: x}\n", "apiVersion"),
    ],
)
def test_an_object_nobody_can_use_is_one_line_and_exit_1(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "cr.yaml"
    path.write_text(text)
    assert_error(plan("-f", path), words)


def test_a_model_that_is_not_in_the_catalogue_names_the_ways_to_give_its_facts(tmp_path: Path) -> None:
    example = yaml.safe_load((ROOT / "manifests" / "examples" / "qwen3-235b-1x8-h100.yaml").read_text())
    example["spec"]["model"]["source"] = "hf://somebody/Unheard-Of"
    (tmp_path / "cr.yaml").write_text(yaml.safe_dump(example))
    assert_error(plan("-f", tmp_path / "cr.yaml"), "give --config and --index, or --read-source")


def test_help_lists_the_command() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert "plan" in result.output and result.exit_code == 0
