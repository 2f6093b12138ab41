"""HTTPS at the listener, with certificates that may be swapped while connections live.

The listener names two secrets; each is a file that names the mounted certificate and the directory to watch.
The kubelet renews a mounted Secret by renaming a link in that directory: Envoy then reads the files again and
uses them for new connections, those that exist keep what they have. A pair that does not fit together is
refused by Envoy and the last good one serves on.
"""

from __future__ import annotations

from typing import Any

from moe_operator.api.intent import Tls
from moe_operator.gateway.files import discovery, file_source
from moe_operator.gateway.mount import beside

SERVER = "tls.json"  # certificate and key
CLIENT_CA = "client_ca.json"  # whose certificates clients must show
CERTIFICATE, PRIVATE_KEY, CA = "tls.crt", "tls.key", "ca.crt"  # names in the Secrets
TYPE = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3"

Json = dict[str, Any]


def transport_socket(tls: Tls | None, xds: str) -> Json:
    """What makes a filter chain speak HTTPS, to be merged into it; nothing without ``tls``."""
    if tls is None:
        return {}
    asked = (
        {"validation_context_sds_secret_config": _named(CLIENT_CA, xds)} if tls.client_ca_directory else {}
    )
    context = {
        "@type": f"{TYPE}.DownstreamTlsContext",
        "common_tls_context": {
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            "alpn_protocols": ["http/1.1"],
            "tls_certificate_sds_secret_configs": [_named(SERVER, xds)],
            **asked,
        },
        "require_client_certificate": bool(asked),
    }
    return {"transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": context}}


def resolved(tls: Tls | None, xds: str) -> Tls | None:
    """With absolute paths, as Envoy wants them."""
    if tls is None:
        return None
    authority = str(beside(xds, tls.client_ca_directory)) if tls.client_ca_directory else ""
    return Tls(directory=str(beside(xds, tls.directory)), client_ca_directory=authority)


def secret_files(tls: Tls | None) -> dict[str, str]:
    """File name → text of the secrets that the listener names; they never change, what they name does."""
    if tls is None:
        return {}
    files = {SERVER: _server(tls.directory)}
    if tls.client_ca_directory:
        files[CLIENT_CA] = _client_ca(tls.client_ca_directory)
    return files


def _named(file: str, xds: str) -> Json:
    return {"name": file.removesuffix(".json"), "sds_config": file_source(xds, file)}


def _server(directory: str) -> str:
    certificate = {
        "certificate_chain": {"filename": f"{directory}/{CERTIFICATE}"},
        "private_key": {"filename": f"{directory}/{PRIVATE_KEY}"},
        "watched_directory": {"path": directory},
    }
    return _secret(SERVER, "tls_certificate", certificate)


def _client_ca(directory: str) -> str:
    trusted = {"trusted_ca": {"filename": f"{directory}/{CA}"}, "watched_directory": {"path": directory}}
    return _secret(CLIENT_CA, "validation_context", trusted)


def _secret(file: str, kind: str, content: Json) -> str:
    name = file.removesuffix(".json")
    return discovery("site", {"@type": f"{TYPE}.Secret", "name": name, kind: content})
