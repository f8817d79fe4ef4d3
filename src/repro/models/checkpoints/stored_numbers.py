"""Weights that are stored as other numbers with a scale beside them: which formats are read, and how.

Owns one table of formats and their rule. A format, an option or a type that is not in it is refused by name,
never cast. Must not know which tensor is which part of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.core.errors import InputError
from repro.models.checkpoints.weight_files import StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = ("F32", "F16", "BF16")
"""The safetensors types that are plain numbers."""

KEYS = ("quantization_config", "quantization", "compression_config")
"""Entries of `config.json` that say how numbers are stored: transformers', MLX's, older llm-compressor's."""

REFUSED_PARTS = ("zero_point", "qzeros", "g_idx")
"""Tensors that change what the numbers beside them mean in a way that is not read here."""


BESIDE = ("weight_format", "input_scale", "output_scale")
"""Further tensors beside a quantized weight: how bitsandbytes orders it, and scales of activations."""

BESIDE_CACHE = ("k_scale", "v_scale")
"""Tensors beside an attention's weights: the scales of a quantized KV cache."""


@dataclass(frozen=True)
class Scheme:
    """How a checkpoint's quantized weights become numbers: stored value times scale over `divisor`.

    Attributes:
        name: the format, for messages and records.
        kind: safetensors type of the quantized weights.
        scales: names of the scale beside `weight`; the first that is there counts.
        divisor: what the scale is divided by.
        block: rows and columns that share a scale where it is neither one nor one for each row.
        activations: whether the format quantizes activations too, which is not done here.
    """

    name: str
    kind: str
    scales: tuple[str, ...]
    divisor: float = 1.0
    block: tuple[int, int] | None = None
    activations: bool = False

    def scale_of(self, weight: str, names: Any) -> str | None:
        """The name of a weight's scale among `names`, or None."""
        start = weight.rpartition("weight")[0]
        return next((start + scale for scale in self.scales if start + scale in names), None)

    def explains(self, name: str, names: Any) -> bool:
        """Whether a tensor is a scale or another number of the format's, beside a weight among `names`."""
        start, _, part = name.rpartition(".")
        if part in BESIDE_CACHE:
            return any(f"{start}.{which}_proj.weight" in names for which in "kv")
        return part in (*self.scales, *BESIDE) and f"{start}.weight" in names

    def dequantized(self, name: str, weight: Tensor, scale: Tensor) -> Tensor:
        """The numbers that a stored weight `[rows, columns]` means, fp32; InputError for another block."""
        wide = scale.float() / self.divisor
        if wide.numel() > 1:
            wide = wide[:, None] if wide.dim() == 1 else wide
            for dimension, size in enumerate(weight.shape):
                parts, block = wide.shape[dimension], self.block[dimension] if self.block else 0
                if parts not in (1, size):
                    if not block or parts != ceil(size / block):
                        raise InputError(
                            f"the scale of {name} has shape {list(scale.shape)}, which is no part of "
                            f"{list(weight.shape)} by blocks of {self.block}"
                        )
                    wide = wide.repeat_interleave(block, dimension).narrow(dimension, 0, size)
        return weight.float() * wide.reshape(wide.shape if wide.numel() > 1 else ())

    @property
    def note(self) -> str:
        """What a record says of such weights."""
        more = "; its activations, which it quantizes too, are not quantized here" if self.activations else ""
        return f"weights dequantized from {self.name}{more}"


Says = Mapping[str, Any]
Allowed = Mapping[str, Sequence[Any] | None]
"""Values that an entry may have; None allows every one, since it does not change what weights mean."""

NOTHING: tuple[Any, ...] = (None, False, {}, [], "")
"""Values by which an entry that is not known says nothing."""


def scheme_of(raw: Mapping[str, Any]) -> Scheme | None:
    """The format in which a `config.json` says that weights are stored; None for plain numbers.

    Raises:
        InputError: the format or one of its options is not read here.
    """
    parts = [part for part in (raw, raw.get("text_config")) if isinstance(part, Mapping)]
    said = [(key, part[key]) for part in parts for key in KEYS if part.get(key) not in NOTHING]
    if not said:
        return None
    key, config = said[0]
    if not isinstance(config, Mapping):
        raise InputError(f"{key} is {config!r}; it must be a mapping")
    method = config.get("quant_method") or _unnamed(key, config)
    if method not in FORMATS:
        raise InputError(
            f"its weights are quantized by {method!r} ({key}), which is not read here; dequantized are "
            f"{', '.join(FORMATS)}; or save it dequantized, in {', '.join(FLOATS)}"
        )
    return FORMATS[method](config)


def require_plain(raw: Mapping[str, Any]) -> None:
    """InputError for quantized weights, where the model is computed by transformers and not by us."""
    if scheme := scheme_of(raw):
        raise InputError(f"{raw.get('model_type')} in {scheme.name} is not read; only plain numbers are")


def _unnamed(key: str, config: Says) -> str:
    """The method of an entry that names none."""
    if config.get("load_in_8bit") or config.get("load_in_4bit"):
        return "bitsandbytes"
    return "MLX" if key == "quantization" else "compressed-tensors" if key == "compression_config" else "?"


def _require(method: str, config: Says, allowed: Allowed) -> None:
    """InputError for the first entry whose value is not read here."""
    for name, value in config.items():
        choices = allowed.get(name, NOTHING)
        if choices is not None and value not in (*choices, None):
            wanted = f"; read are {', '.join(map(repr, choices))}" if name in allowed else ""
            raise InputError(
                f"its weights are quantized by {method} with {name}={value!r}, not read here{wanted}"
            )


def _pair(method: str, name: str, value: Any) -> tuple[int, int]:
    if (
        not isinstance(value, list | tuple)
        or len(value) != 2
        or not all(type(v) is int and v > 0 for v in value)
    ):
        raise InputError(
            f"its weights are quantized by {method} with {name}={value!r}; it must be two counts"
        )
    return value[0], value[1]


FP8: Allowed = {
    "quant_method": None,
    "activation_scheme": ("dynamic", "static"),
    "fmt": ("e4m3", "float8_e4m3fn"),
    "scale_fmt": ("float", "ue8m0"),
    "weight_block_size": None,
    **dict.fromkeys(("modules_to_not_convert", "ignored_layers", "modules_to_convert", "dequantize")),
}


def _fp8(config: Says) -> Scheme:
    """Fine-grained float8: times `weight_scale_inv` by block; or times `weight_scale`."""
    _require("fp8", config, FP8)
    size = config.get("weight_block_size", (128, 128))  # as transformers, which also lets null be one block
    block = _pair("fp8", "weight_block_size", size) if size is not None else None
    return Scheme("fp8", "F8_E4M3", ("weight_scale_inv", "weight_scale"), block=block, activations=True)


COMPRESSED: Allowed = {
    "quant_method": None,
    "format": ("int-quantized", "float-quantized"),
    "quantization_status": ("compressed",),
    "sparsity_config": ({"format": "dense"}, *NOTHING),
    **dict.fromkeys(("config_groups", "ignore", "version", "global_compression_ratio", "kv_cache_scheme")),
}
GROUP: Allowed = dict.fromkeys(("weights", "input_activations", "output_activations", "targets", "format"))
WEIGHTS: Allowed = {
    "num_bits": (8,),
    "symmetric": (True,),
    "type": ("int", "float"),
    "strategy": ("tensor", "channel", "block", "group"),
    **dict.fromkeys(("group_size", "block_structure", "observer", "observer_kwargs", "scale_dtype")),
}


def _compressed(config: Says) -> Scheme:
    """compressed-tensors with whole bytes: times `weight_scale`, by tensor, row, group or block."""
    _require("compressed-tensors", config, COMPRESSED)
    if config.get("format") not in ("int-quantized", "float-quantized"):
        raise InputError("its weights are quantized by compressed-tensors without a format, not read here")
    kind = "I8" if config["format"] == "int-quantized" else "F8_E4M3"
    scheme = Scheme(f"compressed-tensors {config['format']}", kind, ("weight_scale",))
    groups = config.get("config_groups") or {}
    blocks: set[tuple[int, int]] = set()
    activations = bool(config.get("kv_cache_scheme"))
    for group in groups.values() if isinstance(groups, Mapping) else [groups]:
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            raise InputError(f"its weights are quantized by compressed-tensors with config_groups={groups!r}")
        _require("compressed-tensors", group, GROUP)
        _require("compressed-tensors", weights, WEIGHTS)
        activations = activations or bool(group.get("input_activations") or group.get("output_activations"))
        size, structure = weights.get("group_size"), weights.get("block_structure")
        if weights.get("strategy") == "block":
            blocks.add(_pair("compressed-tensors", "block_structure", structure))
        elif weights.get("strategy") == "group":
            blocks.add(_pair("compressed-tensors", "group_size", [1, size]))
    if len(blocks) > 1:
        raise InputError(
            f"its weights are quantized by compressed-tensors in several blocks: {sorted(blocks)}"
        )
    return replace(scheme, block=next(iter(blocks), None), activations=activations or not groups)


BITSANDBYTES: Allowed = {
    "quant_method": None,
    **{name: (True,) for name in ("load_in_8bit", "_load_in_8bit")},
    **{name: (False,) for name in ("load_in_4bit", "_load_in_4bit")},
    **dict.fromkeys(
        f"llm_int8_{name}"
        for name in ("threshold", "skip_modules", "enable_fp32_cpu_offload", "has_fp16_weight")
    ),
    **dict.fromkeys(
        f"bnb_4bit_{name}" for name in ("quant_type", "quant_storage", "compute_dtype", "use_double_quant")
    ),
}


def _bitsandbytes(config: Says) -> Scheme:
    """LLM.int8: times `SCB` of the row over 127."""
    _require("bitsandbytes", config, BITSANDBYTES)
    return Scheme("bitsandbytes int8", "I8", ("SCB",), 127.0, activations=True)


FORMATS: dict[str, Callable[[Says], Scheme]] = {
    "fp8": _fp8,
    "compressed-tensors": _compressed,
    "bitsandbytes": _bitsandbytes,
}
"""Each format by its `quant_method`."""


def require_read(
    scheme: Scheme | None, tensors: Mapping[str, StoredTensor], home: Mapping[str, Path]
) -> None:
    """InputError unless every weight is a plain number, or one that the scheme makes a number of.

    Args:
        scheme: how the configuration says that weights are stored.
        tensors: all tensors that count, by name.
        home: the file of each.
    """
    for name, stored in tensors.items():
        part = name.rpartition(".")[2]
        if any(refused in part for refused in REFUSED_PARTS):
            raise InputError(
                f"{home[name]} has {name}, which moves or orders quantized numbers, not read here"
            )
        if scheme and part == "weight_format":
            _require_rows(name, stored, home[name])
        elif "weight" in part and "scale" not in part:
            scale = scheme.scale_of(name, tensors) if scheme else None
            if stored.kind not in FLOATS and not (scheme and scale and stored.kind == scheme.kind):
                raise InputError(_unread(name, stored, home[name], scheme))
            if stored.kind in FLOATS and scale:
                raise InputError(f"{home[name]} stores {name} as {stored.kind} and has {scale} beside it")
            if scale and tensors[scale].kind not in FLOATS:
                raise InputError(_unread(scale, tensors[scale], home[scale], scheme))
        elif part == "bias" and len(stored.shape) == 1 and stored.kind not in FLOATS:  # 4: GPT-2's masks
            raise InputError(_unread(name, stored, home[name], None))


def _unread(name: str, stored: StoredTensor, path: Path, scheme: Scheme | None) -> str:
    rule = f" or {scheme.kind} with {' or '.join(scheme.scales)} beside it ({scheme.name})" if scheme else ""
    return f"{path} stores {name} as {stored.kind}; a weight is {', '.join(FLOATS)}{rule}"


def _require_rows(name: str, stored: StoredTensor, path: Path) -> None:
    """InputError unless bitsandbytes stores this weight row by row, as format 0."""
    with path.open("rb") as stream:
        stream.seek(stored.begin)
        if (order := stream.read(1)) != b"\0":
            raise InputError(
                f"{path} has {name} {order[0] if order else '?'}; only 0, row by row, is read here"
            )
