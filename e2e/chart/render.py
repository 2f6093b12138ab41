"""The chart as Helm renders it, without a cluster.

Helm is a Python package here (helm-python-sdk), so the same commit renders the same bytes on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "moe-operator"
RELEASE = "moe-operator"
NAMESPACE = "moe-operator-system"
NOTES = "NOTES.txt"

Obj = dict[str, Any]


class ValuesRefused(Exception):
    """values.schema.json or a template does not accept these values; the message names the key."""


def templates(
    values: Mapping[str, Any] | None = None, *, release: str = RELEASE, namespace: str = NAMESPACE
) -> dict[str, str]:
    """File below ``templates/`` → what it renders to; files that render to nothing are left out."""
    given = dict(values or {})
    with helm_python.Chart.load(CHART) as chart:
        try:
            chart.validate_schema(given)
            rendered = chart.render(given, name=release, namespace=namespace)
        except (helm_python.HelmValuesError, helm_python.HelmRenderError) as error:
            raise ValuesRefused(str(error)) from error
    prefix = f"{chart_yaml()['name']}/templates/"
    return {path.removeprefix(prefix): text for path, text in rendered.items() if text.strip()}


def objects(
    values: Mapping[str, Any] | None = None, *, release: str = RELEASE, namespace: str = NAMESPACE
) -> list[Obj]:
    """Every object that the chart would install."""
    rendered = templates(values, release=release, namespace=namespace)
    return [obj for path, text in sorted(rendered.items()) if path != NOTES for obj in _documents(text)]


def lint(values: Mapping[str, Any] | None = None) -> list[str]:
    """What `helm lint --strict` has to say above the level of a hint; empty = nothing."""
    report = helm_python.lint(CHART, dict(values or {}), strict=True, namespace=NAMESPACE)
    complaints = [f"{m['path']}: {m['error']}" for m in report["messages"] if m["severity"] > 1]
    return [*complaints, *report["errors"]]


def chart_yaml() -> Obj:
    """Name and versions of the chart."""
    return dict(yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8")))


def _documents(text: str) -> Iterator[Obj]:
    return (document for document in yaml.safe_load_all(text) if document)
