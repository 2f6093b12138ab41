"""What every API model is made of: the base class, bounded types and cross-field rules.

A model says the same thing three times over and may not contradict itself: Pydantic checks it in
Python, :mod:`moe_operator.api.crd` turns it into a structural schema, and each :class:`Rule` carries one
CEL expression for the API server next to one Python predicate for us. A test holds the three together.

Invariants: every string, list and map is bounded (CEL costs stay inside the API server's budget);
patterns are RE2 and Python ``re`` at once, anchored at both ends, ASCII classes only; an explicit null
means absent, as it does in the API server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function


class FieldError(NamedTuple):
    """One thing wrong with an object: where, as ``spec.engine.args[3]``, and what."""

    path: str
    message: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule over several members of one object, for the API server and for Python.

    ``field`` is the member to blame, as its JSON name; ``holds`` gets the validated model, ``cel`` the
    defaulted object as ``self``.
    """

    field: str
    message: str
    cel: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Unique:
    """Marks a list whose items are told apart by ``keys``, or by their whole value without keys.

    The API server refuses duplicates of such lists and merges them item by item on server-side apply.
    """

    keys: tuple[str, ...] = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        schema["x-kubernetes-list-type"] = "map" if self.keys else "set"
        if self.keys:
            schema["x-kubernetes-list-map-keys"] = list(self.keys)
        return schema

    def _check(self, items: list[Any]) -> list[Any]:
        seen: set[Any] = set()
        for item in items:
            identity = tuple(getattr(item, key) for key in self.keys) if self.keys else item
            if identity in seen:
                raise ValueError(f"duplicate item {identity!r}")
            seen.add(identity)
        return items


def map_list(*keys: str) -> Unique:
    """A list whose items are told apart by ``keys``."""
    return Unique(keys)


SET_LIST = Unique()


class ApiModel(BaseModel):
    """An object of the API: frozen, camelCase outside, unknown members dropped."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        strict=True,
        extra="ignore",
        use_attribute_docstrings=True,
    )
    RULES: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        return _without_nulls(data)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Itself: nothing here is ever changed in place, and Pydantic copies defaults by the thousand."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """The object as it travels: JSON names, absent members left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def below(path: str, member: str) -> str:
    """Path of a member of the object at ``path``; "" is the root."""
    return f"{path}.{member}" if path else member


def broken_rules(value: object, path: str) -> Iterator[FieldError]:
    """Every :class:`Rule` that does not hold in ``value`` and below it."""
    if isinstance(value, ApiModel):
        for rule in value.RULES:
            if not rule.holds(value):
                yield FieldError(below(path, rule.field), rule.message)
        for attribute, name in _with_rules_below(type(value)):
            yield from broken_rules(getattr(value, attribute), below(path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from broken_rules(item, f"{path}[{index}]")


@cache
def _with_rules_below(model: type[ApiModel]) -> tuple[tuple[str, str], ...]:
    """(attribute, JSON name) of each member in which a rule may be broken: few of some hundred."""
    fields = model.model_fields.items()
    return tuple((name, info.alias or name) for name, info in fields if _has_rules(info.annotation))


def _has_rules(annotation: Any) -> bool:
    if parts := get_args(annotation):
        return any(_has_rules(part) for part in parts)
    if not (isinstance(annotation, type) and issubclass(annotation, ApiModel)):
        return False
    return bool(annotation.RULES or _with_rules_below(annotation))


_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_SUBDOMAIN = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*"
_LABEL_WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"

DnsLabel = Annotated[str, Field(max_length=63, pattern=rf"^{_DNS_LABEL}$")]
ObjectName = Annotated[str, Field(max_length=253, pattern=rf"^{_DNS_SUBDOMAIN}$")]
LabelValue = Annotated[str, Field(max_length=63, pattern=rf"^{_LABEL_WORD}$")]
QualifiedName = Annotated[str, Field(max_length=317, pattern=rf"^({_DNS_SUBDOMAIN}/)?{_LABEL_WORD}$")]
EnvName = Annotated[str, Field(max_length=256, pattern=r"^[-._A-Za-z][-._A-Za-z0-9]*$")]
Cpu = Annotated[str, Field(max_length=16, pattern=r"^([1-9][0-9]{0,5}(\.[0-9]{1,3})?|[1-9][0-9]{0,8}m)$")]
Bytes = Annotated[
    str, Field(max_length=24, pattern=r"^[1-9][0-9]{0,14}(\.[0-9]{1,3})?([KMGTPE]i|[kMGTPE])?$")
]
Share = Annotated[str, Field(max_length=8, pattern=r"^(0|1)\.[0-9]{1,4}$")]
Percent = Annotated[str, Field(max_length=8, pattern=r"^(100|[0-9]{1,2}(\.[0-9]{1,3})?)$")]
Text = Annotated[str, Field(max_length=1024)]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if item is not None}
    return value


NULL_IS_ABSENT = BeforeValidator(_without_nulls)
LongText = Annotated[str, Field(max_length=16_384)]
Annotations = Annotated[dict[str, LongText], Field(max_length=64), NULL_IS_ABSENT]
StringMap = Annotated[dict[str, Text], Field(max_length=64), NULL_IS_ABSENT]
Passthrough = Annotated[dict[str, Any], Field(max_length=64)]


class LocalReference(ApiModel):
    """An object in the deployment's own namespace."""

    name: ObjectName
    """Name of the object."""
