"""The stub's HTTP surface and log against recordings of the real engine (tests/data/vllm-0.32)."""

import json
import re

import pytest

from .fleet import RECORDINGS, Fleet, frames, question, until


@pytest.fixture(scope="module")
def engine(tiny, tmp_path_factory):
    """One engine for the tests that only look."""
    fleet = Fleet(tmp_path_factory.mktemp("surface"))
    yield fleet.vllm(tiny, "--max-model-len", "1024").ready()
    fleet.close()


def recorded(name: str) -> str:
    return (RECORDINGS / name).read_text(errors="replace")


def shape(value):
    """Keys in order with the types of what they hold."""
    if isinstance(value, dict):
        return [(key, shape(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return type(value).__name__


def test_models(engine):
    assert shape(engine.client.get("/v1/models").json()) == shape(json.loads(recorded("models.json")))


def test_a_chat_completion(engine):
    assert shape(engine.chat(max_tokens=8).json()) == shape(json.loads(recorded("chat.json")))


def test_a_stream_with_usage_frame_by_frame(engine):
    head, _, body = recorded("stream.txt").partition("\n\n")
    answer = engine.chat(max_tokens=4, stream=True, stream_options={"include_usage": True})
    assert [shape(one) for one in frames(answer.text)] == [shape(one) for one in frames(body)]
    assert answer.text.endswith("data: [DONE]\n\n")
    assert [line.split(": ")[0] for line in head.split("\n")[1:]] == list(answer.headers)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"


@pytest.mark.parametrize(
    ("row", "body"),
    [
        (0, question(model="nope")),
        (1, {"model": "tiny"}),
        (2, question(max_tokens=99999)),
        (3, b"not json"),
    ],
)
def test_errors_word_for_word(engine, row, body):
    expected, _, status = recorded("errors.txt").splitlines()[row].rpartition(" ")
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = engine.client.post("/v1/chat/completions", content=content)
    assert (answer.text, str(answer.status_code)) == (expected, status)


def test_every_recorded_route_is_known(engine):
    """A route that exists answers anything but 404; the stub may say that it does not serve it."""
    unbuilt = {"/kv_event_sources", "/v1/systemone", "/scale_elastic_ep", "/is_scaling_elastic_ep"}
    for path, methods in json.loads(recorded("openapi.json"))["paths"].items():
        if "{" in path or path in unbuilt:
            continue
        for method in methods:
            assert engine.client.request(method, path, json={}).status_code != 404, (method, path)


def test_an_unknown_path_and_a_wrong_method(engine):
    assert engine.client.get("/nowhere").status_code == 404
    refused = engine.client.head("/health")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET")


def test_tokenize_agrees_with_usage_and_detokenize_turns_it_back(engine):
    text = "Grüße, 世界!"
    tokens = engine.client.post("/tokenize", json={"model": "tiny", "prompt": text}).json()
    assert list(tokens) == ["count", "max_model_len", "tokens", "token_strs"]
    back = engine.client.post("/detokenize", json={"model": "tiny", "tokens": tokens["tokens"]})
    assert back.json() == {"prompt": text}
    completion = engine.client.post(
        "/v1/completions", json={"model": "tiny", "prompt": text, "max_tokens": 3}
    )
    assert completion.json()["usage"]["prompt_tokens"] == tokens["count"]


def test_prompt_and_max_tokens_beyond_the_context_are_refused(engine):
    answer = engine.client.post(
        "/v1/completions", json={"model": "tiny", "prompt": "x" * 1000, "max_tokens": 100}
    )
    assert answer.status_code == 400
    assert "maximum context length is 1024 tokens" in answer.json()["error"]["message"]


def samples(page: str):
    """{(family, kind)} in order and {(sample, label names)}."""
    families = [tuple(line.split(" ")[2:4]) for line in page.splitlines() if line.startswith("# TYPE")]
    found = set()
    for line in page.splitlines():
        if not line.startswith("#"):
            name = re.split(r"[{ ]", line)[0]
            found.add((name, tuple(re.findall(r'(\w+)="', line))))
    return families, found


def test_metrics_have_every_recorded_family_in_order_with_the_same_labels(engine):
    engine.chat()
    engine.client.get("/v1/models")
    ours, theirs = samples(engine.client.get("/metrics").text), samples(recorded("metrics.txt"))
    assert ours[0] == theirs[0]
    assert ours[1] == theirs[1]


def test_histogram_buckets_are_the_recorded_ones(engine):
    def edges(page: str):
        found = re.findall(r'^(vllm:\w+)_bucket\{.*?le="([^"]+)"', page, re.MULTILINE)
        return set(found)

    engine.chat()
    assert edges(engine.client.get("/metrics").text) == edges(recorded("metrics.txt"))


def test_metrics_count_what_happened(fleet, tiny):
    engine = fleet.vllm(tiny).ready()
    usage = engine.chat(max_tokens=5, ignore_eos=True).json()["usage"]
    page = engine.client.get("/metrics").text
    at = '{engine="0",model_name="tiny"}'
    assert f"vllm:generation_tokens_total{at} 5.0" in page
    assert f"vllm:prompt_tokens_total{at} {float(usage['prompt_tokens'])}" in page
    assert 'finished_reason="length",model_name="tiny"} 1.0' in page


def skeleton(log: str) -> list[str]:
    """Module and first words of each log line, without what differs between machines and runs."""
    kept = []
    for line in log.splitlines():
        if found := re.match(r"\((\w+?)(?:_\w+)? pid=\d+\) \w+ \S+ \S+ \[([\w.]+):\d+\] (.*)", line):
            words = re.sub(r"[\d,./]+", "#", found[3]).split()
            kept.append(" ".join([found[1], *words[:3]]))
        elif line.startswith("INFO:  "):
            kept.append(re.sub(r"\d+", "#", line))
        elif line.startswith("Loading safetensors"):
            kept.append(line.split(":")[0])
    return kept


def test_a_start_prints_the_recorded_lines_in_the_recorded_order(engine):
    real = skeleton(recorded("serve-start.log").replace("CPU KV cache", "GPU KV cache"))
    milestones = [
        "APIServer non-default args: {'model_tag':", "APIServer Resolved architecture: Qwen#MoeForCausalLM",
        "APIServer Using max model", "EngineCore DP group leader:", "Worker world_size=# rank=# local_rank=#",
        "Worker rank # in", "Worker Starting to load", "Loading safetensors checkpoint shards",
        "Worker Loading weights took", "EngineCore GPU KV cache", "EngineCore init engine (profile#",
        "APIServer Supported tasks: ['generate']", "APIServer Starting vLLM server",
        "APIServer Available routes are:", "APIServer Route: #health# Methods:",
        "INFO:     Waiting for application startup.", "INFO:     Application startup complete.",
    ]  # fmt: skip
    for log in (skeleton(engine.log), real):
        at = [log.index(one) for one in milestones]
        assert at == sorted(at)


def test_the_listed_routes_are_the_recorded_ones(engine):
    def routes(log: str):
        pairs = re.findall(r"Route: (\S+), Methods: (.*)", log)
        return [(path, tuple(sorted(methods.split(", ")))) for path, methods in pairs]

    assert routes(engine.log) == routes(recorded("serve-start.log"))


def test_an_api_key_guards_v1_only(fleet, tiny):
    engine = fleet.vllm(tiny, "--api-key", "secret").ready()
    rows = [line.rpartition(" ") for line in recorded("auth.txt").splitlines()]
    refused = engine.client.get("/v1/models")
    assert (refused.text, str(refused.status_code)) == (rows[0][0], rows[0][2])
    assert engine.client.get("/v1/models", headers={"authorization": "Bearer wrong"}).status_code == 401
    assert engine.client.get("/v1/models", headers={"authorization": "Bearer secret"}).status_code == 200
    assert engine.health() == 200


def test_an_api_key_may_come_from_the_environment(fleet, tiny):
    engine = fleet.vllm(tiny, VLLM_API_KEY="secret").ready()
    assert engine.client.get("/v1/models").status_code == 401


def test_nothing_listens_before_the_weights_are_loaded(fleet, tiny):
    engine = fleet.vllm(tiny, STUB_LOAD_SECONDS="3600")
    until(lambda: engine.state().get("phase") == "load", "loading")
    assert engine.health() is None


def test_a_taken_port_is_said_at_once(fleet, tiny):
    first = fleet.vllm(tiny).ready()
    second = fleet.start(
        "vllm", "serve", str(tiny), "--host", first.address, "--port", "8001", STUB_ADMIN_PORT=""
    )
    assert second.exit_code() == 1
    assert "OSError: [Errno 98] Address already in use" in second.log
    assert first.health() == 200
