"""A shared access signature for one Azure container: read and list, for an hour, over this account's key.

Source: Azure Storage, "Create a service SAS", the string to sign of version 2020-12-06 and later.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime, timedelta
from urllib.parse import urlencode

VERSION = "2022-11-02"
LIFETIME = timedelta(hours=1)
SKEW = timedelta(minutes=5)  # the account's clock may be behind ours
_SIGNED = (
    "sp", "st", "se", "resource", "si", "sip", "spr", "sv", "sr", "snapshot", "ses", "rscc", "rscd", "rsce",
    "rscl", "rsct",
)  # fmt: skip


def container_sas(account: str, container: str, key: str, now: datetime, *, tls: bool) -> str:
    """The query to append; ValueError when ``key`` is no account key. ``now`` is in UTC."""
    fields = {
        "sp": "rl",
        "st": _moment(now - SKEW),
        "se": _moment(now + LIFETIME),
        "spr": "https" if tls else "https,http",
        "sv": VERSION,
        "sr": "c",
    }
    sig = signature(fields, f"/blob/{account}/{container}", key)
    return urlencode({**fields, "sig": sig})


def signature(fields: Mapping[str, str], resource: str, key: str) -> str:
    """HMAC-SHA256 over the fields in Azure's order; absent ones are empty lines."""
    text = "\n".join({**fields, "resource": resource}.get(name, "") for name in _SIGNED)
    try:
        secret = base64.b64decode(key, validate=True)
    except binascii.Error as fault:
        raise ValueError("the account key is not base64") from fault
    return base64.b64encode(hmac.new(secret, text.encode(), hashlib.sha256).digest()).decode()


def _moment(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
