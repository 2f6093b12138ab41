"""Requests that somebody sends who wants more than the gateway allows, or who cannot write HTTP.

Each is raw bytes with the statuses that are right for it; ``None`` among them: the connection may just be
closed. Whatever the status, only an allowed path may ever reach an engine, and only once per request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

REFUSED = frozenset({400, 404})
BAD = frozenset({400})
BAD_OR_CLOSED = frozenset({400, 408, None})
HARMLESS = frozenset({200, 400, 404})  # served as an allowed request, or refused

CLOSED = (
    "/metrics", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/scale_elastic_ep",
    "/is_scaling_elastic_ep", "/reset_prefix_cache", "/reset_mm_cache", "/sleep", "/wake_up", "/is_sleeping",
    "/collective_rpc", "/pause", "/resume", "/init_weight_transfer_engine", "/update_weights",
    "/update_weights_from_disk", "/start_profile", "/stop_profile", "/server_info",
    "/get_server_info",
    "/get_model_info", "/flush_cache", "/abort_request", "/load_lora_adapter", "/set_internal_state",
    "/shutdown", "/debug/pprof", "/docs", "/redoc", "/openapi.json", "/admin", "/config_dump",
    "/quitquitquit", "/stats", "/clusters", "/inference/v1/generate", "/invocations", "/ping", "/version_ui",
    "/load", "/",
)  # fmt: skip

TRICKS = (
    "{0}", "/{0}", "//{0}", "/v1/models/..{0}", "/v1/models/../..{0}", "/v1/models/%2e%2e/%2e%2e{0}",
    "/v1/models%2f..%2f..{0}", "/v1/models/..%2f..{0}", "/v1/models/..%5c..{0}",
    "/v1/models\\..\\..{0}",
    "/v1/models;{0}", "/v1/models;/../..{0}", "/v1/models/..;/..;{0}", "/v1/models%3b{0}", "/v1/models%00{0}",
    "/v1/models%23{0}", "/v1/models%3f{0}", "/./{0}", "/%2e{0}", "/%252e%252e{0}",
    "/v1/models/%c0%ae%c0%ae{0}",
)  # fmt: skip

OTHER_SPELLINGS = (
    "//v1/models", "/v1//models", "///v1/models", "/v1/models/", "/v1/models//", "/V1/models", "/v1/MODELS",
    "/v1/Models", "/v1/%6dodels", "/v1/%6Dodels", "/%76%31/models", "/v1%2fmodels", "/v1%2Fmodels",
    "/v1%5cmodels", "/v1\\models", "\\v1\\models", "/v1/./models", "/./v1/models", "/v1/x/../models",
    "/v1/models/.", "/v1/models/..", "/v1/models;", "/v1/models;a=b", "/v1;a/models", "/v1/models%20",
    "/v1/models%00", "/v1/models%0a", "/v1/models%0d%0ax:y", "/v1/models%3flimit=1", "/v1/models%23a",
    "/v1/models.json", "/v1/models,", "/v1/models~", "/v1/models:1", "/v1/models*", "/v1/*", "/*",
    "/v1/models\u00a0", "/v1/m\u00f6dels", "/v1/models%e2%80%8b", "/%u0076%u0031/models", "v1/models",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Malformed:
    """One of them."""

    name: str
    data: bytes
    statuses: frozenset[int | None]


def corpus() -> list[Malformed]:
    """All of them; more than 200."""
    return [*_paths(), *_framing(), *_heads(), *_bodies()]


def _get(path: str, *headers: str, version: str = "HTTP/1.1", method: str = "GET") -> bytes:
    lines = [f"{method} {path} {version}", "Host: x", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1", errors="replace")


def _post(*headers: str, body: bytes = b"{}", path: str = "/v1/chat/completions") -> bytes:
    return _get(path, "Content-Type: application/json", *headers, method="POST") + body


def _paths() -> Iterator[Malformed]:
    for path in CLOSED:
        for method in ("GET", "POST"):
            yield Malformed(f"{method} {path}", _get(path, "Content-Length: 0", method=method), REFUSED)
    for target in ("/metrics", "/v1/load_lora_adapter", "/scale_elastic_ep"):
        for trick in TRICKS:
            path = trick.format(target)
            yield Malformed(f"trick {path}", _get(path), REFUSED)
    for path in OTHER_SPELLINGS:
        yield Malformed(f"spelling {path!r}", _get(path), REFUSED)
    for name in (
        "X-Original-URL",
        "X-Rewrite-URL",
        "X-Envoy-Original-Path",
        "X-Forwarded-Uri",
        "X-Forwarded-Prefix",
    ):
        yield Malformed(f"by header {name}", _get("/nothing", f"{name}: /v1/models"), REFUSED)
        yield Malformed(f"to header {name}", _get("/v1/models", f"{name}: /metrics"), frozenset({200}))
    yield Malformed("absolute form of a closed path", _get("http://x/metrics"), REFUSED)
    yield Malformed("absolute form", _get("http://x/v1/models"), frozenset({200}))
    yield Malformed("absolute form with dots", _get("http://x/v1/models/../../metrics"), REFUSED)
    yield Malformed("absolute form, other scheme", _get("file:///v1/models"), REFUSED)
    yield Malformed("asterisk", _get("*", method="OPTIONS"), REFUSED)
    yield Malformed("connect", _get("x:80", method="CONNECT"), frozenset({403}))
    yield Malformed("connect to a path", _get("/v1/models", method="CONNECT"), frozenset({400, 403}))
    for method in ("TRACE", "PUT", "DELETE", "PATCH", "PROPFIND"):
        yield Malformed(f"method {method}", _get("/v1/models", method=method), frozenset({400, 405}))
    yield Malformed("method with a tab", _get("/v1/models", method="GET\t"), HARMLESS)
    for method in ("get", "G\u00cbT", "G E T", ""):
        yield Malformed(f"method {method!r}", _get("/v1/models", method=method), frozenset({400, 405, None}))
    yield Malformed("override", _get("/v1/models", "X-HTTP-Method-Override: DELETE"), frozenset({200}))
    yield Malformed("fragment", _get("/v1/models#x"), HARMLESS)


SMUGGLED = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


def _framing() -> Iterator[Malformed]:
    """Two readers that could see different ends of one request."""
    chunked = b"0\r\n\r\n"
    both = _post("Content-Length: 5", "Transfer-Encoding: chunked", body=chunked + SMUGGLED)
    yield Malformed("length and chunked", both, BAD)
    yield Malformed(
        "chunked and length",
        _post("Transfer-Encoding: chunked", "Content-Length: 5", body=chunked + SMUGGLED),
        BAD,
    )
    for value in (
        "chunked, identity", "identity, chunked", "xchunked", "chunked, chunked", "identity", "gzip",
        "gzip, chunked",
        "\x0bchunked", "chunked\x0b", '"chunked"', "chunked;q=1", ",chunked", "chunKed2", "ch\x00unked",
    ):  # fmt: skip
        data = _post(f"Transfer-Encoding: {value}", body=chunked + SMUGGLED)
        yield Malformed(f"transfer-encoding {value!r}", data, frozenset({200, 400, 404, 501}))
    yield Malformed("space before the colon", _post("Transfer-Encoding : chunked", body=chunked), BAD)
    yield Malformed("tab in the name", _post("Transfer-Encoding\t: chunked", body=chunked), BAD)
    yield Malformed(
        "folded", _post("Transfer-Encoding:\r\n chunked", body=chunked + SMUGGLED), frozenset({200, 400, 404})
    )
    yield Malformed(
        "two codings",
        _post("Transfer-Encoding: identity", "Transfer-Encoding: chunked", body=chunked),
        frozenset({400, 501}),
    )
    for value in (
        "-1",
        "+2",
        "0x2",
        "2.0",
        "2e0",
        "2,2",
        "2, 3",
        "2 2",
        "",
        "a",
        "\u0662",
        "1_0",
        "99999999999999999999",
    ):
        yield Malformed(
            f"length {value!r}",
            _post(f"Content-Length: {value}"),
            frozenset({400, 413, None}) | ({200, 400, None} if value in ("2,2", "") else set()),
        )
    yield Malformed("two lengths", _post("Content-Length: 2", "Content-Length: 3"), BAD)
    yield Malformed("two equal lengths", _post("Content-Length: 2", "Content-Length: 2"), HARMLESS)
    short = _post("Content-Length: 2").replace(b"Connection: close\r\n", b"") + SMUGGLED
    yield Malformed("a second request behind the first", short, HARMLESS)
    yield Malformed(
        "a body on GET", _get("/v1/models", f"Content-Length: {len(SMUGGLED)}") + SMUGGLED, HARMLESS
    )
    for name, body in {
        "no size": b"\r\n{}\r\n0\r\n\r\n",
        "size is no number": b"zz\r\n{}\r\n0\r\n\r\n",
        "negative size": b"-2\r\n{}\r\n0\r\n\r\n",
        "size with 0x": b"0x2\r\n{}\r\n0\r\n\r\n",
        "size overflows": b"fffffffffffffffff\r\n{}\r\n0\r\n\r\n",
        "size too small": b"1\r\n{}\r\n0\r\n\r\n",
        "no end of chunk": b"2\r\n{}0\r\n\r\n",
        "wrong end of chunk": b"2\r\n{}XX0\r\n\r\n",
    }.items():
        yield Malformed(f"chunk: {name}", _post("Transfer-Encoding: chunked", body=body), BAD_OR_CLOSED)
    for name, body in {
        "extension": b"2;a=b\r\n{}\r\n0\r\n\r\n",
        "long extension": b"2;" + b"a" * 5000 + b"\r\n{}\r\n0\r\n\r\n",
        "trailer": b"2\r\n{}\r\n0\r\nx: y\r\n\r\n",
        "line feeds only": b"2\n{}\n0\n\n",
        "size with space": b"2 2\r\n{}\r\n0\r\n\r\n",
        "leading zeros": b"00002\r\n{}\r\n0\r\n\r\n",
        "smuggled trailer": b"2\r\n{}\r\n0\r\ncontent-length: 5\r\n\r\n",
    }.items():
        yield Malformed(f"chunk: {name}", _post("Transfer-Encoding: chunked", body=body), HARMLESS | {None})


def _heads() -> Iterator[Malformed]:
    ok = frozenset({200, 400})
    yield Malformed("HTTP/1.0 without host", b"GET /v1/models HTTP/1.0\r\n\r\n", frozenset({400, 426}))
    yield Malformed("no host", b"GET /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n", BAD)
    yield Malformed("two hosts", _get("/v1/models", "Host: y"), ok)
    yield Malformed(
        "host with a path", b"GET /v1/models HTTP/1.1\r\nHost: x/../y\r\nConnection: close\r\n\r\n", ok
    )
    for version in ("HTTP/0.9", "HTTP/1.2", "HTTP/2.0", "HTTP/3", "HTTP/11", "HTTPS/1.1", "http/1.1", ""):
        yield Malformed(
            f"version {version!r}", _get("/v1/models", version=version), frozenset({200, 400, 426, None})
        )
    yield Malformed(
        "http2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 40, BAD_OR_CLOSED | {426}
    )
    yield Malformed("tls hello", bytes.fromhex("1603010200010001fc0303") + b"\x00" * 64, BAD_OR_CLOSED)
    yield Malformed("zeros", b"\x00" * 200, BAD_OR_CLOSED)
    yield Malformed("line feeds only", b"GET /v1/models HTTP/1.1\nHost: x\nConnection: close\n\n", ok)
    yield Malformed("carriage returns only", b"GET /metrics HTTP/1.1\rHost: x\r\r", BAD_OR_CLOSED)
    yield Malformed("empty lines first", b"\r\n\r\n" + _get("/v1/models"), ok)
    for name, header in {
        "NUL in a value": "X-A: a\x00b",
        "NUL in a name": "X\x00A: b",
        "space in a name": "X A: b",
        "no colon": "just text",
        "no name": ": b",
        "brackets in a name": "X(A): b",
        "name beyond ASCII": "X-\u00c4: b",
    }.items():
        yield Malformed(name, _get("/v1/models", header), BAD)
    for name, header in {
        "value beyond ASCII": "X-A: \u00e4",
        "empty value": "X-A:",
        "CR in a value": "X-A: a\rb",
        "underscore for a dash": "Content_Length: 5",
        "folded value": "X-A: a\r\n b",
        "host as connection option": "Connection: host, content-length",
        "spoofed key id": "x-moe-key-id: admin",
        "spoofed lane": "x-moe-lane: long",
    }.items():
        yield Malformed(name, _get("/v1/models", header), ok)
    yield Malformed(
        "websocket",
        _get("/v1/models", "Upgrade: websocket").replace(b"close", b"Upgrade"),
        frozenset({200, 400, 403}),
    )
    yield Malformed(
        "h2c",
        _get("/v1/models", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk").replace(
            b"close", b"Upgrade, HTTP2-Settings"
        ),
        frozenset({200, 400, 403}),
    )
    too_large = frozenset({431})
    yield Malformed("header of 70 KiB", _get("/v1/models", "X-A: " + "a" * (70 << 10)), too_large)
    yield Malformed("header of 400 KiB", _get("/v1/models", "X-A: " + "a" * (400 << 10)), too_large)
    yield Malformed(
        "a hundred headers of 1 KiB",
        _get("/v1/models", *(f"X-{n}: " + "a" * 1024 for n in range(100))),
        too_large,
    )
    yield Malformed("a thousand headers", _get("/v1/models", *(f"X-{n}: a" for n in range(1000))), too_large)
    yield Malformed("query of 70 KiB", _get("/v1/models?" + "a" * (70 << 10)), too_large)
    yield Malformed("path of 400 KiB", _get("/" + "a" * (400 << 10)), too_large | {414})
    yield Malformed("name of 70 KiB", _get("/v1/models", "a" * (70 << 10) + ": b"), too_large)
    yield Malformed("head that never ends", b"GET /v1/models HTTP/1.1\r\nHost: x\r\n", frozenset({408}))


def _bodies() -> Iterator[Malformed]:
    """The gateway that meets these allows 64 KiB, and a second of silence."""
    large = b'{"a": "' + b"x" * (100 << 10) + b'"}'
    chunk = f"{len(large):x}\r\n".encode() + large + b"\r\n0\r\n\r\n"
    yield Malformed("large body", _post(f"Content-Length: {len(large)}", body=large), frozenset({413}))
    yield Malformed("large chunked body", _post("Transfer-Encoding: chunked", body=chunk), frozenset({413}))
    yield Malformed("body that stops", _post("Content-Length: 100", body=b'{"a'), frozenset({408}))
    yield Malformed(
        "chunked body that stops", _post("Transfer-Encoding: chunked", body=b"5\r\n{"), frozenset({408})
    )
    yield Malformed("body that never comes", _post("Content-Length: 10", body=b""), frozenset({408}))
    yield Malformed("expectation", _post("Content-Length: 2", "Expect: 100-continue"), frozenset({100, 200}))
    yield Malformed("odd expectation", _post("Content-Length: 2", "Expect: 200-maybe"), frozenset({200, 417}))
