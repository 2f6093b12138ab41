"""What the API server refuses in built-in kinds: names, labels, the parts of pods and services that builders
get wrong, and changes to fields that may not change.

Functions return problems as the server words them; an empty list means the object is accepted. Custom
resources are judged by their CRD's schema instead; only their metadata is checked here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from moe_operator.runtime.kube import Kind, Obj
from moe_operator.sandbox import selectors
from moe_operator.sandbox.api_resources import Resource
from moe_operator.sandbox.field_ownership import repeated_items
from moe_operator.sandbox.merge_shapes import Shape

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_QUALIFIED = re.compile(r"([a-z0-9.\-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_CONFIG_KEY = re.compile(r"(?!\.$|\.\.)[-._a-zA-Z0-9]+")
_ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+|m|k|[KMGTPE]i?|[unpfa])?")
_DNS_LABEL_NAMES = frozenset({"services", "namespaces"})
_FREE_NAMES = frozenset({"roles", "rolebindings"})
_LABEL_RULE = "at most 63 lower case alphanumeric characters or '-'"
_NAME_RULE = "name part must consist of at most 63 alphanumeric characters, '-', '_' or '.'"
_MAX_ANNOTATIONS = 256 * 1024  # bytes
_MAX_CONFIG_MAP = 1024 * 1024  # bytes


_MUST_BE_THERE: Mapping[str, tuple[str, ...]] = {
    "pods": ("spec",),
    "deployments": ("spec", "spec.template", "spec.template.spec"),
    "replicasets": ("spec", "spec.template", "spec.template.spec"),
    "jobs": ("spec", "spec.template", "spec.template.spec"),
    "customresourcedefinitions": ("spec", "spec.names"),
}


def misshapen(resource: Resource, obj: Obj) -> list[str]:
    """Parts of the wrong JSON type, where another type could not even be stored."""
    found = list(_wrong_types(resource.shape, _judged_here(resource, obj), ""))
    for field in ("labels", "annotations"):
        values = obj["metadata"].get(field, {})
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            found.append(f"metadata.{field}: must be a map of strings")
    return found


def _judged_here(resource: Resource, obj: Obj) -> Obj:
    """Of a custom object the metadata: the rest is its schema's to judge."""
    return {"metadata": obj["metadata"]} if resource.custom else obj


def _wrong_types(shape: Shape, value: Any, where: str) -> Iterator[str]:
    if shape.rule in ("set", "map"):
        if not isinstance(value, list):
            yield f"{where[1:]}: must be a list"
            return
        for index, item in enumerate(value):
            if shape.rule == "map" and not isinstance(item, dict):
                yield f"{where[1:]}[{index}]: must be an object"
            elif isinstance(item, dict):
                yield from _wrong_types(shape.of_item(), item, f"{where}[{index}]")
    elif shape.fields and not isinstance(value, dict):
        yield f"{where[1:]}: must be an object"
    elif shape.rule == "granular" and isinstance(value, dict):
        for name, part in value.items():
            yield from _wrong_types(shape.child(name), part, f"{where}.{name}")


def missing_parts(plural: str, obj: Obj) -> list[str]:
    """Sections without which the rest cannot be judged."""
    return [
        f"{path}: Required value"
        for path in _MUST_BE_THERE.get(plural, ())
        if not isinstance(_at(obj, path), dict)
    ]


def problems(resource: Resource, obj: Obj) -> list[str]:
    """Everything wrong with a new or changed object."""
    meta = obj["metadata"]
    found = [*_name_problems(resource.kind, meta.get("name", "")), *_metadata_problems(meta)]
    found += repeated_items(resource.shape, _judged_here(resource, obj))
    if rule := _RULES.get(resource.kind.plural) if not resource.custom else None:
        found += rule(obj)
    return found


def change_problems(resource: Resource, old: Obj, new: Obj) -> list[str]:
    """Everything that ``new`` may not change about ``old``."""
    found = []
    if "deletionTimestamp" in old["metadata"]:
        added = set(new["metadata"].get("finalizers", ())) - set(old["metadata"].get("finalizers", ()))
        if added:
            found.append(
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being "
                f"deleted, found new finalizers {sorted(added)}"
            )
    if resource.custom:
        return found
    found += [
        _bad(path, _at(new, path), "field is immutable")
        for path in _IMMUTABLE.get(resource.kind.plural, ())
        if _at(old, path) is not None and _at(old, path) != _at(new, path)
    ]
    if rule := _CHANGE_RULES.get(resource.kind.plural):
        found += rule(old, new)
    return found


def _bad(where: str, value: Any, why: str) -> str:
    shown = json.dumps(value) if isinstance(value, str) else value
    return f"{where}: Invalid value: {shown}: {why}"


def _name_problems(kind: Kind, name: str) -> Iterator[str]:
    if kind.plural in _FREE_NAMES:
        if not name or "/" in name or "%" in name or name in (".", ".."):
            yield _bad("metadata.name", name, 'may not contain "/" or "%"')
    elif kind.plural in _DNS_LABEL_NAMES:
        if len(name) > 63 or not _LABEL.fullmatch(name):
            yield _bad("metadata.name", name, f"must be a DNS label: {_LABEL_RULE}")
    elif len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        yield _bad(
            "metadata.name", name, "a lowercase RFC 1123 subdomain must consist of DNS labels and dots"
        )


def _metadata_problems(meta: Obj) -> Iterator[str]:
    yield from _label_problems(meta.get("labels", {}), "metadata.labels")
    annotations = meta.get("annotations", {})
    for key in annotations:
        if not _QUALIFIED.fullmatch(key.lower()):
            yield _bad("metadata.annotations", key, _NAME_RULE)
    if sum(len(k) + len(v.encode()) for k, v in annotations.items()) > _MAX_ANNOTATIONS:
        yield f"metadata.annotations: Too long: may not be more than {_MAX_ANNOTATIONS} bytes"
    for index, reference in enumerate(meta.get("ownerReferences", ())):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not reference.get(field):
                yield f"metadata.ownerReferences[{index}].{field}: Required value: must not be empty"
    for finalizer in meta.get("finalizers", ()):
        if not _QUALIFIED.fullmatch(finalizer):
            yield _bad("metadata.finalizers", finalizer, _NAME_RULE)


def _label_problems(labels: Mapping[str, Any], where: str) -> Iterator[str]:
    for key, value in labels.items():
        if not _QUALIFIED.fullmatch(key):
            yield _bad(where, key, _NAME_RULE)
        if not isinstance(value, str) or len(value) > 63 or not _LABEL_VALUE.fullmatch(value):
            yield _bad(where, value, 'must be no more than 63 characters, alphanumeric, "-", "_" or "."')


def _pod_problems(pod: Obj) -> list[str]:
    return list(_pod_spec_problems(pod.get("spec", {}), "spec"))


def _template_problems(obj: Obj) -> list[str]:
    template = obj.get("spec", {}).get("template", {})
    labels = template.get("metadata", {}).get("labels", {})
    found = list(_label_problems(labels, "spec.template.metadata.labels"))
    selector = obj["spec"].get("selector")
    if not selector:
        found.append("spec.selector: Required value")
    elif not selectors.from_object(selector).matches(labels):
        found.append(
            _bad("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
        )
    return found + list(_pod_spec_problems(template.get("spec", {}), "spec.template.spec"))


def _job_problems(job: Obj) -> list[str]:
    found = _template_problems(job)
    if job["spec"]["template"]["spec"].get("restartPolicy") not in ("Never", "OnFailure"):
        found.append('spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"')
    return found


def _pod_spec_problems(spec: Obj, where: str) -> Iterator[str]:
    if not spec.get("containers"):
        yield f"{where}.containers: Required value"
    if spec.get("restartPolicy") not in ("Always", "OnFailure", "Never"):
        yield f'{where}.restartPolicy: Unsupported value: "{spec.get("restartPolicy")}"'
    for field in ("hostname", "subdomain"):
        if field in spec and (len(spec[field]) > 63 or not _LABEL.fullmatch(spec[field])):
            yield _bad(f"{where}.{field}", spec[field], f"must be a DNS label: {_LABEL_RULE}")
    volumes = {volume.get("name") for volume in spec.get("volumes", ())}
    names: set[str] = set()
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field, ())):
            here = f"{where}.{field}[{index}]"
            if container.get("name") in names:
                yield f'{here}.name: Duplicate value: "{container["name"]}"'
            names.add(container.get("name"))
            yield from _container_problems(container, volumes, here)


def _container_problems(container: Obj, volumes: set[Any], where: str) -> Iterator[str]:
    if not _LABEL.fullmatch(container.get("name", "")) or len(container["name"]) > 63:
        yield _bad(f"{where}.name", container.get("name"), f"must be a DNS label: {_LABEL_RULE}")
    if not container.get("image"):
        yield f"{where}.image: Required value"
    for mount in container.get("volumeMounts", ()):
        if mount.get("name") not in volumes:
            yield f'{where}.volumeMounts[].name: Not found: "{mount.get("name")}"'
    for variable in container.get("env", ()):
        if not _ENV_NAME.fullmatch(variable.get("name", "")):
            yield _bad(
                f"{where}.env[].name", variable.get("name"), "must be a valid environment variable name"
            )
        if "value" in variable and not isinstance(variable["value"], str):
            yield f"{where}.env[{variable.get('name')}].value: Invalid type: must be a string"
    yield from _port_problems(container.get("ports", ()), "containerPort", f"{where}.ports")
    yield from _quantity_problems(container.get("resources", {}), f"{where}.resources")


def _port_problems(ports: Iterable[Obj], field: str, where: str) -> Iterator[str]:
    for index, port in enumerate(ports):
        number = port.get(field)
        if not isinstance(number, int) or not 1 <= number <= 65535:
            yield _bad(f"{where}[{index}].{field}", number, "must be between 1 and 65535, inclusive")
        if len(port.get("name", "")) > 15 and field == "containerPort":
            yield _bad(f"{where}[{index}].name", port["name"], "must be no more than 15 characters")


def _quantity_problems(resources: Obj, where: str) -> Iterator[str]:
    for kind in ("limits", "requests"):
        for name, value in resources.get(kind, {}).items():
            if not _QUANTITY.fullmatch(str(value)):
                yield _bad(f"{where}.{kind}[{name}]", value, "is not a quantity")
    limits = resources.get("limits", {})
    for name, value in resources.get("requests", {}).items():
        extended = "/" in name  # devices cannot be overcommitted
        if extended and str(limits.get(name)) != str(value):
            yield _bad(f"{where}.requests[{name}]", value, "must be equal to the limit")


def _service_problems(service: Obj) -> list[str]:
    spec = service.get("spec", {})
    ports = spec.get("ports", ())
    found = list(_port_problems(ports, "port", "spec.ports"))
    if not ports and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        found.append("spec.ports: Required value")
    if len(ports) > 1 and not all(port.get("name") for port in ports):
        found.append("spec.ports[].name: Required value")
    return found


def _config_map_problems(config_map: Obj) -> list[str]:
    parts = [(part, config_map.get(part, {})) for part in ("data", "binaryData")]
    found = [
        _bad(f"{part}[{key}]", key, "must be at most 253 alphanumeric characters, '-', '_' or '.'")
        for part, values in parts
        for key in values
        if len(key) > 253 or not _CONFIG_KEY.fullmatch(key)
    ]
    if sum(len(value.encode()) for _, values in parts for value in values.values()) > _MAX_CONFIG_MAP:
        found.append(f"data: Too long: may not be more than {_MAX_CONFIG_MAP} bytes")
    return found


def _crd_problems(crd: Obj) -> list[str]:
    spec = crd.get("spec", {})
    wanted = f"{spec.get('names', {}).get('plural')}.{spec.get('group')}"
    if crd["metadata"]["name"] != wanted:
        return [_bad("metadata.name", crd["metadata"]["name"], f"must be {wanted}")]
    if sum(bool(version.get("storage")) for version in spec.get("versions", ())) != 1:
        return ["spec.versions: Invalid value: must have exactly one version marked as storage version"]
    return []


_RULES: Mapping[str, Callable[[Obj], list[str]]] = {
    "pods": _pod_problems,
    "deployments": _template_problems,
    "replicasets": _template_problems,
    "jobs": _job_problems,
    "services": _service_problems,
    "configmaps": _config_map_problems,
    "customresourcedefinitions": _crd_problems,
}

_IMMUTABLE: Mapping[str, tuple[str, ...]] = {
    "deployments": ("spec.selector",),
    "replicasets": ("spec.selector",),
    "jobs": ("spec.selector", "spec.template", "spec.completionMode"),
    "services": ("spec.clusterIP",),
    "controllerrevisions": ("data",),
    "rolebindings": ("roleRef",),
    "secrets": ("type",),
    "persistentvolumeclaims": ("spec.accessModes", "spec.storageClassName", "spec.volumeName"),
    "customresourcedefinitions": ("spec.group", "spec.names.plural", "spec.names.kind", "spec.scope"),
}


def _at(obj: Obj, path: str) -> Any:
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _sealed_change(old: Obj, new: Obj) -> list[str]:
    if old.get("immutable") is not True:
        return []
    return [
        f"{field}: Forbidden: field is immutable when `immutable` is set"
        for field in ("immutable", "data", "binaryData")
        if old.get(field) != new.get(field)
    ]


def _pod_change(old: Obj, new: Obj) -> list[str]:
    before, after = _pod_without_mutable(old["spec"]), _pod_without_mutable(new["spec"])
    found = []
    if before != after:
        changed = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
        found.append(
            "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions "
            f"to existing tolerations): changed {', '.join(changed)}"
        )
    if any(t not in new["spec"].get("tolerations", ()) for t in old["spec"].get("tolerations", ())):
        found.append(
            "spec.tolerations: Forbidden: existing toleration can not be modified except its "
            "tolerationSeconds"
        )
    return found


def _pod_without_mutable(spec: Obj) -> Obj:
    left = {k: v for k, v in spec.items() if k not in ("activeDeadlineSeconds", "tolerations")}
    for field in ("containers", "initContainers"):
        if field in left:
            left[field] = [{k: v for k, v in c.items() if k != "image"} for c in left[field]]
    return left


_CHANGE_RULES: Mapping[str, Callable[[Obj, Obj], list[str]]] = {
    "configmaps": _sealed_change,
    "secrets": _sealed_change,
    "pods": _pod_change,
}
