"""Bad inputs that name their cause in a condition: one table for the simulator and for the process sandbox.

An entry turns a good object into a bad one; what the bad parts mean where the test runs (an image whose
command does not start, a source with a missing file) is the ground's to know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moe_operator.api.conditions import ConditionType, Reason

Obj = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ground:
    """Names of broken things, as they are arranged where a test runs."""

    broken_image: str  # its command cannot be started
    unreachable: str  # source that does not answer
    incomplete: str  # source without one of the files that its index names
    altered: str  # source whose bytes are not those of its manifest
    absent_secret: str = "nobody-made-this"


@dataclass(frozen=True, slots=True)
class BadInput:
    """``condition`` ends with ``reason``, and its message holds ``words``."""

    name: str
    spoil: Callable[[Obj, Ground], None]  # changes the spec in place
    condition: ConditionType
    reason: Reason
    words: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


def _image(spec: Obj, ground: Ground) -> None:
    spec["engine"]["image"] = ground.broken_image
    spec["restart"] = {"maxGroupRestarts": 0}


def _credentials(spec: Obj, ground: Ground) -> None:
    spec["model"]["credentialsRef"] = {"name": ground.absent_secret}


def _variable(spec: Obj, ground: Ground) -> None:
    reference = {"name": ground.absent_secret, "key": "token"}
    spec["engine"]["env"] = [{"name": "TOKEN", "valueFrom": {"secretKeyRef": reference}}]


def _source(attribute: str) -> Callable[[Obj, Ground], None]:
    def spoil(spec: Obj, ground: Ground) -> None:
        spec["model"]["source"] = getattr(ground, attribute)
        spec["restart"] = {"maxGroupRestarts": 0}

    return spoil


def _too_many_nodes(spec: Obj, _: Ground) -> None:
    spec["accelerators"]["nodes"] = 64


def _unknown_product(spec: Obj, _: Ground) -> None:
    spec["accelerators"]["product"] = "NVIDIA-H2O"


def _argument(spec: Obj, _: Ground) -> None:
    spec["engine"]["args"] = ["-tp", "4"]


def _layout(spec: Obj, _: Ground) -> None:
    spec["parallelism"] = {"tensor": 3}


BAD_INPUTS = (
    BadInput(
        "bad image command",
        _image,
        ConditionType.STALLED,
        Reason.REVISION_FAILED,
        ("container engine ended with exit code", "0 restarts are used up"),
    ),
    BadInput(
        "missing Secret of the source",
        _credentials,
        ConditionType.PLAN_ACCEPTED,
        Reason.CONTAINER_CONFIG_ERROR,
        ("FailedMount", 'secret "nobody-made-this" not found'),
    ),
    BadInput(
        "missing Secret of a variable",
        _variable,
        ConditionType.PROGRESSING,
        Reason.CONTAINER_CONFIG_ERROR,
        ("CreateContainerConfigError", 'secret "nobody-made-this" not found'),
    ),
    BadInput(
        "missing source file",
        _source("incomplete"),
        ConditionType.PLAN_ACCEPTED,
        Reason.SOURCE_NOT_FOUND,
        ("NOT_FOUND", "model-00002-of-00163.safetensors"),
    ),
    BadInput(
        "wrong SHA-256",
        _source("altered"),
        ConditionType.WEIGHTS_STAGED,
        Reason.CHECKSUM_MISMATCH,
        ("CHECKSUM_MISMATCH", "model-00001-of-00163.safetensors"),
    ),
    BadInput(
        "impossible GPU request",
        _too_many_nodes,
        ConditionType.PLACED,
        Reason.INSUFFICIENT_GPUS,
        ("needs 64 node(s) with 8 free GPUs each", "missing", "→ free GPUs"),
    ),
    BadInput(
        "unknown GPU product",
        _unknown_product,
        ConditionType.PLACED,
        Reason.UNKNOWN_PRODUCT,
        ("no node has NVIDIA-H2O", "the cluster has NVIDIA-H20", "→ set accelerators.product"),
    ),
    BadInput(
        "source unreachable",
        _source("unreachable"),
        ConditionType.PLAN_ACCEPTED,
        Reason.SOURCE_UNREACHABLE,
        ("NETWORK",),
    ),
    BadInput(
        "contradicting argument",
        _argument,
        ConditionType.PLAN_ACCEPTED,
        Reason.PLAN_REFUSED,
        ("ARG_CONTRADICTS_SPEC", "'-tp'", "--tensor-parallel-size", "→ remove it"),
    ),
    BadInput(
        "impossible layout",
        _layout,
        ConditionType.PLAN_ACCEPTED,
        Reason.PLAN_REFUSED,
        ("LAYOUT_GPU_MISMATCH", "= 15 ranks", "16", "→"),
    ),
)
