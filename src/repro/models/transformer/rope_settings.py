"""RoPE settings of a `config.json`, as transformers 5 reads them.

Owns the types that are computed and what each must have. Must not know families.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from repro.core.errors import InputError
from repro.models.checkpoints.config_entries import Entries, require_kind
from repro.models.transformer.config import Rope, RopeKind

_ROPES: dict[str, RopeKind] = {
    "default": "default",
    "linear": "linear",
    "llama3": "llama3",
    "longrope": "longrope",
}
_ROPE_NEEDS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
}
"""Settings that a rope type must have."""


def choice(table: Mapping[str, Any], what: str, name: str) -> Any:
    """The entry of a table; InputError with all names if it has none of this one."""
    if name not in table:
        raise InputError(f"unsupported {what} {name!r}; supported: {', '.join(sorted(table))}")
    return table[name]


def read_rope(raw: Entries, share: float = 1.0) -> Rope:
    """RoPE settings: `rope_scaling` replaces `rope_parameters` whole; other entries fill in what it lacks."""
    new, old = raw.get("rope_parameters"), raw.get("rope_scaling")
    return rope_of(raw, old or new or {}, raw.get("rope_theta") or 10_000.0, share)


def rope_of(raw: Entries, settings: Mapping[str, Any], theta: float, share: float = 1.0) -> Rope:
    """RoPE of these settings; `theta`, the file's `partial_rotary_factor` or `share` where they lack them."""
    for name, value in settings.items():
        require_kind(name, value)
        if isinstance(value, Mapping):
            raise InputError(f"rope settings of their own for {name!r} are not supported")
    kind = choice(_ROPES, "rope type", settings.get("rope_type") or settings.get("type") or "default")
    for name in _ROPE_NEEDS.get(kind, ()):
        if settings.get(name) is None:
            raise InputError(f"rope type {kind!r} lacks {name}")
    rope = Rope(
        theta=float(settings.get("rope_theta") or theta),
        share=float(settings.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or share),
        kind=kind,
    )
    if kind == "longrope":
        return replace(rope, factors=_factors(settings))
    if kind == "linear":
        return replace(rope, factor=float(settings["factor"]))
    if kind == "llama3":
        before = settings.get("original_max_position_embeddings") or raw["max_position_embeddings"]
        return replace(
            rope,
            factor=float(settings["factor"]),
            low_frequency_factor=float(settings["low_freq_factor"]),
            high_frequency_factor=float(settings["high_freq_factor"]),
            original_positions=before,
        )
    return rope


def _factors(settings: Mapping[str, Any]) -> tuple[float, ...]:
    """The factor of each pair's frequency; InputError unless it is the same at every length."""
    short, long = settings["short_factor"], settings["long_factor"]
    if short != long or settings.get("attention_factor") != 1.0:
        raise InputError(
            "rope type 'longrope' is supported only with equal short_factor and long_factor and an "
            "attention_factor of 1"
        )
    for value in short:
        require_kind("factor", value)
    return tuple(map(float, short))
