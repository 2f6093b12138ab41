"""AWS Signature Version 4 in a URL's query: what S3, Google's XML API and every S3-compatible store accept.

The signature covers method, path, query and host, so it is good for one object on one host for an hour. It
lies in the query and in no header, so a redirect cannot carry it anywhere. Source: AWS, "Authenticating
Requests: Using Query Parameters".
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

LIFETIME_SECONDS = 3600
_ALGORITHM = "AWS4-HMAC-SHA256"
_UNRESERVED = "-_.~"


@dataclass(frozen=True, slots=True)
class AccessKey:
    """Who signs; ``session_token`` "" for keys that do not expire."""

    key_id: str
    secret: str = field(repr=False)
    session_token: str = field(default="", repr=False)


def presigned(url: str, key: AccessKey, region: str, now: datetime, lifetime: int = LIFETIME_SECONDS) -> str:
    """``url`` with a signature for GET; ``now`` is in UTC."""
    parts = urlsplit(url)
    moment, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    scope = f"{day}/{region}/s3/aws4_request"
    query = [
        *parse_qsl(parts.query, keep_blank_values=True),
        ("X-Amz-Algorithm", _ALGORITHM),
        ("X-Amz-Credential", f"{key.key_id}/{scope}"),
        ("X-Amz-Date", moment),
        ("X-Amz-Expires", str(lifetime)),
        ("X-Amz-SignedHeaders", "host"),
        *([("X-Amz-Security-Token", key.session_token)] if key.session_token else []),
    ]
    encoded = "&".join(sorted(f"{_encoded(name)}={_encoded(value)}" for name, value in query))
    request = f"GET\n{parts.path}\n{encoded}\nhost:{parts.netloc}\n\nhost\nUNSIGNED-PAYLOAD"
    text = f"{_ALGORITHM}\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    signature = hmac.new(_signing_key(key.secret, day, region), text.encode(), hashlib.sha256).hexdigest()
    return urlunsplit((*parts[:3], f"{encoded}&X-Amz-Signature={signature}", ""))


def _signing_key(secret: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


def _encoded(text: str) -> str:
    return quote(text, safe=_UNRESERVED)
