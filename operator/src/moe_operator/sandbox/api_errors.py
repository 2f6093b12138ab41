"""The API server's refusals, worded as it words them."""

from __future__ import annotations

from moe_operator.runtime.kube import ApiError, Kind

UNKNOWN = "Unknown"  # what clients call a refusal that names no reason


def resource_name(kind: Kind) -> str:
    """``pods``, ``deployments.apps``: how messages name a resource."""
    return f"{kind.plural}.{kind.group}" if kind.group else kind.plural


def not_found(kind: Kind, name: str) -> ApiError:
    """404: the object is absent."""
    return ApiError(404, "NotFound", f'{resource_name(kind)} "{name}" not found')


def no_such_resource() -> ApiError:
    """404: nothing serves that path (a CRD that is not installed, for one)."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def already_exists(kind: Kind, name: str) -> ApiError:
    """409: a create met an object of that name."""
    return ApiError(409, "AlreadyExists", f'{resource_name(kind)} "{name}" already exists')


def conflict(kind: Kind, name: str, why: str) -> ApiError:
    """409: a precondition does not hold."""
    return ApiError(
        409, "Conflict", f'Operation cannot be fulfilled on {resource_name(kind)} "{name}": {why}'
    )


def stale(kind: Kind, name: str) -> ApiError:
    """409: the resourceVersion of the request is not the stored one."""
    return conflict(
        kind,
        name,
        "the object has been modified; please apply your changes to the latest version and try again",
    )


def precondition(kind: Kind, name: str, field: str, wanted: str, actual: str) -> ApiError:
    """409: a delete or a write was meant for another life or state of the object."""
    why = f"Precondition failed: {field} in precondition: {wanted}, {field} in object meta: {actual}"
    return conflict(kind, name, why)


def invalid(kind: Kind, name: str, problems: list[str]) -> ApiError:
    """422: the object breaks rules; every broken rule is in the message."""
    text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
    subject = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    return ApiError(422, "Invalid", f'{subject} "{name}" is invalid: {text}')


def not_typed(kind: Kind, namespace: str, name: str, why: str) -> ApiError:
    """500 without a reason: an applied configuration does not fit the schema that it would be merged by."""
    what = f"{namespace}/{name}; {kind.api_version}, Kind={kind.kind}"
    return ApiError(500, UNKNOWN, f"failed to create typed patch object ({what}): {why}")


def forbidden(kind: Kind, name: str, why: str) -> ApiError:
    """403: allowed in general, not here or not now."""
    return ApiError(403, "Forbidden", f'{resource_name(kind)} "{name}" is forbidden: {why}')


def bad_request(why: str) -> ApiError:
    """400: the request cannot be understood."""
    return ApiError(400, "BadRequest", why)


def expired(asked: int, oldest: int) -> ApiError:
    """410: the history that a watch or a continued list needs is gone."""
    return ApiError(410, "Expired", f"too old resource version: {asked} ({oldest})")


def clash(owners: list[tuple[str, list[str]]]) -> ApiError:
    """409: an apply would take these fields from these managers."""
    count = sum(len(fields) for _, fields in owners)
    text = "; ".join(f'conflict with "{manager}": {", ".join(fields)}' for manager, fields in owners)
    return ApiError(409, "Conflict", f"Apply failed with {count} conflict{'s' * (count > 1)}: {text}")
