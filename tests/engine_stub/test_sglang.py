"""SGLang mode: its own flags, health, errors, frames and ends (facts of 0.5.23; there is no recording)."""

import threading

import pytest

from .fleet import faults, frames, question, until


def node(leader: str, rank: int) -> list[str]:
    meeting = ["--nnodes", "2", "--node-rank", str(rank), "--dist-init-addr", f"{leader}:20000"]
    return ["--tp-size", "2", *meeting, "--context-length", "1024"]


def pair(fleet, model, **environment):
    leader = fleet.sglang(model, *node("{address}", 0), **environment)
    worker = fleet.sglang(model, *node(leader.address, 1), **environment)
    return leader.ready(), worker


@pytest.fixture
def engine(fleet, tiny):
    return fleet.sglang(tiny, "--context-length", "1024", "--enable-metrics").ready()


def test_health_is_503_while_it_starts_and_the_port_is_open(fleet, tiny):
    engine = fleet.sglang(tiny, STUB_LOAD_SECONDS="3600")
    until(lambda: engine.health() == 503, "an early listener")
    assert engine.client.get("/ready").status_code == 503
    assert engine.chat().status_code == 503


def test_a_server_that_is_up(engine):
    assert "The server is fired up and ready to roll!" in engine.log
    assert engine.client.get("/health_generate").status_code == 200
    card = engine.client.get("/v1/models").json()["data"][0]
    assert (card["id"], card["owned_by"], "permission" in card) == ("tiny", "sglang", False)
    assert engine.client.get("/model_info").json()["weight_version"] == "default"
    missing = engine.client.get("/v1/models/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_answers_and_errors_have_sglangs_shapes(engine):
    body = engine.chat(max_tokens=4).json()
    assert list(body["choices"][0]) == ["index", "message", "logprobs", "finish_reason", "matched_stop"]
    got = frames(engine.chat(max_tokens=2, stream=True, stream_options={"include_usage": True}).text)
    assert got[0]["choices"][0]["delta"] == {
        "role": "assistant", "content": "", "reasoning_content": None, "tool_calls": None,
    }  # fmt: skip
    assert all("usage" in one for one in got[:-1])
    assert got[-1] == "[DONE]"
    refused = engine.chat(max_tokens=5000)
    assert refused.status_code == 400
    assert list(refused.json()) == ["object", "message", "type", "param", "code"]


def test_the_native_endpoint(engine):
    asked = {"text": "Hello", "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
    got = engine.client.post("/generate", json=asked).json()
    assert got["meta_info"]["completion_tokens"] == 4
    assert got["meta_info"]["finish_reason"] == {"type": "length"}


def test_metrics_only_when_asked_for(fleet, tiny, engine):
    engine.chat(max_tokens=4, ignore_eos=True)
    page = engine.client.get("/metrics").text
    tokens = (
        'sglang:generation_tokens_total{engine_type="unified",is_streaming="false",model_name="tiny"} 4.0'
    )
    assert tokens in page
    assert "sglang:max_total_num_tokens{" in page
    assert "sglang:weight_memory_usage_gb{" in page
    assert fleet.sglang(tiny).ready().client.get("/metrics").status_code == 404


def test_an_unknown_flag(fleet, tiny):
    stub = fleet.sglang(tiny, "--no-such-flag")
    assert stub.exit_code() == 2
    assert "launch_server.py: error: unrecognized arguments: --no-such-flag" in stub.log


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("mem_imbalance", "The memory capacity is unbalanced."),
        ("child_sigkill", "Rank 0 scheduler died during initialization (exit code: -9)."),
    ],
)
def test_f03_load_exit(fleet, tiny, kind, text):
    stub = fleet.sglang(tiny, STUB_FAULTS=faults({"id": "F03", "params": {"kind": kind}}))
    assert stub.exit_code() == 1
    assert text in stub.log
    assert "Received sigquit from a child process." in stub.log


def test_other_nodes_run_a_dummy_server_that_is_always_healthy(fleet, tiny):
    leader, worker = pair(fleet, tiny)
    assert leader.chat().status_code == 200
    assert worker.client.get("/health").status_code == 200
    assert worker.client.get("/health_generate").status_code == 200
    assert worker.client.get("/v1/models").status_code == 404


def test_sigterm_drains_the_leader_and_its_word_ends_the_others(fleet, tiny):
    leader, worker = pair(fleet, tiny, STUB_ITL_MS="10")
    worker.terminate()
    worker.says("SIGTERM received on node_rank 1; waiting for the rank-0 ShutdownReq broadcast")
    answers = []
    stream = threading.Thread(
        target=lambda: answers.append(leader.chat(max_tokens=200, ignore_eos=True, stream=True).text)
    )
    stream.start()
    until(lambda: leader.state().get("running") == 1, "a running request")
    assert worker.running
    leader.terminate()
    leader.says("Gracefully exiting... Remaining number of requests 1.")
    stream.join()
    assert frames(answers[0])[-1] == "[DONE]"
    assert frames(answers[0])[-2]["choices"][0]["finish_reason"] == "length"
    assert (leader.exit_code(), worker.exit_code()) == (0, 0)


def test_a_lost_node_turns_health_bad_and_the_watchdog_ends_the_leader(fleet, tiny):
    leader, worker = pair(fleet, tiny, STUB_TIME_SCALE="0.02")
    worker.kill()
    until(lambda: leader.health() == 503, "health to notice by itself, for it generates")
    assert leader.exit_code() == 131
    assert "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)" in leader.log


def test_a_hang_is_seen_by_health(engine):
    engine.admin.post("/_stub/faults", json={"id": "F30"})
    until(lambda: engine.health() == 503, "health to give up")
    engine.admin.delete("/_stub/faults")
    assert engine.health() == 200


def test_nodes_of_another_configuration_are_refused(fleet, tiny):
    leader = fleet.sglang(tiny, *node("{address}", 0))
    stranger = fleet.sglang(tiny, *node(leader.address, 1), "--tp-size", "4")
    assert stranger.exit_code() == 1
    assert "!= leader" in stranger.log
    assert leader.running


def test_questions_that_only_differ_in_the_engine_get_the_same_words(fleet, tiny, engine):
    """The answer depends on prompt, seed, name and weights, not on who serves them."""
    other = fleet.vllm(tiny, "--max-model-len", "1024").ready()
    texts = [
        one.client.post("/v1/chat/completions", json=question(max_tokens=20)).json()["choices"][0]["message"]
        for one in (engine, other)
    ]
    assert texts[0]["content"] == texts[1]["content"]
