"""What cannot start says so in the real engine's words and with its exit code (recordings fail-*.log)."""

import shutil

import pytest

from .fleet import RECORDINGS, faults


@pytest.fixture
def copy(tiny, tmp_path):
    """A checkpoint to damage."""
    target = tmp_path / "model"
    shutil.copytree(tiny, target)
    return target


def recorded(name: str, text: str) -> str:
    """The first recorded line that holds ``text``."""
    return next(line for line in (RECORDINGS / name).read_text().splitlines() if text in line)


def last_shard(model):
    return sorted(model.glob("*.safetensors"))[-1]


def test_an_unknown_flag(fleet, tiny):
    stub = fleet.vllm(tiny, "--no-such-flag")
    assert stub.exit_code() == 2
    lines = (RECORDINGS / "fail-bad-flag.log").read_text().splitlines()[1:-1]
    assert [line.rstrip() for line in stub.log.splitlines()] == [line.rstrip() for line in lines]


def test_a_value_that_is_no_number(fleet, tiny):
    stub = fleet.vllm(tiny, "--max-model-len", "long")
    assert stub.exit_code() == 2
    assert "vllm serve: error: argument --max-model-len: invalid" in stub.log


def test_heads_that_do_not_divide(fleet, tiny):
    stub = fleet.vllm(tiny, "--tensor-parallel-size", "3")
    assert stub.exit_code() == 1
    line = next(
        one
        for one in (RECORDINGS / "fail-heads-tp3.log").read_text().splitlines()
        if "attention heads" in one
    )
    assert line in stub.log


def test_a_context_that_is_too_long(fleet, tiny):
    stub = fleet.vllm(tiny, "--max-model-len", "99999")
    assert stub.exit_code() == 1
    line = next(
        one for one in (RECORDINGS / "fail-too-long.log").read_text().splitlines() if "Value error" in one
    )
    assert line in stub.log


def test_no_model(fleet, tmp_path):
    stub = fleet.start("vllm", "serve", "/nonexistent", "--host", "{address}")
    cause = (RECORDINGS / "fail-no-model.log").read_text().splitlines()[-2]
    assert stub.exit_code() == 1
    assert stub.log.splitlines()[-1] == cause


def test_a_truncated_config(fleet, copy):
    text = (copy / "config.json").read_text()
    (copy / "config.json").write_text(text[:300])
    stub = fleet.vllm(copy)
    assert stub.exit_code() == 1
    cause = (RECORDINGS / "fail-truncated-config.log").read_text().splitlines()[-2]
    assert stub.log.splitlines()[-1] == cause.replace("'badcfg/", f"'{copy}/")


def test_a_missing_shard(fleet, copy):
    last_shard(copy).unlink()
    stub = fleet.vllm(copy)
    assert stub.exit_code() == 1
    name = f"{copy}/model-00002-of-00002.safetensors"
    assert f"FileNotFoundError: Weight files referenced in index but missing: {{'{name}'}}" in stub.log
    assert stub.log.splitlines()[-1] == (RECORDINGS / "fail-missing-shard.log").read_text().splitlines()[-2]


def test_a_truncated_shard(fleet, copy):
    shard = last_shard(copy)
    shard.write_bytes(shard.read_bytes()[:-100])
    stub = fleet.vllm(copy)
    assert stub.exit_code() == 1
    assert recorded("fail-truncated-shard.log", "SafetensorError").split("] ", 1)[1] in stub.log


def test_an_altered_shard(fleet, copy):
    shard = last_shard(copy)
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    stub = fleet.vllm(copy)
    assert stub.exit_code() == 1
    assert f"ValueError: {shard} was altered" in stub.log


def test_a_cache_that_is_too_small(fleet, tiny):
    stub = fleet.vllm(
        tiny, "--max-model-len", "4096", "--num-gpu-blocks-override", "2", "--block-size", "128"
    )
    assert stub.exit_code() == 1
    recorded = (RECORDINGS / "fail-kv-too-small.log").read_text().splitlines()
    cause = next(one for one in recorded if "ERROR" in one and "ValueError: To serve" in one).split("] ", 1)[
        1
    ]
    assert cause in stub.log
    assert stub.log.splitlines()[-1] == next(
        one for one in recorded if one.startswith("RuntimeError: Engine core")
    )


def test_a_model_larger_than_its_gpus(fleet, deepseek):
    flags = ("--tensor-parallel-size", "8", "--max-model-len", "4096")
    stub = fleet.vllm(deepseek, *flags, STUB_GPU_MEMORY_GIB="79.6")  # an H100
    assert stub.exit_code() == 1
    assert "No available memory for the cache blocks" in stub.log


def test_more_ranks_than_gpus(fleet, tiny):
    stub = fleet.vllm(tiny, "--tensor-parallel-size", "2", STUB_GPUS="1")
    assert stub.exit_code() == 1
    assert "World size (2) is larger than the number of available GPUs (1) in this node" in stub.log


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("cuda_oom", "torch.OutOfMemoryError: CUDA out of memory."),
        ("kv_cache_none", "ValueError: No available memory for the cache blocks."),
        ("kv_cache_small", "ValueError: To serve at least one request with the model's max seq len (1024)"),
        ("gpu_busy", "ValueError: Free memory on device cuda:0 (12.1/95.6 GiB) on startup is less than"),
        ("worker_proc_died", "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down"),
    ],
)
def test_f03_load_exit(fleet, tiny, kind, text):
    stub = fleet.vllm(
        tiny, "--max-model-len", "1024", STUB_FAULTS=faults({"id": "F03", "params": {"kind": kind}})
    )
    assert stub.exit_code() == 1
    assert text in stub.log
    assert "Engine core initialization failed. See root cause above." in stub.log.splitlines()[-1]


def test_f05_bad_flag(fleet, tiny):
    stub = fleet.vllm(tiny, STUB_FAULTS=faults({"id": "F05", "params": {"flag": "--foo"}}))
    assert stub.exit_code() == 2
    assert "error: unrecognized arguments: --foo" in stub.log


def test_a_fault_that_does_not_exist_is_refused(fleet, tiny):
    stub = fleet.vllm(tiny, STUB_FAULTS=faults({"id": "F99"}))
    assert stub.exit_code() == 64
    assert "unknown fault" in stub.log


def test_the_first_starts_only(fleet, tiny, tmp_path):
    trigger = {"first_n_starts": 2, "counter_file": str(tmp_path / "starts")}
    ordered = faults({"id": "F03", "params": {"kind": "cuda_oom"}, "trigger": trigger})
    codes = [fleet.vllm(tiny, STUB_FAULTS=ordered).exit_code() for _ in range(2)]
    assert codes == [1, 1]
    fleet.vllm(tiny, STUB_FAULTS=ordered).ready()
