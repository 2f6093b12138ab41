"""spec.gateway → intent: limits are divided, Secrets become mounts, the estimate of the return is coarse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from moe_operator.api.intent import KeyLimits, Keys, Tls
from moe_operator.api.names import LABEL_RANK, LABEL_REPLICA, LABEL_REVISION
from moe_operator.api.spec import MoEDeployment
from moe_operator.api.status import BootTimeline, GroupStatus, StagingStatus, Status
from moe_operator.reconcile.draft import Draft
from moe_operator.reconcile.gateway_intent import wanted_intent
from moe_operator.reconcile.return_time import retry_after_seconds
from moe_operator.rollout.groups import Group
from moe_operator.rollout.rank_pod import rank_pod

from tests.reconcile.snapshots import deployment, snapshot

Obj = dict[str, Any]
HASH = "abcd1234"


def draft_of(gateway: Obj, **status: Any) -> Draft:
    spec = MoEDeployment.parse(deployment({"gateway": gateway})).spec
    return Draft(status=Status(active_revision=HASH, **status), wish=spec)


def told(gateway: Obj, **facts: Any) -> Any:
    draft = draft_of(gateway)
    assert draft.wish
    return wanted_intent(snapshot({"gateway": gateway}, **facts), draft, draft.wish)


def test_limits_per_key_are_divided_among_the_gateway_pods_and_rounded_up() -> None:
    limits = {
        "requestsPerMinutePerKey": 100,
        "concurrentPerKey": 1,
        "tokensPerMinutePerKey": 1000,
        "maxOutputTokens": 4096,
        "perKey": [{"key": "batch", "concurrent": 9}, {"key": "alice", "requestsPerMinute": 7}],
    }
    intent = told({"replicas": 3, "limits": limits})
    found = intent.limits
    assert (found.requests_per_minute_per_key, found.concurrent_per_key) == (34, 1)
    assert (found.tokens_per_minute_per_key, found.max_output_tokens) == (334, 4096)
    assert intent.key_limits == [
        KeyLimits(key_id="alice", requests_per_minute=3),
        KeyLimits(key_id="batch", concurrent=3),
    ]


def test_every_member_of_the_spec_reaches_the_pods() -> None:
    intent = told(
        {
            "auth": {"secretRef": {"name": "keys"}, "forwardAuthorization": True},
            "tls": {"secretRef": {"name": "certificate"}, "clientCaRef": {"name": "clients"}},
            "queue": {"maxWaiting": 7, "holdSeconds": 8},
            "longContext": {"thresholdTokens": 9, "maxConcurrent": 10},
            "affinityHeader": "x-session",
            "allowedSources": ["10.0.0.0/8"],
            "allowedPaths": ["/v1/models"],
            "timeouts": {"firstByteSeconds": 11, "idleSeconds": 12},
            "audit": {"enabled": False},
            "otlp": {"endpoint": "collector:4317"},
        }
    )
    assert intent.keys == Keys(directory="../keys", forward=True)
    assert intent.tls == Tls(directory="../tls", client_ca_directory="../client-ca")
    assert (intent.queue.max_waiting, intent.queue.hold_seconds) == (7, 8)
    assert intent.long_context and intent.long_context.threshold_tokens == 9
    assert (intent.affinity_header, intent.allowed_sources) == ("x-session", ["10.0.0.0/8"])
    assert (intent.allowed_paths, intent.timeouts.first_byte_seconds) == (["/v1/models"], 11)
    assert (intent.audit, intent.otlp_endpoint) == (False, "collector:4317")


def group(phase: str = "Starting", **timeline: str) -> Group:
    reached = BootTimeline.model_validate(timeline)
    labels = {LABEL_REVISION: HASH, LABEL_REPLICA: "0", LABEL_RANK: "0"}
    meta = {"name": "p", "uid": "u", "resourceVersion": "1", "labels": labels}
    pod = rank_pod({"metadata": meta, "spec": {"nodeName": "n"}})
    record = GroupStatus(revision=HASH, replica=0, phase=phase, boot_timeline=reached)
    return Group(HASH, 0, 1, record, (pod,))


SNAPSHOT = snapshot({"gateway": {}})
STAGING = [StagingStatus(node="n", phase="Pulling", eta_seconds=200)]


@pytest.mark.parametrize(
    ("groups", "staging", "seconds"),
    [
        ((), [], 600),
        ((group("Failed"),), [], 600),
        ((group("Staging"),), STAGING, 300),
        ((group("Starting", staged="2026-11-30T00:00:00Z"),), STAGING, 60),
        ((group("Ready", weightsLoaded="2026-11-30T00:00:00Z"),), [], 15),
    ],
    ids=["nothing comes", "nothing will", "pulling", "loading", "only a completion is missing"],
)
def test_clients_are_told_roughly_when_engines_are_back(
    groups: tuple[Group, ...], staging: list[StagingStatus], seconds: int
) -> None:
    draft = replace(draft_of({}, staging=staging), groups=groups)
    assert retry_after_seconds(SNAPSHOT, draft) == seconds
