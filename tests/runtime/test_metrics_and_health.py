from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from moe_operator.runtime.health import HealthServer, Phase, Vitals
from moe_operator.runtime.kube import CONFIG_MAP, POD, ApiError
from moe_operator.runtime.metrics import MeteredKube, OperatorMetrics

from tests.runtime.world import World, config_map, deployment

NAMES = {
    "moe_operator_reconcile_total",
    "moe_operator_reconcile_duration_seconds",
    "moe_operator_reconcile_errors_total",
    "moe_operator_queue_depth",
    "moe_operator_queue_latency_seconds",
    "moe_operator_queue_retries_total",
    "moe_operator_api_requests_total",
    "moe_operator_watch_events_total",
    "moe_operator_last_event_age_seconds",
    "moe_operator_is_leader",
    "moe_operator_build_info",
}


def test_every_metric_is_exposed_under_its_documented_name() -> None:
    page = OperatorMetrics("1.2.3").exposition().decode()
    assert {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")} >= NAMES
    assert 'moe_operator_build_info{version="1.2.3"} 1.0' in page


def test_the_age_of_the_last_event_is_told() -> None:
    now = [100.0]
    metrics = OperatorMetrics("x", clock=lambda: now[0])
    now[0] = 130.0
    assert metrics.registry.get_sample_value("moe_operator_last_event_age_seconds") == 30.0
    metrics.event_seen("Pod")
    now[0] = 131.5
    assert metrics.registry.get_sample_value("moe_operator_last_event_age_seconds") == 1.5
    assert metrics.registry.get_sample_value("moe_operator_watch_events_total", {"kind": "Pod"}) == 1


async def test_requests_are_counted_by_verb_kind_and_code() -> None:
    world, metrics = World(), OperatorMetrics("x")
    kube = MeteredKube(world.kube, metrics)
    created = await kube.create(deployment())
    applied = config_map("a", created)
    await kube.apply(applied, manager="m")
    await kube.apply_status({**deployment(), "status": {}}, manager="s")
    await kube.replace(await kube.get(CONFIG_MAP, "default", "a"))
    test = {"op": "test", "path": "/metadata/name", "value": "b"}
    with pytest.raises(ApiError):
        await kube.patch_json(CONFIG_MAP, "default", "a", [test])
    await kube.list(POD)
    await kube.delete(CONFIG_MAP, "default", "a")
    with pytest.raises(ApiError):
        await kube.delete(CONFIG_MAP, "default", "a")
    counted = {
        (s.labels["verb"], s.labels["kind"], s.labels["code"]): s.value
        for family in metrics.registry.collect()
        for s in family.samples
        if s.name == "moe_operator_api_requests_total"
    }
    assert counted == {
        ("create", "MoEDeployment", "200"): 1,
        ("apply", "ConfigMap", "200"): 1,
        ("apply_status", "MoEDeployment", "200"): 1,
        ("get", "ConfigMap", "200"): 1,
        ("replace", "ConfigMap", "200"): 1,
        ("patch", "ConfigMap", "422"): 1,
        ("list", "Pod", "200"): 1,
        ("delete", "ConfigMap", "200"): 1,
        ("delete", "ConfigMap", "404"): 1,
    }


@pytest.fixture
async def server() -> AsyncIterator[tuple[str, Vitals]]:
    vitals = Vitals()
    made = HealthServer("127.70.1.1", 0, vitals, OperatorMetrics("x").exposition)
    await made.start()
    host, port = made.address
    yield f"http://{host}:{port}", vitals
    await made.stop()


@pytest.mark.parametrize(
    ("phase", "code"),
    [(Phase.STARTING, 503), (Phase.STANDBY, 200), (Phase.WATCHING, 200), (Phase.STOPPING, 503)],
)
async def test_ready_while_it_does_its_part(server: tuple[str, Vitals], phase: Phase, code: int) -> None:
    url, vitals = server
    vitals.phase = phase
    async with httpx.AsyncClient(base_url=url) as client:
        ready, alive = await client.get("/readyz"), await client.get("/healthz")
    assert (ready.status_code, ready.text.strip()) == (code, phase.value)
    assert (alive.status_code, alive.text) == (200, "ok\n")


async def test_metrics_are_scraped(server: tuple[str, Vitals]) -> None:
    async with httpx.AsyncClient(base_url=server[0]) as client:
        page = await client.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "moe_operator_is_leader 0.0" in page.text


async def test_an_address_that_is_taken_is_an_error(server: tuple[str, Vitals]) -> None:
    url = httpx.URL(server[0])
    second = HealthServer(url.host, url.port or 0, Vitals(), bytes)
    with pytest.raises(OSError, match="address already in use"):
        await second.start()
    await second.stop()
