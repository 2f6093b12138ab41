"""LIST in pages: all pages of one list show the same moment, or the client is told to start again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from moe_operator.runtime.kube import ApiError
from moe_operator.sandbox.api_store import Stored

_REMEMBERED = 64  # unfinished lists; the oldest is forgotten first


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list; ``more`` asks for the next part, ``left`` counts what it does not hold."""

    items: tuple[Stored, ...]
    revision: int
    more: str = ""
    left: int = 0


@dataclass(slots=True)
class Pages:
    """Unfinished lists by the token of their next page."""

    _unfinished: OrderedDict[str, tuple[list[Stored], int, int]] = field(default_factory=OrderedDict)
    _count: int = 0

    def first(self, items: list[Stored], revision: int, limit: int) -> Page:
        """The beginning of a list; ``limit`` 0 = all of it."""
        return self._page(items, revision, 0, limit)

    def next(self, token: str, limit: int) -> Page:
        """Where a list was left; ApiError 410 when that is no longer known."""
        try:
            items, revision, start = self._unfinished.pop(token)
        except KeyError:
            text = "The provided continue parameter is too old to display a consistent list result"
            raise ApiError(410, "Expired", text) from None
        return self._page(items, revision, start, limit)

    def _page(self, items: list[Stored], revision: int, start: int, limit: int) -> Page:
        end = start + limit if limit else len(items)
        if end >= len(items):
            return Page(tuple(items[start:]), revision)
        self._count += 1
        token = f"page-{self._count}"
        self._unfinished[token] = items, revision, end
        if len(self._unfinished) > _REMEMBERED:
            self._unfinished.popitem(last=False)
        return Page(tuple(items[start:end]), revision, token, len(items) - end)
