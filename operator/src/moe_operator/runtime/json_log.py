"""One JSON object per log line: an event name and fields, never an object's contents.

Only the fields named in :data:`FIELDS` leave the process, so nothing that a library hangs onto a log
record (kopf attaches whole objects) can leak; what looks like a credential inside a message or an error
is replaced. Write ``log.info("reconciled", extra={"key": "ns/name", "writes": 2})``.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from datetime import UTC, datetime
from typing import TextIO

FIELDS = (
    "key", "generation", "revision", "duration_ms", "writes", "result", "wake_after_s", "retry_in_s",
    "reason", "status", "verb", "kind", "holder", "identity", "namespace", "namespaces", "listen",
    "version", "workers", "server", "exit_code", "count", "error",
)  # fmt: skip

SECRETS = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), r"\1 [redacted]"),
    (re.compile(r"\b(hf_|eyJ)[\w.-]{16,}"), "[redacted]"),  # Hugging Face tokens, JSON web tokens
    (re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"), "[redacted]"),
    (
        re.compile(
            r"(?i)\b([\w-]*(?:token|password|secret|signature|api[_-]?key)[\w-]*)(=|\":\s*\"|:\s+)[^\s&\",]+"
        ),
        r"\1\2[redacted]",
    ),
)

# Libraries whose ordinary chatter is one line per request or per watch event.
QUIET = ("httpx", "httpcore", "kopf", "aiohttp.access", "asyncio", "kubernetes")


def redact(text: str) -> str:
    """``text`` with everything that looks like a credential replaced."""
    for pattern, replacement in SECRETS:
        text = pattern.sub(replacement, text)
    return text


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON with UTC time to the millisecond."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON; never raises for odd field values."""
        when = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": redact(record.getMessage()),
        }
        for name in FIELDS:
            value = record.__dict__.get(name)
            if value is not None:
                line[name] = redact(value) if isinstance(value, str) else value
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = redact("".join(traceback.format_exception(record.exc_info[1])))
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(level: str, stream: TextIO | None = None) -> None:
    """Make JSON lines on ``stream`` (standard error) the only log output of this process."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
