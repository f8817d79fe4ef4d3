"""Loading a decoder from a checkpoint folder.

Owns which tensor becomes which part. Reads `config.json` and `*.safetensors`. Must not know where folders
come from (`checkpoint`), nor about `transformers`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from repro.core.errors import InputError
from repro.libraries import Tensor, torch
from repro.models.checkpoints.digest import digest
from repro.models.checkpoints.safetensors_io import StoredTensors
from repro.models.checkpoints.weight_files import read_config
from repro.models.transformer import quantize
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.decoder import Decoder, EmbeddingAndHead
from repro.models.transformer.families import Names, config_of, family_of
from repro.models.transformer.layer import LayerWeights
from repro.models.transformer.linear import Linear, PlainLinear, fastest_linear
from repro.models.transformer.norm import LayerNorm, Norm, RMSNorm
from repro.models.transformer.rope import interleave

__all__ = ["DTYPES", "decoder_config", "digest", "layers", "load", "read_config"]

log = logging.getLogger(__name__)

Build: TypeAlias = "Callable[[Tensor, Tensor | None], Linear]"

DTYPES = ("float32", "bfloat16", "int4")

UNUSED = (
    r"(.*\.)?rotary_emb\.inv_freq",  # RoPE's frequencies, which follow from `config.json`
    r"(.*\.)?h\.\d+\.attn\.(masked_)?bias",  # GPT-2's causal mask
)
"""Names of tensors that say nothing of their own, in files of any decoder."""

OF_IMAGES = r"(model\.)?(vision_tower|multi_modal_projector)\..*"
"""Names of what a multimodal checkpoint has beside its text model."""


@dataclass(frozen=True)
class Builders:
    """What a dtype name means: the embedding's dtype, and what builds linears and the output projection."""

    table: torch.dtype
    build: Build
    head: Build


def load(
    folder: Path | str,
    dtype: str = "float32",
    is_packed: bool = True,
    embeddings_from: Decoder | None = None,
    *,
    is_resident: bool = True,
    device: torch.device | str = "cpu",
) -> Decoder:
    """Load the decoder in a checkpoint folder.

    `dtype` is one of `DTYPES`: `int4` rounds like Q4_1, and keeps embeddings in bf16 and the output
    projection in 8 bits, as 4-bit GGUF files do: with 4 bits a fifth of the greedy agreement is lost.
    `is_packed` is for speed: dense weights are reordered for oneDNN, and 8- and 4-bit ones get a 16-bit copy
    for passes of many rows, at 2 more bytes per weight. A checkpoint whose config sets
    `shares_embeddings` uses the embedding and output projection of `embeddings_from`. `resident=False` omits
    the layers, for streaming.

    Raises:
        InputError: an unknown dtype or model type; as for `decoder_config`; the shared embedding is not given
            or has the wrong shape.
    """
    reader = _CheckpointReader(folder, builders(dtype, is_packed, torch.device(device)), torch.device(device))
    ends = reader.lent_ends(embeddings_from) if reader.config.shares_embeddings else reader.own_ends()
    count = reader.config.layers
    return Decoder(reader.config, [reader.layer(i) if is_resident else None for i in range(count)], ends)


def decoder_config(folder: Path | str) -> DecoderConfig:
    """The configuration of a decoder's folder, not tied if the file has an output projection of its own.

    As in transformers 5, that decides against `tie_word_embeddings`, which says what to do without one.

    Raises:
        InputError: an entry of `config.json` is missing, wrong or not supported; a tensor of the model is
            missing from the folder or has the wrong shape, or the folder has one that is not read.
    """
    return _parts(folder)[0]


def tensor_shapes(config: DecoderConfig, names: Names, prefix: str) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor that a decoder's checkpoint has, by name."""
    width = config.embedding_width or config.hidden
    heads, kv_heads = config.heads * config.head_dim, config.kv_heads * config.head_dim
    linears = {
        "qkv": (config.qkv_rows, config.hidden, config.qkv_bias),
        "q": (heads, config.hidden, config.qkv_bias),
        **dict.fromkeys(("k", "v"), (kv_heads, config.hidden, config.qkv_bias)),
        "out": (config.hidden, heads, config.out_bias),
        **dict.fromkeys(("gate", "up"), (config.intermediate, config.hidden, config.mlp_bias)),
        "down": (config.hidden, config.intermediate, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {}

    def norm(name: str, size: int = config.hidden) -> None:
        shapes[f"{name}.weight"] = (size,)
        if config.norm == "layer":
            shapes[f"{name}.bias"] = (size,)

    for start in (prefix + names.layer.format(i) for i in range(config.layers)):
        for part, name in names.parts.items():
            if part not in linears:
                norm(start + name, config.head_dim if part in ("q_norm", "k_norm") else config.hidden)
                continue
            outputs, inputs, bias = linears[part]
            shapes[f"{start}{name}.weight"] = (inputs, outputs) if names.transposed else (outputs, inputs)
            if bias:
                shapes[f"{start}{name}.bias"] = (outputs,)
    if config.final_norm:
        norm(prefix + names.final_norm)
    if config.shares_embeddings:
        return shapes
    shapes[f"{prefix}{names.embedding}.weight"] = (config.vocab, width)
    if config.learned_positions:
        shapes[f"{prefix}{names.positions}.weight"] = (config.learned_positions, config.hidden)
    if config.projects:
        shapes[f"{prefix}{names.project_in}.weight"] = (config.hidden, width)
        shapes[f"{prefix}{names.project_out}.weight"] = (width, config.hidden)
    if not config.tied:
        shapes[f"{names.head}.weight"] = (config.vocab, width)
    if config.head_bias:
        shapes[f"{names.head}.bias"] = (config.vocab,)
    return shapes


def _parts(
    folder: Path | str,
) -> tuple[DecoderConfig, Names, StoredTensors, str, dict[str, tuple[int, ...]]]:
    """Configuration, tensor names, tensors, their prefix and their shapes."""
    config_json = read_config(folder)
    try:
        config, names = config_of(config_json), family_of(config_json).names
    except InputError as error:
        raise InputError(f"{folder}: {error}") from error
    stored_tensors = StoredTensors(folder)
    prefix = stored_tensors.prefix_of(names.layer.format(0), names.prefixes)
    later_layer = prefix + names.layer.format(config.layers)
    if stored_tensors.begins(later_layer):
        raise InputError(
            f"{folder} names {config.layers} layers in config.json and has tensors of more "
            f"({later_layer}*); set num_hidden_layers to what the file has, or remove the others"
        )
    if prefix.startswith("language_model."):
        names = replace(names, head=f"language_model.{names.head}")
    head = f"{names.head}.weight"
    is_extra = config.tied and not config.shares_embeddings and head in stored_tensors
    unused = [*UNUSED, *([OF_IMAGES] if "language_model" in prefix else []), *([re.escape(head)] * is_extra)]
    shapes = tensor_shapes(config, names, prefix)
    stored_tensors.require(shapes, re.compile("|".join(unused)))
    if is_extra:
        embedding = stored_tensors.take(f"{prefix}{names.embedding}.weight", stored_tensors.shape(head))
        if not torch.equal(stored_tensors.take(head, stored_tensors.shape(head)), embedding):
            log.info("%s: %s differs from the embedding and is read, although it is tied", folder, head)
            config = replace(config, tied=False)
            shapes = tensor_shapes(config, names, prefix)
    return config, names, stored_tensors, prefix, shapes


def layers(
    folder: Path | str, dtype: str = "float32", device: torch.device | str = "cpu"
) -> Iterator[LayerWeights]:
    """The layers of a checkpoint one by one, in a form that can be stored on flash; errors as in `load`."""
    reader = _CheckpointReader(folder, builders(dtype, False, torch.device(device)), torch.device(device))
    return map(reader.layer, range(reader.config.layers))


def builders(dtype: str, is_packed: bool, device: torch.device) -> Builders:
    """What builds the linears of one of `DTYPES`; `is_packed` as in `load`, which also has the errors."""
    if dtype not in DTYPES:
        raise InputError(f"unknown dtype {dtype!r}; choices: {', '.join(DTYPES)}")
    if dtype in ("float32", "bfloat16"):
        kind = getattr(torch, dtype)
        build_dense = partial(_dense, kind, is_packed)
        return Builders(kind, build_dense, build_dense)
    if device.type != "cpu":
        raise InputError(f"{dtype} weights run on the CPU only, not on {device}; choose float32 or bfloat16")
    int4, int8 = (partial(build, twin=is_packed) for build in (quantize.int4_linear, quantize.int8_linear))
    return Builders(torch.bfloat16, int4, int8)


def _dense(dtype: torch.dtype, is_packed: bool, weight: Tensor, bias: Tensor | None) -> Linear:
    plain_linear = PlainLinear(weight.to(dtype, copy=True), None if bias is None else bias.to(dtype))
    return fastest_linear(plain_linear) if is_packed else plain_linear


class _CheckpointReader:
    """A checkpoint folder, its configuration and the requested precision."""

    def __init__(self, folder: Path | str, precision: Builders, device: torch.device) -> None:
        self.config, self._names, self._stored, self._prefix, self._shapes = _parts(folder)
        self._precision = precision
        self._device = device
        self._order = interleave(self.config.rope, self.config.head_dim)

    def layer(self, layer: int) -> LayerWeights:
        """The weights of one layer."""
        config = self.config
        pre, post = config.block != "post", config.block in ("post", "sandwich")
        two_norms = config.block != "parallel"
        return LayerWeights(
            qkv=self._precision.build(*self._qkv(layer)),
            out=self._precision.build(*self._dense(layer, "out")),
            up=self._precision.build(*self._up(layer)),
            down=self._precision.build(*self._dense(layer, "down")),
            before_attention=self._norm(self._name(layer, "before_attention")) if pre else None,
            after_attention=self._norm(self._name(layer, "after_attention")) if post else None,
            before_mlp=self._norm(self._name(layer, "before_mlp")) if pre and two_norms else None,
            after_mlp=self._norm(self._name(layer, "after_mlp")) if post else None,
            qk_norm=self._qk_norm(layer) if config.qk_norm else None,
        )

    def own_ends(self) -> EmbeddingAndHead:
        """Embedding and output projection from this checkpoint."""
        config, n = self.config, self._names
        embedding = self._table(n.embedding)
        head = embedding if config.tied else self._take(f"{n.head}.weight")
        for part, table in (("embeddings", embedding), ("output projection", head)):
            if not table.any():
                raise InputError(f"the {part} in {self._stored.folder} are all zero: these are no weights")
        bias = self._take(f"{n.head}.bias") if config.head_bias else None
        return EmbeddingAndHead(
            embedding=embedding.to(self._precision.table, copy=True),
            head=self._precision.head(head, bias),
            final_norm=self._norm(self._prefix + n.final_norm) if config.final_norm else None,
            positions=self._table(n.positions).float() if config.learned_positions else None,
            project_in=self._precision.build(self._table(n.project_in), None) if config.projects else None,
            project_out=self._precision.build(self._table(n.project_out), None) if config.projects else None,
        )

    def lent_ends(self, embeddings_from: Decoder | None) -> EmbeddingAndHead:
        """Embedding and output projection of `embeddings_from`, with this checkpoint's final norm."""
        c = self.config
        if embeddings_from is None:
            raise InputError(
                f"{self._stored.folder} shares its target's embeddings: load it with embeddings_from"
            )
        lender_config = embeddings_from.config
        if (
            (lender_config.vocab, lender_config.hidden) != (c.vocab, c.hidden)
            or c.learned_positions
            or lender_config.projects
        ):
            raise InputError(
                f"{self._stored.folder} needs rotary positions and embeddings of {c.vocab} x {c.hidden}, "
                f"the lending decoder has {lender_config.vocab} x {lender_config.hidden}"
            )
        norm = self._norm(self._prefix + self._names.final_norm) if c.final_norm else None
        return EmbeddingAndHead(embeddings_from.ends.embedding, embeddings_from.ends.head, norm)

    def _take(self, name: str) -> Tensor:
        return self._stored.take(name, self._shapes[name]).to(self._device)

    def _name(self, layer: int, part: str) -> str:
        return self._prefix + self._names.layer.format(layer) + self._names.parts[part]

    def _table(self, name: str) -> Tensor:
        return self._take(f"{self._prefix}{name}.weight")

    def _dense(self, layer: int, part: str) -> tuple[Tensor, Tensor | None]:
        """Weight `[outputs, inputs]` and bias of a linear."""
        name = self._name(layer, part)
        weight = self._take(f"{name}.weight")
        if self._names.transposed:
            weight = weight.t().contiguous()
        return weight, self._take(f"{name}.bias") if f"{name}.bias" in self._shapes else None

    def _qkv(self, layer: int) -> tuple[Tensor, Tensor | None]:
        """The fused QKV weight and bias, with RoPE pairs interleaved."""
        if "qkv" in self._names.parts:
            return self._dense(layer, "qkv")
        parts = []
        for part in "qkv":
            weight, bias = self._dense(layer, part)
            if part != "v":
                weight = self._interleave(weight)
                bias = None if bias is None else self._interleave(bias)
            parts.append((weight, bias))
        return _join(parts)

    def _interleave(self, tensor: Tensor) -> Tensor:
        """A query or key projection with each head's rows in the order of `rope.interleave`."""
        heads = tensor.view(-1, self.config.head_dim, *tensor.shape[1:])
        return heads.index_select(1, self._order.to(tensor.device)).view(tensor.shape)

    def _up(self, layer: int) -> tuple[Tensor, Tensor | None]:
        """The MLP's first weight and bias; gate stacked on up if the MLP is gated."""
        return _join(
            [self._dense(layer, part) for part in (("gate", "up") if self.config.gated else ("up",))]
        )

    def _norm(self, name: str) -> Norm:
        config = self.config
        weight = self._take(f"{name}.weight").float() + config.norm_offset
        if config.norm == "rms":
            return RMSNorm.of(weight, config.norm_eps)
        return LayerNorm(weight, self._take(f"{name}.bias").float(), config.norm_eps)

    def _qk_norm(self, layer: int) -> RMSNorm:
        """The query and key norms as one, `[head_count + kv_heads, head_dim]`."""
        config = self.config
        rows = []
        for part, head_count in (("q_norm", config.heads), ("k_norm", config.kv_heads)):
            weight = self._take(f"{self._name(layer, part)}.weight").float() + config.norm_offset
            rows.append(weight[self._order.to(weight.device)].expand(head_count, -1))
        return RMSNorm.of(torch.cat(rows), config.norm_eps)


def _join(parts: Sequence[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor | None]:
    """Concatenate several linears with the same input."""
    weights = [weight for weight, _ in parts]
    biases = [bias for _, bias in parts if bias is not None]
    return torch.cat(weights), torch.cat(biases) if biases else None
