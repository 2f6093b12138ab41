"""Moments as Kubernetes writes them (RFC 3339, UTC, whole seconds) and as we count them (epoch seconds)."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(epoch: float) -> str:
    """Epoch seconds → ``2026-11-30T03:10:22Z``."""
    return datetime.fromtimestamp(int(epoch), tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def epoch(text: str) -> float:
    """RFC 3339 → epoch seconds; ValueError when it is not one."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def elapsed(since: str, now: float) -> float:
    """Seconds from ``since`` to ``now``."""
    return now - epoch(since)
