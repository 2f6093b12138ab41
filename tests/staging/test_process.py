"""The stager as the process it is in a pod: killed, signalled, watched and read by its exit code."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from moe_operator.api.manifest import Manifest, StageExit, StageProgress, TerminationMessage, view_digest
from moe_operator.staging.store import Store

from tests.staging.fault_server import Fault, FaultServer
from tests.staging.model import Model, make_model, safetensors, sha256
from tests.staging.runs import assert_published
from tests.staging.stager import Stager, command, until

MODEL = make_model()
DIGEST = view_digest(MODEL.manifest_files())
KILLS = 20
INTERVAL = 64 << 10


def arguments(model: Model, server: FaultServer, store: Store, *more: object) -> list[object]:
    server.files = dict(model.files)
    path = store.root.parent / "manifest.json"
    path.write_text(model.manifest(server.url).model_dump_json(by_alias=True))
    return [
        "pull", "--manifest", path, "--source", server.url, "--store", store.root, "--reserve-bytes", 0,
        "--allow-http-host", server.address, "--journal-bytes", INTERVAL, "--retry-delay", 0.05, *more,
    ]  # fmt: skip


def get(address: str, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def journaled(store: Store, digest: str) -> int:
    """Bytes of a blob that the journal says are durable."""
    try:
        lines = store.journal(digest).read_text().splitlines()
    except FileNotFoundError:
        return 0
    return int(json.loads(lines[-1])["durableUpTo"]) if lines else 0


def test_killed_at_random_offsets_it_loses_at_most_one_journal_interval_each_time(
    stager: Stager, server: FaultServer, store: Store
) -> None:
    rng = random.Random(7)
    big = Model({"model.safetensors": safetensors({"w": rng.randbytes(40 * INTERVAL)})})
    (path, data), digest = next(iter(big.files.items())), sha256(next(iter(big.files.values())))
    pulling = arguments(big, server, store)

    for _kill in range(KILLS):
        resumed = journaled(store, digest)
        stop_after = rng.randrange(1, (len(data) - resumed) // 3)
        server.faults[path].append(Fault(hold_after=stop_after))
        with stager.running(*pulling) as run:
            assert server.held.acquire(timeout=30)
            reached = resumed + stop_after
            # Everything that was sent has arrived once the journal is within one interval of it.
            until(lambda mark=reached: journaled(store, digest) > mark - INTERVAL, "the journal follows")  # type: ignore[misc]
            assert run.signal(signal.SIGKILL) == -signal.SIGKILL
        assert server.requests_of(path)[-1].start == resumed, "it went on where the journal ended"
        assert not store.view(view_digest(big.manifest_files())).exists()

    ended = stager.run(*pulling)

    assert ended.code == 0, ended.err
    assert_published(store.view(view_digest(big.manifest_files())), big)
    assert server.sent <= len(data) + KILLS * INTERVAL


def test_sigterm_writes_the_journal_and_nothing_is_fetched_twice(
    stager: Stager, server: FaultServer, store: Store
) -> None:
    shard = MODEL.shards[0]
    server.faults[shard].append(Fault(hold_after=30_000))
    pulling = arguments(MODEL, server, store, "--listen", "127.0.0.1:0")
    with stager.running(*pulling) as run:
        address = run.address()
        assert server.held.acquire(timeout=30)
        arrived = MODEL.total - len(MODEL.files[shard]) + 30_000
        until(lambda: json.loads(get(address, "/progress")[1])["bytesDone"] == arrived, "all has arrived")
        assert run.signal(signal.SIGTERM) == 143

    assert journaled(store, sha256(MODEL.files[shard])) == 30_000
    assert stager.run(*pulling).code == 0
    assert server.sent == MODEL.total
    assert_published(store.view(DIGEST), MODEL)


def test_a_torn_journal_line_does_not_count(stager: Stager, server: FaultServer, store: Store) -> None:
    shard = MODEL.shards[0]
    server.faults[shard].extend([Fault(cut_after=30_000), Fault(status=404)])
    pulling = arguments(MODEL, server, store)
    assert stager.run(*pulling).exit is StageExit.NOT_FOUND
    with store.journal(sha256(MODEL.files[shard])).open("a") as journal:
        journal.write('{"etag": "x", "size": 80')

    assert stager.run(*pulling).code == 0

    assert server.requests_of(shard)[-1].start == 30_000
    assert_published(store.view(DIGEST), MODEL)


def test_bytes_that_rotted_before_the_resume_are_noticed(
    stager: Stager, server: FaultServer, store: Store
) -> None:
    shard = MODEL.shards[0]
    server.faults[shard].extend([Fault(cut_after=30_000), Fault(status=404)])
    pulling = arguments(MODEL, server, store)
    stager.run(*pulling)
    with store.part(sha256(MODEL.files[shard])).open("r+b") as part:
        part.seek(20_000)
        part.write(b"rot")

    assert stager.run(*pulling).code == 0

    assert_published(store.view(DIGEST), MODEL)
    assert [r.start for r in server.requests_of(shard)][-2:] == [30_000, 0]


def test_two_processes_share_the_work(stager: Stager, server: FaultServer, store: Store) -> None:
    for path in MODEL.files:
        server.faults[path].append(Fault(piece=8000, pause=0.02))
    pulling = arguments(MODEL, server, store)
    with stager.running(*pulling) as one, stager.running(*pulling) as other:
        assert (one.ended().code, other.ended().code) == (0, 0)

    assert server.sent == MODEL.total
    assert_published(store.view(DIGEST), MODEL)


def test_success_leaves_word_and_prints_the_view(
    stager: Stager, server: FaultServer, store: Store, tmp_path: Path
) -> None:
    ended = stager.run(*arguments(MODEL, server, store, "--termination-log", tmp_path / "log"))

    assert (ended.code, ended.out.strip()) == (0, str(store.view(DIGEST)))
    word = TerminationMessage.model_validate_json((tmp_path / "log").read_bytes())
    assert (word.code, word.reason, word.bytes_done, word.bytes_total) == (0, "OK", MODEL.total, MODEL.total)
    last = json.loads(ended.err.splitlines()[-1])
    assert (last["event"], last["phase"]) == ("progress", "Ready")


def _case_checksum(model: Model, server: FaultServer) -> None:
    shard = model.shards[0]
    server.files[shard] = b"!" + model.files[shard][1:]


FAILURES: dict[str, tuple[Any, StageExit]] = {
    "checksum": (_case_checksum, StageExit.CHECKSUM_MISMATCH),
    "missing": (lambda model, server: server.files.pop(model.shards[0]), StageExit.NOT_FOUND),
    "throttled": (
        lambda model, server: server.faults[model.shards[0]].extend([Fault(status=429)] * 9),
        StageExit.THROTTLED,
    ),
    "shorter": (
        lambda model, server: server.files.update({model.shards[0]: model.files[model.shards[0]][:-1]}),
        StageExit.SOURCE_CHANGED,
    ),
}


@pytest.mark.parametrize(("spoil", "code"), FAILURES.values(), ids=FAILURES)
def test_a_failure_is_an_exit_code_and_a_word(
    stager: Stager, spoil: Any, code: StageExit, server: FaultServer, store: Store, tmp_path: Path
) -> None:
    pulling = arguments(MODEL, server, store, "--retries", 2, "--termination-log", tmp_path / "log")
    spoil(MODEL, server)

    ended = stager.run(*pulling)

    raw = (tmp_path / "log").read_bytes()
    word = TerminationMessage.model_validate_json(raw)
    assert (ended.exit, word.code, word.reason) == (code, code, code.name)
    assert word.file == MODEL.shards[0] or MODEL.shards[0] in word.message
    assert word.retryable is not code.permanent
    assert len(raw) <= 4096
    assert ended.word == json.loads(raw)


def test_a_bad_store_is_exit_21_with_the_way_out(stager: Stager, server: FaultServer, store: Store) -> None:
    pulling = arguments(MODEL, server, store)
    (store.root / "STORE_ID").unlink()

    ended = stager.run(*pulling)

    assert ended.exit is StageExit.STORE_UNUSABLE
    assert "moestage init-store" in ended.word["hint"]


def test_init_store_pull_and_verify_belong_together(
    stager: Stager, server: FaultServer, tmp_path: Path
) -> None:
    made = stager.run("init-store", "--store", tmp_path / "store")
    pulled = stager.run(*arguments(MODEL, server, Store(tmp_path / "store")))
    quick = stager.run("verify", "--store", tmp_path / "store", "--view", DIGEST)
    full = stager.run("verify", "--store", tmp_path / "store", "--view", DIGEST, "--full")
    absent = stager.run("verify", "--store", tmp_path / "store", "--view", "0" * 64)

    assert (tmp_path / "store" / "STORE_ID").read_text() == made.out
    assert (pulled.code, quick.code, full.code, absent.exit) == (0, 0, 0, StageExit.NOT_FOUND)
    assert json.loads(full.out) == {
        "view": DIGEST, "files": len(MODEL.files), "bytes": MODEL.total, "full": True
    }  # fmt: skip


def test_a_running_pull_answers_progress_and_metrics(
    stager: Stager, server: FaultServer, store: Store
) -> None:
    shard = MODEL.shards[0]
    server.faults[shard].append(Fault(hold_after=30_000))
    with stager.running(*arguments(MODEL, server, store, "--listen", "127.0.0.1:0")) as run:
        address = run.address()
        assert server.held.acquire(timeout=30)
        arrived = MODEL.total - len(MODEL.files[shard]) + 30_000

        def seen() -> StageProgress | None:
            now = StageProgress.model_validate_json(get(address, "/progress")[1])
            return now if now.bytes_done == arrived else None

        progress = until(seen, "all has arrived")
        status, metrics = get(address, "/metrics")
        health, unknown = get(address, "/healthz"), get(address, "/manifest")
        assert run.signal(signal.SIGTERM) == 143

    assert (progress.phase, progress.view_digest, progress.bytes_total) == ("Pulling", DIGEST, MODEL.total)
    assert progress.rate_bytes_per_second > 0
    assert (status, health, unknown[0]) == (200, (200, b'{"status":"ok"}'), 404)
    for line in (
        f'moe_stage_bytes_total{{outcome="received",source="http"}} {float(arrived)}',
        "moe_stage_reused_bytes_total 0.0",
        "moe_stage_throttled_seconds_total 0.0",
    ):
        assert line in metrics.decode()
    for name in ("moe_stage_duration_seconds", 'moe_store_bytes{kind="blobs"}', "moe_store_free_bytes"):
        assert name in metrics.decode()


def test_the_resolver_serves_the_manifest_until_it_is_ended(stager: Stager, server: FaultServer) -> None:
    server.files = MODEL.files | {"SHA256SUMS": MODEL.sums()}
    server.faults["config.json"].append(Fault(hold_after=3))
    with stager.running(
        "resolve", "--source", server.url, "--allow-http-host", server.host, "--listen", "127.0.0.1:0",
        "--stall-timeout", 1, "--retry-delay", 0.05,
    ) as run:  # fmt: skip
        address = run.address()
        assert server.held.acquire(timeout=30)
        before = get(address, "/manifest")[0]
        until(lambda: get(address, "/manifest")[0] == 200, "the manifest is known")
        manifest = Manifest.model_validate_json(get(address, "/manifest")[1])
        progress = StageProgress.model_validate_json(get(address, "/progress")[1])
        ended = run.signal(signal.SIGTERM)

    assert before == 503
    assert manifest.files == MODEL.manifest_files()
    assert progress.phase == "Resolved"
    assert ended == 0


def test_a_resolver_that_fails_leaves_word(stager: Stager, tmp_path: Path) -> None:
    source = MODEL.write(tmp_path / "m")
    (source / "config.json").write_text('{"architectures": [')
    log = tmp_path / "log"

    ended = stager.run(
        "resolve", "--source", source.as_uri(), "--listen", "127.0.0.1:0", "--termination-log", log
    )

    word = TerminationMessage.model_validate_json(log.read_bytes())
    assert (ended.exit, word.reason, word.file) == (StageExit.BAD_MANIFEST, "BAD_MANIFEST", "config.json")
    assert word.hint


def test_the_resolver_prints_what_pull_reads(stager: Stager, tmp_path: Path) -> None:
    source = MODEL.write(tmp_path / "m")
    stager.run("init-store", "--store", tmp_path / "store")
    (tmp_path / "manifest.json").write_text(stager.run("resolve", "--source", source.as_uri()).out)

    pulled = stager.run(
        "pull", "--manifest", tmp_path / "manifest.json", "--source", source.as_uri(), "--store",
        tmp_path / "store", MOESTAGE_PULL_RESERVE_BYTES="0",
    )  # fmt: skip

    assert pulled.code == 0, pulled.err
    assert_published(Path(pulled.out.strip()), MODEL)


def test_tls_is_verified_and_spoken(stager: Stager, tmp_path: Path) -> None:
    certificate = Path("tests/data/tls").absolute()
    server = FaultServer("127.40.0.9", tls=(certificate / "server.pem", certificate / "server.key"))
    try:
        server.files = MODEL.files | {"SHA256SUMS": MODEL.sums()}
        url = server.url.replace("http://", "https://")
        asking = ("resolve", "--source", url, "--allow-http-host", server.host)
        untrusted = stager.run(*asking)
        trusted = stager.run(*asking, SSL_CERT_FILE=str(certificate / "server.pem"))
        unnamed = stager.run(*asking[:3], SSL_CERT_FILE=str(certificate / "server.pem"))
    finally:
        server.close()

    assert (untrusted.exit, "SSL_CERT_FILE" in untrusted.word["hint"]) == (StageExit.NETWORK, True)
    assert Manifest.model_validate_json(trusted.out).files == MODEL.manifest_files()
    assert (unnamed.exit, "loopback" in unnamed.word["message"]) == (StageExit.BAD_MANIFEST, True)


def test_a_taken_port_is_a_clear_error(stager: Stager, server: FaultServer, tmp_path: Path) -> None:
    ended = stager.run("resolve", "--source", MODEL.write(tmp_path).as_uri(), "--listen", server.address)

    assert ended.exit is StageExit.NETWORK
    assert f"cannot listen on {server.address}" in ended.word["message"]


def test_a_terminal_gets_a_bar(server: FaultServer, store: Store) -> None:
    ours, theirs = os.openpty()
    pulling = command(*arguments(MODEL, server, store))
    with subprocess.Popen(pulling, stderr=theirs, stdout=subprocess.DEVNULL) as process:
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 4096):
                shown += chunk
        except OSError:  # EIO: the other side is closed
            pass
        finally:
            os.close(ours)

    assert process.returncode == 0
    assert b"Ready" in shown
    assert b"KiB" in shown
    assert b'"event"' not in shown


def test_help_needs_none_of_the_heavy_modules() -> None:
    code = (
        "import sys, moe_operator.staging.cli as cli\n"
        "cli.main(['pull', '--help'], standalone_mode=False)\n"
        "print([m for m in ('pydantic', 'http.client', 'prometheus_client', 'rich', 'kopf', 'kubernetes',"
        " 'aiohttp') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert out.splitlines()[-1] == "[]"
