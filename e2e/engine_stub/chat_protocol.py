"""The OpenAI requests as vLLM reads them, and the bodies and stream frames that it answers with.

Key order, the nulls that are present and those that are left out are what the recordings show: a whole
answer carries every null, stream frames only what was set.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .generation import Step
from .tokens import Sampling, Tokenizer


class BadRequest(Exception):
    """The request cannot be served; becomes an error body with ``status``."""

    def __init__(
        self, message: str, param: str | None, kind: str = "BadRequestError", status: int = 400
    ) -> None:
        super().__init__(message)
        self.message, self.param, self.kind, self.status = message, param, kind, status


def error_body(message: str, kind: str, param: str | None, code: int) -> dict[str, Any]:
    """vLLM's nested error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True, slots=True)
class Asked:
    """A completion request, validated. ``prompt`` is the text that the model sees."""

    model: str
    prompt: str
    sampling: Sampling
    n: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    echo: bool = False


def parse_json(body: bytes) -> dict[str, Any]:
    """The body as an object; BadRequest in the words of the validator that vLLM uses."""
    try:
        value = json.loads(body)
    except ValueError as error:
        raise _invalid(
            "json_invalid", "body.0", "JSON decode error", {}, {"error": str(error).split(":")[0]}
        ) from None
    if not isinstance(value, dict):
        raise _invalid("model_attributes_type", "body", "Input should be a valid dictionary", value)
    return value


def parse_chat(body: Mapping[str, Any], tokenizer: Tokenizer, limit: int) -> Asked:
    """A chat completion request; ``limit`` is max_model_len."""
    if "messages" not in body:
        raise _invalid("missing", "body.messages", "Field required", body)
    messages = body["messages"]
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise _invalid("list_type", "body.messages", "Input should be a valid list", messages)
    prompt = "".join(f"<|{one.get('role')}|>{_text(one.get('content'))}\n" for one in messages)
    return _asked(body, prompt + "<|assistant|>", tokenizer, limit, default_tokens=None)


def parse_completion(body: Mapping[str, Any], tokenizer: Tokenizer, limit: int) -> Asked:
    """A text completion request."""
    prompt = body.get("prompt")
    if prompt is None:
        raise BadRequest("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
        prompt = tokenizer.decode(prompt)
    elif isinstance(prompt, list):
        prompt = "\n".join(_text(part) for part in prompt)
    return _asked(body, str(prompt), tokenizer, limit, default_tokens=16)


def _asked(
    body: Mapping[str, Any], prompt: str, tokenizer: Tokenizer, limit: int, default_tokens: int | None
) -> Asked:
    used = len(tokenizer.encode(prompt))
    wanted = body.get("max_completion_tokens") or body.get("max_tokens") or default_tokens
    options = body.get("stream_options") or {}
    stop = body.get("stop") or []
    return Asked(
        model=str(body.get("model") or ""),
        prompt=prompt,
        sampling=Sampling(
            max_tokens=_room(wanted, used, limit),
            min_tokens=_integer(body, "min_tokens", 0),
            stop=(stop,) if isinstance(stop, str) else tuple(map(str, stop)),
            seed=body.get("seed"),
            ignore_eos=bool(body.get("ignore_eos")),
        ),
        n=max(1, _integer(body, "n", 1)),
        stream=bool(body.get("stream")),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        echo=bool(body.get("echo")),
    )


def _room(wanted: Any, used: int, limit: int) -> int:
    if wanted is None:
        wanted = max(0, limit - used) or 1
    if not isinstance(wanted, int) or isinstance(wanted, bool):
        raise _invalid("int_parsing", "body.max_tokens", "Input should be a valid integer", wanted)
    if wanted < 1:
        message = f"max_tokens must be at least 1, got {wanted}. (parameter=max_tokens, value={wanted})"
        raise BadRequest(message, "max_tokens")
    if wanted > limit:
        raise BadRequest(
            f"max_tokens={wanted} cannot be greater than max_model_len={limit}. "
            f"Please request fewer output tokens. (parameter=max_tokens, value={wanted})",
            "max_tokens",
        )
    if used + wanted > limit:
        raise BadRequest(
            f"This model's maximum context length is {limit} tokens. However, you requested {wanted} output "
            f"tokens and your prompt contains at least {used} input tokens, for a total of at least "
            f"{used + wanted} tokens. Please reduce the length of the input prompt or the number of "
            f"requested output tokens. (parameter=input_tokens, value={used})",
            "input_tokens",
        )
    return wanted


def _integer(body: Mapping[str, Any], name: str, default: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int):
        raise _invalid("int_parsing", f"body.{name}", "Input should be a valid integer", value)
    return value


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(_text(part.get("text")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def _invalid(
    kind: str, where: str, message: str, given: Any, context: dict[str, str] | None = None
) -> BadRequest:
    shown = f"<dict of {len(given)} items>" if isinstance(given, Mapping) else repr(given)
    detail: dict[str, Any] = {"type": kind, "loc": where, "msg": message, "input": shown}
    if context:
        detail["ctx"] = context
    return BadRequest(f"1 validation error:\n  {detail}", where, "Bad Request")


@dataclass(slots=True)
class Reply:
    """One answer being put together; ``usage`` grows with every token."""

    id: str
    model: str
    fingerprint: str
    prompt_tokens: int
    chat: bool
    created: int = 0
    completion_tokens: int = 0

    def __post_init__(self) -> None:
        self.created = int(time.time())

    @property
    def usage(self) -> dict[str, int]:
        """Tokens so far."""
        total = self.prompt_tokens + self.completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": total,
            "completion_tokens": self.completion_tokens,
        }

    def opening(self, n: int) -> list[dict[str, Any]]:
        """The first frames of a chat stream: the role of each choice."""
        return [
            {
                **self._head("chat.completion.chunk"),
                "choices": [
                    {
                        "index": index,
                        "delta": {"role": "assistant", "content": ""},
                        "logprobs": None,
                        "finish_reason": None,
                    }
                ],
                "prompt_token_ids": None,
                "prompt_text": None,
            }
            for index in range(n)
        ]

    def frame(self, step: Step, *, last: bool, usage: bool) -> dict[str, Any]:
        """One token as a frame; the stream's last one (without a usage frame) carries the fingerprint."""
        self.completion_tokens += step.finish_reason != "abort"
        choice: dict[str, Any] = {"index": step.index}
        choice |= {"delta": {"content": step.text}} if self.chat else {"text": step.text}
        choice |= {"logprobs": None, "finish_reason": step.finish_reason}
        if step.finish_reason or not self.chat:
            choice["stop_reason"] = step.stop_reason
        if self.chat:
            choice["token_ids"] = None
        frame = {
            **self._head("chat.completion.chunk" if self.chat else "text_completion"),
            "choices": [choice],
        }
        if usage:
            frame["usage"] = self.usage
        if last:
            frame["system_fingerprint"] = self.fingerprint
        return frame

    def usage_frame(self) -> dict[str, Any]:
        """The frame that ``stream_options.include_usage`` adds."""
        return {
            **self._frame_head,
            "choices": [],
            "usage": self.usage,
            "system_fingerprint": self.fingerprint,
        }

    def whole(self, texts: Mapping[int, str], ends: Mapping[int, Step]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choices = [self._choice(texts[index], ends[index]) for index in sorted(texts)]
        head = self._head("chat.completion" if self.chat else "text_completion")
        body = {
            **head,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": {**self.usage, "prompt_tokens_details": None, "completion_tokens_details": None},
        }
        transfer = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
        prompt = {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        return {**body, **(prompt if self.chat else {}), **transfer}

    def _choice(self, text: str, end: Step) -> dict[str, Any]:
        ended = {"logprobs": None, "finish_reason": end.finish_reason, "stop_reason": end.stop_reason}
        if not self.chat:
            extra = {"token_ids": None, "prompt_logprobs": None, "prompt_token_ids": None}
            return {"index": end.index, "text": text, **ended, **extra, "routed_experts": None}
        message = {
            "role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None,
            "function_call": None, "reasoning": None,
        }  # fmt: skip
        return {
            "index": end.index,
            "message": message,
            **ended,
            "token_ids": None,
            "routed_experts": None,
        }

    @property
    def _frame_head(self) -> dict[str, Any]:
        return self._head("chat.completion.chunk" if self.chat else "text_completion")

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def sse(value: Any) -> bytes:
    """One frame of an event stream."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
EVENT_STREAM = {"content-type": "text/event-stream; charset=utf-8", "vary": "Origin"}
