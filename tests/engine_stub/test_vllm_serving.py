"""Answers, the end by SIGTERM, and the faults of a serving engine."""

import json
import threading

import httpx
import pytest

from e2e.checkpoints import build

from .fleet import RECORDINGS, faults, frames, question, until


def streamed(engine, **more):
    """Frames of one whole stream."""
    return frames(engine.chat(stream=True, **more).text)


class Reading(threading.Thread):
    """A stream that is read in the background; ``lines`` grows."""

    def __init__(self, engine, **more):
        super().__init__()
        self.engine, self.asked = engine, question(stream=True, ignore_eos=True, **more)
        self.lines: list[str] = []
        self.start()
        until(lambda: len(self.lines) > 2, "the first tokens")

    def run(self):
        with self.engine.client.stream("POST", "/v1/chat/completions", json=self.asked) as stream:
            for line in stream.iter_lines():
                if line:
                    self.lines.append(line)

    def choices(self):
        self.join()
        return [json.loads(line[6:])["choices"][0] for line in self.lines if line.startswith("data: {")]


def test_the_same_question_gets_the_same_answer_until_the_weights_change(fleet, tiny, tmp_path):
    build("tiny-qwen3-moe", tmp_path / "other", revision=2)
    first, second = fleet.vllm(tiny).ready(), fleet.vllm(tmp_path / "other").ready()

    def says(engine, **more):
        return engine.chat(max_tokens=64, **more).json()["choices"][0]["message"]["content"]

    assert says(first) == says(first)
    assert len({says(first), says(second), says(first, seed=7)}) == 3


def test_sampling_parameters_are_honoured(fleet, tiny):
    engine = fleet.vllm(tiny).ready()
    whole = engine.chat(max_tokens=20, ignore_eos=True).json()
    text = whole["choices"][0]["message"]["content"]
    assert (whole["usage"]["completion_tokens"], whole["choices"][0]["finish_reason"]) == (20, "length")

    stopped = engine.chat(max_tokens=20, ignore_eos=True, stop=[text[5:7]]).json()["choices"][0]
    assert stopped["message"]["content"] == text[: text.index(text[5:7])]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", text[5:7])

    natural = engine.chat(max_tokens=1000).json()
    assert natural["choices"][0]["finish_reason"] == "stop"
    assert natural["usage"]["completion_tokens"] < 1000

    two = engine.chat(max_tokens=8, n=2, ignore_eos=True).json()
    assert [one["index"] for one in two["choices"]] == [0, 1]
    assert two["usage"]["completion_tokens"] == 16


def test_a_stream_says_what_the_whole_answer_says(fleet, tiny):
    engine = fleet.vllm(tiny).ready()
    whole = engine.chat(max_tokens=30).json()["choices"][0]["message"]["content"]
    parts = [
        frame["choices"][0]["delta"].get("content", "") for frame in streamed(engine, max_tokens=30)[:-1]
    ]
    assert "".join(parts) == whole


def test_continuous_usage_counts_every_frame(fleet, tiny):
    engine = fleet.vllm(tiny).ready()
    asked = {"include_usage": True, "continuous_usage_stats": True}
    got = streamed(engine, max_tokens=3, ignore_eos=True, stream_options=asked)
    assert [one["usage"]["completion_tokens"] for one in got[1:-1]] == [1, 2, 3, 3]


def test_requests_beyond_max_num_seqs_wait(fleet, tiny):
    engine = fleet.vllm(tiny, "--max-num-seqs", "1", STUB_ITL_MS="20").ready()
    first = Reading(engine, max_tokens=100)
    second = threading.Thread(target=engine.chat)
    second.start()
    until(lambda: engine.state()["waiting"] == 1, "the second to wait")
    page = engine.client.get("/metrics").text
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 1.0' in page
    assert 'vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 1.0' in page
    second.join()
    first.join()


def test_a_client_that_goes_away_frees_its_place(fleet, tiny):
    engine = fleet.vllm(tiny, STUB_ITL_MS="50").ready()
    asked = question(max_tokens=1000, stream=True)
    with engine.client.stream("POST", "/v1/chat/completions", json=asked) as stream:
        next(stream.iter_lines())
        assert engine.state()["running"] == 1
    until(lambda: engine.state()["running"] == 0, "the request to be dropped")
    assert 'finished_reason="abort",model_name="tiny"} 1.0' in engine.client.get("/metrics").text


def test_sigterm_aborts_streams_as_recorded(fleet, tiny):
    engine = fleet.vllm(tiny, STUB_ITL_MS="20").ready()
    stream = Reading(engine, max_tokens=1000)
    engine.terminate()
    last = stream.choices()[-1]
    recorded = (RECORDINGS / "stream-cut-by-sigterm.txt").read_text(errors="replace")
    theirs = json.loads(recorded.split("data: ")[-2])["choices"][0]
    assert last == theirs
    assert stream.lines[-1] == "data: [DONE]"
    assert engine.exit_code() == 0


def shutdown_lines(log: str) -> list[str]:
    found = [line.split("[shutdown] ")[1].split("=")[0] for line in log.splitlines() if "[shutdown]" in line]
    return [line for line in found if "force killing" not in line and "all workers exited" not in line]


@pytest.mark.parametrize(
    ("recording", "flags"),
    [("serve-sigterm-during-stream.log", ()), ("drain.log", ("--shutdown-timeout", "30"))],
)
def test_shutdown_lines_are_the_recorded_ones_in_order(fleet, tiny, recording, flags):
    engine = fleet.vllm(tiny, *flags, STUB_ITL_MS="20").ready()
    stream = Reading(engine, max_tokens=50)
    engine.terminate()
    assert engine.exit_code() == 0
    stream.join()
    assert shutdown_lines(engine.log) == shutdown_lines((RECORDINGS / recording).read_text())


def test_a_drain_finishes_streams_while_health_and_models_stay_200(fleet, tiny):
    engine = fleet.vllm(tiny, "--shutdown-timeout", "30", STUB_ITL_MS="20").ready()
    stream = Reading(engine, max_tokens=100)
    engine.terminate()
    engine.says("draining in-flight requests count=1 timeout=30s")
    assert engine.health() == 200
    assert engine.client.get("/v1/models").status_code == 200
    refused = engine.chat().json()["choices"][0]
    assert refused["finish_reason"] == "abort"
    assert stream.choices()[-1]["finish_reason"] == "length"
    assert stream.lines[-1] == "data: [DONE]"
    assert engine.exit_code() == 0


def test_a_drain_that_takes_too_long_aborts(fleet, tiny):
    engine = fleet.vllm(tiny, "--shutdown-timeout", "1", STUB_ITL_MS="20").ready()
    stream = Reading(engine, max_tokens=2500)
    engine.terminate()
    assert stream.choices()[-1]["finish_reason"] == "abort"
    assert engine.exit_code() == 0


def test_f01_slow_load_stalls_until_it_is_cured(fleet, tiny):
    stall = faults({"id": "F01", "params": {"stall_at_pct": 50}})
    engine = fleet.vllm(tiny, STUB_FAULTS=stall)
    engine.says("50% Completed | 1/2")
    assert engine.state()["phase"] == "load"
    assert engine.health() is None
    engine.admin.delete("/_stub/faults")
    engine.ready()


def test_f30_hang_accepts_and_never_answers(fleet, tiny):
    engine = fleet.vllm(tiny, STUB_FAULTS=faults({"id": "F30"})).ready()
    with pytest.raises(httpx.ReadTimeout):
        engine.client.post("/v1/chat/completions", json=question(), timeout=1)
    until(lambda: engine.state()["running"] == 0, "the request whose client went away to be dropped")
    hanging = threading.Thread(target=engine.chat)
    hanging.start()
    until(lambda: engine.state()["running"] == 1, "a hanging request")
    assert engine.health() == 200
    page = engine.client.get("/metrics").text
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 1.0' in page
    assert 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 0.0' in page
    engine.says("No available shared memory broadcast block found in 60 seconds.")
    engine.admin.delete("/_stub/faults")
    hanging.join()


def test_f30_with_a_health_that_tells(fleet, tiny):
    engine = fleet.vllm(tiny).ready()
    engine.admin.post("/_stub/faults", json={"id": "F30", "params": {"variant": "health503"}})
    assert engine.health() == 503


def test_f35_early_listen(fleet, tiny):
    engine = fleet.vllm(tiny, STUB_FAULTS=faults({"id": "F35"}), STUB_LOAD_SECONDS="3600").ready()
    assert engine.state()["phase"] == "load"
    assert engine.client.get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert engine.chat().status_code == 503


def test_f36_a_dead_engine(fleet, tiny):
    engine = fleet.vllm(tiny).ready()
    engine.admin.post("/_stub/faults", json={"id": "F36", "params": {"health": 200}})
    assert (engine.health(), engine.chat().status_code) == (200, 500)
    engine.admin.post("/_stub/faults", json=[{"id": "F36", "params": {"exit_after_s": 1}}])
    assert engine.exit_code() == 0


def test_f41_wrong_model(fleet, tiny):
    wrong = {"id": "F41", "params": {"served_id": "other", "max_model_len": 77}}
    engine = fleet.vllm(tiny, STUB_FAULTS=faults(wrong)).ready()
    card = engine.client.get("/v1/models").json()["data"][0]
    assert (card["id"], card["max_model_len"]) == ("other", 77)
    assert engine.chat(model="other").json()["model"] == "other"
    assert engine.chat().status_code == 404


def test_f42_garbage_output(fleet, tiny):
    engine = fleet.vllm(tiny, STUB_FAULTS=faults({"id": "F42", "params": {"kind": "nan"}})).ready()
    choice = engine.chat(max_tokens=4).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("!!!!!!!!", "length")


@pytest.mark.parametrize("code", [0, 3, 134, 137])
def test_f44_exit_after_requests(fleet, tiny, code):
    ordered = {"id": "F44", "params": {"requests": 1, "code": code}}
    engine = fleet.vllm(tiny, STUB_FAULTS=faults(ordered), STUB_TTFT_MS="10000").ready()
    with pytest.raises(httpx.TransportError):
        engine.chat()
    assert engine.exit_code() == code


def test_f44_exit_after_seconds(fleet, tiny):
    engine = fleet.vllm(tiny, STUB_FAULTS=faults({"id": "F44", "params": {"s": 20, "code": 1}}))
    assert engine.exit_code() == 1


def test_f47_a_truncated_stream_has_no_end(fleet, tiny):
    engine = fleet.vllm(tiny, STUB_FAULTS=faults({"id": "F47", "params": {"after_chunks": 2}})).ready()
    received = b""
    with (
        pytest.raises(httpx.RemoteProtocolError),
        engine.client.stream("POST", "/v1/chat/completions", json=question(stream=True)) as stream,
    ):
        for part in stream.iter_bytes():
            received += part
    assert received.count(b"data: ") == 3  # the role, then two tokens
    assert b"[DONE]" not in received
    assert b'finish_reason":"' not in received


def test_f48_an_error_frame(fleet, tiny):
    engine = fleet.vllm(tiny, STUB_FAULTS=faults({"id": "F48", "params": {"after_chunks": 2}})).ready()
    got = streamed(engine)
    assert got[-2]["error"]["code"] == 500
    assert got[-1] == "[DONE]"


def test_f49_a_stalled_stream(fleet, tiny):
    stalled = faults({"id": "F49", "params": {"after_chunks": 2}})
    engine = fleet.vllm(tiny, STUB_FAULTS=stalled).ready()
    with (
        pytest.raises(httpx.ReadTimeout),
        engine.client.stream("POST", "/v1/chat/completions", json=question(stream=True), timeout=1) as stream,
    ):
        stream.read()
    assert engine.health() == 200


def test_f50_sigterm_is_ignored(fleet, tiny):
    engine = fleet.vllm(tiny, STUB_FAULTS=faults({"id": "F50"})).ready()
    engine.terminate()
    assert engine.chat().status_code == 200
    engine.kill()
    assert engine.exit_code() == 137


def test_faults_select_by_rank_phase_and_time(fleet, tiny):
    wrong = {"served_id": "other"}
    entries = [
        {"id": "F41", "ranks": [1], "params": wrong},
        {"id": "F41", "phase": "load", "params": wrong},
        {"id": "F41", "trigger": {"after_requests": 1}, "params": {"served_id": "late"}},
    ]
    engine = fleet.vllm(tiny, STUB_FAULTS=faults(*entries)).ready()
    assert engine.client.get("/v1/models").json()["data"][0]["id"] == "tiny"
    engine.chat()
    assert engine.client.get("/v1/models").json()["data"][0]["id"] == "late"


def test_a_faults_file_is_watched(fleet, tiny, tmp_path):
    file = tmp_path / "faults.json"
    engine = fleet.vllm(tiny, STUB_FAULTS_FILE=str(file)).ready()
    assert engine.chat().status_code == 200
    file.write_text(faults({"id": "F36"}))
    until(lambda: engine.health() == 503, "the fault of the file")
    file.write_text("[]")
    until(lambda: engine.health() == 200, "the cure")


def test_the_admin_port_shows_what_it_knows(fleet, tiny):
    engine = fleet.vllm(tiny).ready()
    state = engine.state()
    assert (state["engine"], state["node"], state["world"], state["phase"]) == ("vllm", 0, 1, "serve")
    assert state["memory"][0]["weightBytes"] == sum(
        json.loads((tiny / "model.safetensors.index.json").read_text())["metadata"].values()
    )
    refused = engine.admin.post("/_stub/faults", json={"id": "F99"})
    assert refused.status_code == 400
    assert engine.admin.get("/_stub/faults").json()["faults"] == []
