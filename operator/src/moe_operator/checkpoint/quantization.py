"""Which module of a checkpoint is stored how: ``quantization_config`` → a precision per module name.

The spellings are those of transformers' quantizers, llm-compressor and NVIDIA's ModelOpt: a default for all
linear layers, a list of what is left alone (plain names, ``*`` globs, ``re:`` expressions), and for mixed
precision a table per module. What no scheme ever quantizes (norms, routers, embeddings, convolution
weights) is not asked about here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Any

from moe_operator.checkpoint import precision as p
from moe_operator.checkpoint.fields import whole
from moe_operator.checkpoint.precision import BF16, Precision
from moe_operator.checkpoint.unreadable import UnreadableConfig

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Names:
    """A set of module names given as plain names, globs and regular expressions."""

    plain: frozenset[str] = frozenset()
    starts: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None

    @classmethod
    def of(cls, listed: Sequence[str]) -> Names:
        """From a list as ``ignore``, ``modules_to_not_convert`` or ``exclude_modules`` give it."""
        plain, starts, expressions = set(), [], []
        for name in listed:
            if name.startswith("re:"):
                expressions.append(f"(?:{name[3:]})")
            elif "*" not in name:
                plain.add(name)
            elif name.index("*") == len(name) - 1:
                starts.append(name[:-1])
            else:
                expressions.append(translate(name))
        try:
            pattern = re.compile("|".join(expressions)) if expressions else None
        except re.error as error:
            raise UnreadableConfig(f"quantization_config ignores by a bad expression: {error}") from None
        return cls(frozenset(plain), tuple(starts), pattern)

    def hold(self, module: str) -> bool:
        """Whether ``module``, one of its parents, or its own last names are listed."""
        if self.plain and not self.plain.isdisjoint(_runs(module)):
            return True
        if self.starts and module.startswith(self.starts):
            return True
        return bool(self.pattern and self.pattern.match(module))


def _runs(module: str) -> list[str]:
    """Every run of dotted components: ``a.b`` → a, a.b, b. A bare ``gate`` in a list means any gate."""
    parts = module.split(".")
    return [".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1)]


@dataclass(frozen=True, slots=True)
class Quantization:
    """``method`` is the config's own word, "" for an unquantized checkpoint."""

    method: str = ""
    linear: Precision = BF16
    routed: Precision | None = None  # when experts have a format of their own
    ignored: Names = Names()
    table: Mapping[str, Precision] = field(default_factory=dict)  # module (globs allowed) → precision
    experts_only: bool = False
    kv_fp8: bool = False

    def of(self, module: str, routed: bool = False) -> Precision:
        """How the weights of ``module`` are stored; ``routed`` = it belongs to a routed expert."""
        found = self._from_table(module)
        if found:
            return found
        if routed and self.routed:
            return self.routed
        if self.ignored.hold(module) or (self.experts_only and not routed):
            return BF16
        return self.linear

    def _from_table(self, module: str) -> Precision | None:
        parts = module.split(".")
        for end in range(len(parts), 0, -1):
            found = self.table.get(".".join(parts[:end]))
            if found:
                return found
        return None


def read_quantization(config: Config, inner: Config, side_file: Config | None = None) -> Quantization:
    """The scheme of ``config.json``; ``side_file`` is ModelOpt's ``hf_quant_config.json``.

    Raises UnreadableConfig for a method that nobody here can size.
    """
    declared = config.get("quantization_config") or inner.get("quantization_config")
    if not declared and side_file and isinstance(side_file.get("quantization"), Mapping):
        declared = {"quant_method": "modelopt", **side_file["quantization"]}
    if declared is None or declared == {}:
        return Quantization()
    if not isinstance(declared, Mapping):
        raise UnreadableConfig("config.json: quantization_config is not an object")
    method = str(declared.get("quant_method", ""))
    reader = _READERS.get(method)
    if reader is None:
        known = ", ".join(sorted(_READERS))
        raise UnreadableConfig(f"quantization_config: quant_method {method!r} is not one of {known}")
    return reader(method, declared, inner)


def _ignored(declared: Config) -> Names:
    names: list[str] = []
    for key in ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules"):
        value = declared.get(key) or ()
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise UnreadableConfig(f"quantization_config: {key} is not a list")
        names += [name for name in value if isinstance(name, str)]
    return Names.of(names)


def _fp8(method: str, declared: Config, inner: Config) -> Quantization:
    block = declared.get("weight_block_size")
    linear = p.fp8_block(*_pair(block)) if block else p.FP8_TENSOR
    # DeepSeek-V4: expert_dtype fp4 = routed experts in MXFP4 beside FP8 attention
    routed = p.MXFP4 if inner.get("expert_dtype") == "fp4" else None
    table = _table(declared)  # with one, ``ignore`` is about the table's formats; FP8 stays the default
    ignored = Names() if table else _ignored(declared)
    return Quantization(method, linear, routed=routed, ignored=ignored, table=table)


def _pair(block: Any) -> tuple[int, int]:
    if isinstance(block, Sequence) and len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block):
        return block[0], block[1]
    raise UnreadableConfig(f"quantization_config: weight_block_size = {block!r} is not two positive numbers")


def _compressed_tensors(method: str, declared: Config, _: Config) -> Quantization:
    groups = declared.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise UnreadableConfig("quantization_config: compressed-tensors without config_groups")
    first: Mapping[str, Any] = next(iter(groups.values()))
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        raise UnreadableConfig("quantization_config: config_groups without weights")
    form = str(first.get("format") or declared.get("format") or "")
    linear = _scheme_precision(weights, form)
    return Quantization(method, linear, ignored=_ignored(declared), kv_fp8=_kv_fp8(declared))


def _scheme_precision(weights: Config, form: str) -> Precision:
    bits, group = whole(weights, "num_bits"), _group(weights, "group_size")
    if weights.get("block_structure"):
        return p.fp8_block(*_pair(weights["block_structure"]))
    table: dict[tuple[str, int], Precision] = {
        ("float", 4): p.MXFP4 if "mxfp4" in form or group == 32 else p.NVFP4,
        ("float", 8): p.MXFP8 if group == 32 else p.FP8_CHANNEL,
    }
    found = table.get((str(weights.get("type")), bits))
    if found:
        return found
    if bits in {4, 8}:
        return p.grouped_int(bits, group, bool(weights.get("symmetric", True)))
    raise UnreadableConfig(f"quantization_config: {bits}-bit weights of type {weights.get('type')!r}")


def _mxfp4(method: str, declared: Config, _: Config) -> Quantization:
    return Quantization(method, p.MXFP4, ignored=_ignored(declared), experts_only=True)


_MODELOPT_PRECISIONS: Mapping[str, Precision] = {
    "NVFP4": p.NVFP4,
    "W4A16_NVFP4": p.NVFP4,
    "FP8": p.FP8_TENSOR,
    "FP8_PB_WO": p.fp8_block(128, 128),
    "MXFP8": p.MXFP8,
    "W4A16_AWQ": p.grouped_int(4, 128, symmetric=True),
    "W4A8_AWQ": p.grouped_int(4, 128, symmetric=True),
}


def _modelopt(method: str, declared: Config, _: Config) -> Quantization:
    algorithm = str(declared.get("quant_algo") or "")
    table = _table(declared)
    linear = _MODELOPT_PRECISIONS.get(algorithm, BF16)  # MIXED_PRECISION: what the table does not list
    if linear is BF16 and not table:
        raise UnreadableConfig(f"quantization_config: ModelOpt's quant_algo {algorithm!r} is not known")
    return Quantization(method, linear, ignored=_ignored(declared), table=table, kv_fp8=_kv_fp8(declared))


def _table(declared: Config) -> Mapping[str, Precision]:
    """ModelOpt's ``quantized_layers`` of mixed precision, expert numbers folded into ``*``."""
    listed = declared.get("quantized_layers")
    if not isinstance(listed, Mapping):
        return {}
    table: dict[str, Precision] = {}
    for module, entry in listed.items():
        algorithm = str(entry.get("quant_algo")) if isinstance(entry, Mapping) else ""
        if algorithm in _MODELOPT_PRECISIONS:
            table[re.sub(r"\bexperts\.\d+\b", "experts.*", module)] = _MODELOPT_PRECISIONS[algorithm]
    return table


def _kv_fp8(declared: Config) -> bool:
    scheme = declared.get("kv_cache_scheme")
    bits = scheme.get("num_bits") if isinstance(scheme, Mapping) else None
    return bool(bits == 8) or declared.get("kv_cache_quant_algo") == "FP8"


def _weight_only(method: str, declared: Config, _: Config) -> Quantization:
    bits = whole(declared, "bits", "w_bit", default=4)
    group = _group(declared, "group_size", "q_group_size", default=128)
    asymmetric = bool(declared.get("zero_point")) or declared.get("sym") is False
    return Quantization(method, p.grouped_int(bits, group, not asymmetric), ignored=_ignored(declared))


def _group(declared: Config, *names: str, default: int = 0) -> int:
    """Group size; -1 means one group per output channel."""
    if any(declared.get(name) == -1 for name in names):
        return 0
    return whole(declared, *names, default=default)


def _int8(method: str, declared: Config, _: Config) -> Quantization:
    return Quantization(method, p.grouped_int(8, 0, symmetric=True), ignored=_ignored(declared))


def _mxfp8(method: str, declared: Config, _: Config) -> Quantization:
    return Quantization(method, p.MXFP8, ignored=_ignored(declared))


def _fp8_channel(method: str, declared: Config, _: Config) -> Quantization:
    return Quantization(method, p.FP8_CHANNEL, ignored=_ignored(declared))


_READERS: Mapping[str, Callable[[str, Config, Config], Quantization]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8_channel,
    "compressed-tensors": _compressed_tensors,
    "mxfp4": _mxfp4,
    "mxfp8": _mxfp8,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "modelopt_mixed": _modelopt,
    "awq": _weight_only,
    "gptq": _weight_only,
    "auto-round": _weight_only,
    "w8a8_int8": _int8,
}
