"""values.schema.json: what is misspelt or out of range never reaches a cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from e2e.chart import render
from e2e.chart.generate import VALUES_SCHEMA

Obj = dict[str, Any]

REFUSED: dict[str, tuple[Obj, str]] = {
    "unknown key": ({"replicaCount": 2}, "replicaCount"),
    "unknown key in a section": ({"metrics": {"serviceMonitors": {}}}, "serviceMonitors"),
    "unknown key of the policy": ({"policy": {"allowedImages": []}}, "allowedImages"),
    "images are not the policy's": ({"policy": {"images": {"operator": "x"}}}, "operator"),
    "nor is who the operator is": ({"policy": {"networkPolicies": {"operatorNamespace": "x"}}}, "operatorN"),
    "unknown key of a cache class": (
        {"policy": {"cacheClasses": {"nvme": {"root": "/x", "path": "/y"}}}},
        "path",
    ),
    "cache class without root": ({"policy": {"cacheClasses": {"raid": {}}}}, "root"),
    "relative root": ({"policy": {"cacheClasses": {"nvme": {"root": "store"}}}}, "root"),
    "class that is no name": ({"policy": {"cacheClasses": {"NVMe": {"root": "/x"}}}}, "NVMe"),
    "key of a preset's domain": (
        {"policy": {"presets": {"p": {"product": "X", "domain": {"typ": "Node"}}}}},
        "typ",
    ),
    "memory of a GPU": ({"policy": {"gpuProducts": {"X": {"memoryMib": 1}}}}, "memoryMib"),
    "text for a number": ({"replicas": "2"}, "replicas"),
    "no worker": ({"workers": 0}, "workers"),
    "log level": ({"logLevel": "verbose"}, "logLevel"),
    "namespace pattern": ({"watchNamespaces": ["team-*"]}, "watchNamespaces"),
    "digest": ({"image": {"digest": "sha256:abc"}}, "digest"),
    "tag with a registry": ({"image": {"tag": "registry.example/x"}}, "tag"),
    "no repository": ({"image": {"repository": ""}}, "repository"),
    "pull policy": ({"image": {"pullPolicy": "ifNotPresent"}}, "pullPolicy"),
    "number as annotation": ({"podAnnotations": {"a": 1}}, "podAnnotations"),
    "toleration": ({"tolerations": [{"keys": "x"}]}, "keys"),
}


@pytest.mark.parametrize(("values", "named"), REFUSED.values(), ids=REFUSED)
def test_refused_by_name(values: Obj, named: str) -> None:
    with pytest.raises(render.ValuesRefused, match=named):
        render.templates(values)


def test_every_default_is_known_to_the_schema_and_has_a_place_in_it() -> None:
    """A value without a property would be refused; a property without a default would be undocumented."""
    values = yaml.safe_load((render.CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads(VALUES_SCHEMA.read_text(encoding="utf-8"))
    assert set(values) == set(schema["properties"]) - {"global"}
    assert set(values["policy"]) == set(schema["definitions"]["policy"]["properties"])


def test_no_object_of_the_schema_takes_keys_it_does_not_name() -> None:
    schema = json.loads(VALUES_SCHEMA.read_text(encoding="utf-8"))
    assert [path for path, node in _nodes(schema) if "properties" in node and _open(node)] == []


def _open(node: Obj) -> bool:
    return bool(node.get("additionalProperties", True) is not False)


def _nodes(node: Any, path: str = "") -> list[tuple[str, Obj]]:
    if isinstance(node, list):
        return [found for i, item in enumerate(node) for found in _nodes(item, f"{path}[{i}]")]
    if not isinstance(node, dict):
        return []
    schemas = [(path, node)] if not path.endswith(".properties") else []
    return schemas + [found for key, item in node.items() for found in _nodes(item, f"{path}.{key}")]
