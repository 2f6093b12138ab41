"""Nodes that meet over TCP, and what becomes of a group that loses one (recordings tp2-*, leader-*)."""

import signal
import threading

import httpx
import pytest

from .fleet import PORT, RECORDINGS, faults, question, until


def span(leader: str, node: int, nodes: int = 2, tensor: int = 2, pipeline: int = 1) -> list[str]:
    return [
        "--tensor-parallel-size", str(tensor), "--pipeline-parallel-size", str(pipeline),
        "--nnodes", str(nodes), "--node-rank", str(node), "--master-addr", leader, "--master-port", "29501",
        "--max-model-len", "1024",
    ]  # fmt: skip


def pair(fleet, model, *, faults_of_leader: str = "[]", **environment):
    """(leader, worker) of a ready group that splits every layer over two nodes."""
    leader = fleet.start(
        "vllm", "serve", str(model), "--served-model-name", "tiny", "--host", "{address}",
        "--port", str(PORT), *span("{address}", 0), STUB_FAULTS=faults_of_leader, **environment,
    )  # fmt: skip
    worker = fleet.headless(model, *span(leader.address, 1), **environment)
    leader.ready()
    until(lambda: worker.state().get("phase") == "serve", "the worker to serve")
    return leader, worker


def test_a_group_over_two_addresses_serves(fleet, tiny):
    leader, worker = pair(fleet, tiny)
    assert leader.chat().status_code == 200
    assert "rank 0 in world size 2 is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 0" in leader.log
    assert "rank 1 in world size 2 is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 1" in worker.log
    assert worker.health() is None


def test_headless_lines_are_the_recorded_ones(fleet, tiny):
    _, worker = pair(fleet, tiny)
    recorded = (RECORDINGS / "tp2-two-nodes-worker.log").read_text()
    for text in (
        "Inferred data_parallel_rank 0 from node_rank 1",
        "headless multiproc executor, with head node address",
        "for torch.distributed process group.",
        "Starting to load model",
    ):
        assert text in recorded
        assert text in worker.log


def test_a_worker_that_starts_first_waits_for_its_leader(fleet, tiny, tmp_path):
    worker = fleet.headless(tiny, *span("127.30.251.1", 1))
    until(lambda: worker.state().get("phase") == "rendezvous", "the worker to look for its leader")
    leader = fleet.vllm(tiny, *span("127.30.251.1", 0), VLLM_HOST_IP="127.30.251.1")
    leader.ready()


def test_a_node_may_come_back_while_the_group_is_forming(fleet, tiny):
    leader = fleet.vllm(tiny, *span("{address}", 0, nodes=3, tensor=1, pipeline=3))
    flags = span(leader.address, 1, nodes=3, tensor=1, pipeline=3)
    first = fleet.headless(tiny, *flags)
    until(lambda: leader.state().get("joined") == 2, "the first to join")
    first.kill()
    until(lambda: leader.state().get("joined") == 1, "the leader to notice")
    fleet.headless(tiny, *flags)
    fleet.headless(tiny, *span(leader.address, 2, nodes=3, tensor=1, pipeline=3))
    leader.ready()
    assert leader.chat().status_code == 200


def test_a_leader_alone_waits_without_a_listener(fleet, tiny):
    """As in tp2-worker-never-joins.log; SIGTERM then ends it."""
    leader = fleet.vllm(tiny, *span("{address}", 0))
    until(lambda: leader.state().get("joined") == 1, "the leader to wait")
    assert leader.health() is None
    leader.terminate()
    assert leader.exit_code() == 130
    last = (RECORDINGS / "tp2-worker-never-joins.log").read_text().splitlines()[-1].split("] ", 1)[1]
    assert last in leader.log


def test_a_lost_worker_is_noticed_by_the_next_completion_only(fleet, tiny):
    leader, worker = pair(fleet, tiny)
    worker.kill()
    until(lambda: leader.running and leader.health() == 200, "health to stay good")
    answer = leader.chat()
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "InternalServerError")
    assert leader.exit_code() == 0
    recorded = (RECORDINGS / "tp2-worker-killed-leader.log").read_text(errors="replace")
    for text in (
        "WorkerProc hit an exception.",
        "Connection closed by peer",
        "EngineCore encountered a fatal error.",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
    ):
        assert text in recorded
        assert text in leader.log


def test_health_is_200_while_a_completion_hangs_then_503_while_others_get_500(fleet, tiny):
    leader, worker = pair(fleet, tiny, STUB_TIME_SCALE="0.5")
    worker.kill()
    hanging = threading.Thread(target=leader.chat)
    hanging.start()
    until(lambda: leader.state().get("running") == 1, "a hanging completion")
    assert leader.health() == 200
    until(lambda: leader.health() == 503, "health to turn bad")
    assert leader.chat().status_code == 500
    hanging.join()
    assert leader.exit_code() == 0


def test_a_stream_cut_by_a_lost_worker_ends_with_an_error_frame(fleet, tiny):
    leader, worker = pair(fleet, tiny, STUB_ITL_MS="50")
    asked = question(max_tokens=500, stream=True, ignore_eos=True)
    with leader.client.stream("POST", "/v1/chat/completions", json=asked) as stream:
        lines = stream.iter_lines()
        next(lines)
        worker.kill()
        rest = [line for line in lines if line]
    assert '"code":500' in rest[-2]
    assert rest[-1] == "data: [DONE]"


def test_a_headless_worker_outlives_its_leader_and_ignores_sigterm(fleet, tiny):
    """As in leader-killed-during-start.txt: only SIGKILL ends it."""
    leader, worker = pair(fleet, tiny)
    leader.kill()
    until(lambda: worker.state().get("orphaned"), "the worker to lose its leader")
    worker.terminate()
    worker.says("Parent process exited, terminating worker queues")
    assert worker.running
    worker.process.send_signal(signal.SIGKILL)
    assert worker.exit_code() == 137


def test_a_leader_killed_while_loading_leaves_its_worker_too(fleet, tiny):
    leader = fleet.vllm(tiny, *span("{address}", 0), STUB_LOAD_SECONDS="3600")
    worker = fleet.headless(tiny, *span(leader.address, 1), STUB_LOAD_SECONDS="0")
    until(lambda: leader.state().get("phase") == "load", "the leader to load")
    leader.kill()
    until(lambda: worker.state().get("orphaned"), "the worker to lose its leader")
    worker.terminate()
    recorded = (RECORDINGS / "leader-killed-during-start-worker.log").read_text()
    for text in ("waiting for worker exit count=1", "Parent process exited, terminating worker queues"):
        assert text in recorded
        worker.says(text)
    assert worker.running


def test_sigterm_ends_a_headless_worker_whose_leader_lives(fleet, tiny):
    leader, worker = pair(fleet, tiny)
    worker.terminate()
    assert worker.exit_code() == 0
    assert leader.chat().status_code == 500
    assert leader.exit_code() == 0


def test_a_worker_whose_weights_are_bad_takes_the_start_down(fleet, tiny, tmp_path):
    (tmp_path / "model").mkdir()
    for file in tiny.iterdir():
        if file.name != "model-00002-of-00002.safetensors":
            (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
    leader = fleet.vllm(tiny, *span("{address}", 0))
    worker = fleet.headless(tmp_path / "model", *span(leader.address, 1))
    assert (worker.exit_code(), leader.exit_code()) == (1, 1)
    assert "Weight files referenced in index but missing" in worker.log
    assert "Connection closed by peer" in leader.log


def test_a_node_that_is_already_there_is_refused(fleet, tiny):
    leader, worker = pair(fleet, tiny)
    second = fleet.headless(tiny, *span(leader.address, 1))
    assert second.exit_code() == 1
    assert "stub: rank 1 already registered" in second.log
    assert leader.chat().status_code == 200
    assert worker.running


@pytest.mark.parametrize("other", [["--max-model-len", "512"], ["--tensor-parallel-size", "4"]])
def test_a_node_of_another_configuration_is_refused(fleet, tiny, other):
    leader = fleet.vllm(tiny, *span("{address}", 0))
    stranger = fleet.headless(tiny, *span(leader.address, 1), *other)
    assert stranger.exit_code() == 1
    assert "!= leader" in stranger.log
    assert leader.running


def test_data_parallel_ranks_meet_on_the_rpc_port(fleet, tiny):
    common = ["--data-parallel-size", "4", "--data-parallel-size-local", "2", "--enable-expert-parallel"]
    meeting = ["--data-parallel-rpc-port", "13345", "--max-model-len", "1024"]
    leader = fleet.vllm(tiny, *common, *meeting, "--data-parallel-address", "{address}")
    leader.says("Waiting for 0 local, 2 remote core engine proc(s) to connect.")
    worker = fleet.headless(
        tiny, *common, *meeting, "--data-parallel-address", leader.address, "--data-parallel-start-rank", "2"
    )
    leader.ready()
    line = "Launching {} data parallel engine(s) in headless mode, with head node address tcp://"
    assert line.format(1) in (RECORDINGS / "dp-ep-headless.log").read_text()
    assert line.format(2) in worker.log
    assert "rank 3 in world size 4 is assigned as DP rank 3" in worker.log
    for _ in range(4):
        assert leader.chat().status_code == 200
    page = leader.client.get("/metrics").text
    done = [f'vllm:generation_tokens_total{{engine="{rank}",model_name="tiny"}} 8.0' for rank in range(4)]
    assert all(line in page for line in done)
    worker.kill()
    assert leader.chat().status_code == 500
    assert leader.exit_code() == 1


def test_pipeline_stages_report_the_memory_of_their_layers(fleet, deepseek):
    settings = {"STUB_GPU_MEMORY_GIB": "95.58"}
    leader = fleet.vllm(deepseek, *span("{address}", 0, tensor=8, pipeline=2), **settings)
    worker = fleet.headless(deepseek, *span(leader.address, 1, tensor=8, pipeline=2), **settings)
    leader.ready()
    first, second = leader.state()["memory"], worker.state()["memory"]
    assert [one["rank"] for one in (*first, *second)] == list(range(16))
    assert len({one["weightBytes"] for one in first}) == 1
    assert 38 < first[0]["weightBytes"] / 2**30 < 39
    assert 40 < second[0]["weightBytes"] / 2**30 < 42
    assert "(Worker_PP1_TP7 pid=" in worker.log
    assert "Model loading took 40." in worker.log


def test_f10_never_join_and_f14_rendezvous_timeout(fleet, tiny):
    leader = fleet.vllm(
        tiny,
        *span("{address}", 0),
        STUB_FAULTS=faults({"id": "F14", "params": {"s": 600}}),
        STUB_TIME_SCALE="0.005",
    )
    worker = fleet.headless(tiny, *span(leader.address, 1), STUB_FAULTS=faults({"id": "F10", "ranks": [1]}))
    assert leader.exit_code() == 1
    text = "DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined."
    assert f"torch.distributed.{text}" in leader.log
    assert worker.running


def test_a_worker_gives_up_on_a_leader_that_never_comes(fleet, tiny):
    worker = fleet.headless(
        tiny, *span("127.30.251.2", 1), "--distributed-timeout-seconds", "20", STUB_TIME_SCALE="0.05"
    )
    assert worker.exit_code() == 1
    assert (
        "The client socket has timed out after 20000ms while trying to connect to (127.30.251.2" in worker.log
    )


def test_f20_a_lost_peer_hangs_the_group_for_ever(fleet, tiny):
    leader, worker = pair(fleet, tiny, faults_of_leader=faults({"id": "F20"}))
    worker.kill()
    leader.says("Did the remote server shutdown or crash?")
    with pytest.raises(httpx.ReadTimeout):
        leader.client.post("/v1/chat/completions", json=question(), timeout=1)
    assert leader.health() == 200
