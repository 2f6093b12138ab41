"""A tokenizer that needs no vocabulary file, and answers that are a pure function of their question.

A token is two bytes of UTF-8 where the model's vocabulary has room for that, else one; text survives a
round trip. What the model "says" is syllables chosen by a hash of prompt, seed, served model and weights,
so two engines with the same weights agree word for word and a new revision does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PAIRS = 256 + 65_536  # single bytes first, then pairs
_SYLLABLES = tuple(f"{a}{b}" for a in "bdfgklmnprstvz" for b in "aeiou")
_STARTS = tuple(f" {letter}" for letter in "abcdefghijklmnopqrstuvw")
_PAIR_WORDS = _SYLLABLES + _STARTS * 2
_SINGLE_WORDS = tuple("abcdefghijklmnopqrstuvwxyz    ")
SHORTEST, LONGEST = 24, 280  # tokens before the model would stop by itself

GARBAGE = {"nan": "!!", "repeat": "the ", "empty": "", "wrong_lang": "的"}


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Text ↔ token ids for a vocabulary of ``size``."""

    size: int

    @property
    def _width(self) -> int:
        return 2 if self.size >= PAIRS else 1

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``."""
        data, width = text.encode(), self._width
        return [_token(data[at : at + width]) for at in range(0, len(data), width)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``; ValueError for an id outside the vocabulary."""
        return b"".join(self._bytes(token) for token in ids).decode(errors="replace")

    def _bytes(self, token: int) -> bytes:
        if not 0 <= token < self.size:
            raise ValueError(f"token {token} is not in the vocabulary")
        if token < 256:
            return bytes([token])
        return divmod(token - 256, 256)[0].to_bytes(2, "big")[1:] + bytes([(token - 256) % 256])

    @property
    def words(self) -> tuple[str, ...]:
        """What the model may say: each is exactly one token."""
        return _PAIR_WORDS if self._width == 2 else _SINGLE_WORDS


def _token(data: bytes) -> int:
    return data[0] if len(data) == 1 else 256 + data[0] * 256 + data[1]


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a request asks of the model."""

    max_tokens: int
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice, complete: a text per token, and why it ends."""

    pieces: tuple[str, ...]
    finish_reason: str
    stop_reason: str | None = None


def answer(words: Sequence[str], question: str, sampling: Sampling) -> Answer:
    """The model's answer; ``question`` holds everything it depends on beside the seed."""
    root = hashlib.sha256(f"{question}\n{sampling.seed}".encode()).digest()
    natural = SHORTEST + int.from_bytes(root[:2], "big") % (LONGEST - SHORTEST)
    natural = max(natural, sampling.min_tokens + 1)
    ends_by_itself = not sampling.ignore_eos and natural <= sampling.max_tokens
    count = natural - 1 if ends_by_itself else sampling.max_tokens
    chosen = _chosen(words, root, count)
    if sampling.stop and (cut := _stopped(chosen, sampling)):
        return cut
    if ends_by_itself:
        return Answer((*chosen, ""), "stop")  # the end-of-text token has no text
    return Answer(chosen, "length")


def _chosen(words: Sequence[str], root: bytes, count: int) -> tuple[str, ...]:
    return tuple(word for word, _ in zip(_stream(words, root), range(count), strict=False))


def _stream(words: Sequence[str], root: bytes) -> Iterator[str]:
    block = 0
    while True:
        for value in hashlib.sha256(root + block.to_bytes(4, "big")).digest():
            yield words[value % len(words)]
        block += 1


def _stopped(pieces: Sequence[str], sampling: Sampling) -> Answer | None:
    """Cut at the first stop string, which is not part of the text."""
    text = "".join(pieces)
    found = [(text.find(stop), stop) for stop in sampling.stop if stop in text]
    if not found:
        return None
    at, stop = min(found)
    kept, length = [], 0
    for piece in pieces:
        kept.append(piece[: max(0, at - length)])
        length += len(piece)
        if length >= at + len(stop):
            break
    return Answer(tuple(kept), "stop", stop)
