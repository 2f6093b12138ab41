"""No member of an intent is idle: each, changed alone, changes what a gateway pod does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from moe_operator.api.intent import Intent, KeyLimits, Keys, Limits, Queue, Timeouts, Tls
from moe_operator.gateway.admission import admission_files
from moe_operator.gateway.keys import keyring
from moe_operator.gateway.quota import Allowances
from moe_operator.gateway.render import render
from moe_operator.gateway.tls import resolved

from tests.gateway.secret import entry
from tests.gateway.test_render import SHIFTING, SITE

Json = Any
FULL = SHIFTING.model_copy(
    update={
        "limits": Limits(
            max_header_bytes=8192,
            max_output_tokens=4096,
            max_choices=4,
            max_context_tokens=131072,
            requests_per_minute_per_key=10,
            concurrent_per_key=10,
            tokens_per_minute_per_key=10,
        ),
        "key_limits": [KeyLimits(key_id="batch", requests_per_minute=5, concurrent=5, tokens_per_minute=5)],
        "keys": Keys(directory="../keys"),
        "queue": Queue(hold_seconds=60),
        "timeouts": Timeouts(first_byte_seconds=600, idle_seconds=660),  # one clock: the longer counts
        "tls": Tls(directory="../tls", client_ca_directory="../client-ca"),
        "otlp_endpoint": "collector:4317",
    }
)
KEYS = keyring({"alice": entry("sk-alice")})
READ_BY_THE_AGENT = {
    "schema": "the format itself",
    "drainSeconds": "Agent.drain_seconds",
    "keys.directory": "where Admission reads",
    "otlpEndpoint": "Site.otlp, by boot",
}


def leaves(value: Json, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    match value:
        case dict():
            for name, each in value.items():
                yield from leaves(each, (*path, name))
        case list() if value and isinstance(value[0], dict):
            yield from leaves(value[0], (*path, 0))
        case _:
            yield path


def named(path: tuple[str | int, ...]) -> str:
    return ".".join(part for part in path if isinstance(part, str))


def other(value: Json) -> Json:
    """A value of the same type that is not this one."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return f"{value}-x" if not value or value[-1].isalpha() else value[:-1] + "9"
        case list():
            return value[1:]
    raise TypeError(value)


def changed(path: tuple[str | int, ...]) -> Intent:
    told = FULL.model_dump(by_alias=True)
    within: Json = told
    for part in path[:-1]:
        within = within[part]
    within[path[-1]] = other(within[path[-1]])
    return Intent.model_validate(told)


def everything(intent: Intent) -> object:
    """What a pod with this intent makes of it, as far as that is pure."""
    site = replace(SITE, tls=resolved(intent.tls, SITE.xds))
    return render(intent, site), admission_files(intent, KEYS, {"alice": 0}), Allowances.of(intent)


@pytest.mark.parametrize("path", list(leaves(FULL.model_dump(by_alias=True))), ids=named)
def test_a_member_that_changes_changes_something(path: tuple[str | int, ...]) -> None:
    if named(path) in READ_BY_THE_AGENT:
        return
    assert everything(changed(path)) != everything(FULL)


def test_what_is_excused_exists() -> None:
    assert READ_BY_THE_AGENT.keys() <= {named(path) for path in leaves(FULL.model_dump(by_alias=True))}
