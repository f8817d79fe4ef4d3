"""Medusa heads: configuration, weights in the public checkpoint format, operators, and their passes.

The format is that of `FasterDecoding/Medusa`: a residual block h + SiLU(W h + b) on the target's last hidden
state after its final norm, then a linear to the vocabulary. Head k reads the hidden state at token t and
predicts token t + k + 2. The logits after a sequence come from the head that predicts its next token
(`MedusaLineage`), independent of the draft tokens between. Must not know about token trees, memos, devices or
where features come from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.libraries import F, Tensor, torch
from repro.methods.speculative.drafting.head_ranks import RANKS_FILE as RANKS
from repro.models.checkpoints.config_settings import HARMLESS_KEYS
from repro.models.checkpoints.safetensors_io import PickledTensors, StoredTensors, Tensors
from repro.models.checkpoints.validate import MEDUSA_FILE
from repro.models.checkpoints.weight_files import EMPTY_VALUES
from repro.models.costs.model_cost import Shape
from repro.models.forward.logit_cache import row_key
from repro.models.forward.network import Features, Logits, Step
from repro.models.tokens.kv_slots import MedusaLineage
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.decoder import EmbeddingAndHead
from repro.models.transformer.inference import inference
from repro.models.transformer.layer import LayerWeights
from repro.models.transformer.linear import Linear, PlainLinear, fastest_linear
from repro.models.transformer.norm import Norm

DTYPES = ("float32", "bfloat16")
HEADS_KEY, LAYERS_KEY = "medusa_num_heads", "medusa_num_layers"
"""Entries of a `config.json` of Medusa heads, which has the first one."""

OTHER_KEYS = ("base_model_name_or_path", "version")
"""Entries of public heads that change nothing: their target's name, and the version of their trainer."""


RANK_NAMES = re.compile("ranks|begins")
"""Tensors of the heads' recorded ranks (`head_ranks`), which may lie beside theirs."""


@dataclass(frozen=True)
class MedusaConfig:
    """Configuration of the Medusa heads in a folder.

    Attributes:
        heads: number of heads in the tensor file; `config.json` may name fewer.
        layers: blocks per head in that file. The public code stores one block under several names.
        target_hidden: hidden size of the target.
        target_vocab: vocabulary size of the target.
        untied: True if each head has an output projection; else all use the target's.
    """

    heads: int
    layers: int
    target_hidden: int
    target_vocab: int
    untied: bool

    max_positions = None

    @property
    def shape(self) -> Shape:
        """Dimensions for the cost model."""
        return Shape.of_medusa(
            self.heads, self.target_hidden, self.target_vocab, not self.untied, self.layers
        )

    def depths(self, layer_count: int) -> tuple[int, ...]:
        """Numbers of target layers after which hidden states are read: after all `layer_count`."""
        return (layer_count,)


def config_of(folder: Path, config_json: Mapping[str, Any], vocab: int) -> MedusaConfig:
    """The configuration of the heads in a folder.

    Args:
        folder: folder of the tensors.
        config_json: contents of its `config.json`.
        vocab: vocabulary size of the target, for heads that use its output projection.

    Raises:
        InputError: the folder has no heads, or not the tensors of each, or others; `config.json` names other
            numbers of blocks, more heads, or has an entry that is not read.
    """
    for name in (HEADS_KEY, LAYERS_KEY):
        if name in config_json and (type(config_json[name]) is not int or config_json[name] < 1):
            raise InputError(f"{name} is {config_json[name]!r} in {folder}; it must be 1 or more")
    tensors = _tensors(folder)
    heads = next(k for k in count() if f"{k}.0.linear.weight" not in tensors)
    layers = next(j for j in count() if f"0.{j}.linear.weight" not in tensors)
    if not heads:
        raise InputError(f"{folder} holds no tensor 0.0.linear.weight, as Medusa heads have")
    if layers != config_json.get(LAYERS_KEY, layers) or heads < config_json[HEADS_KEY]:
        raise InputError(
            f"{folder} has tensors of {heads} heads with {layers} blocks each, and its config.json names "
            f"{HEADS_KEY}={config_json[HEADS_KEY]}, {LAYERS_KEY}={config_json.get(LAYERS_KEY, 'nothing')}"
        )
    untied = f"0.{layers}.weight" in tensors
    width = tensors.shape("0.0.linear.weight")[0]
    config = MedusaConfig(
        heads=heads,
        layers=layers,
        target_hidden=width,
        target_vocab=tensors.shape(f"0.{layers}.weight")[0] if untied else vocab,
        untied=untied,
    )
    blocks = [f"{k}.{layer}.linear" for k in range(heads) for layer in range(layers)]
    shapes: dict[str, tuple[int, ...]] = {f"{block}.weight": (width, width) for block in blocks}
    shapes |= {f"{block}.bias": (width,) for block in blocks}
    if untied:
        shapes |= {f"{k}.{layers}.weight": (config.target_vocab, width) for k in range(heads)}
    tensors.require(shapes, RANK_NAMES)
    _require_entries(config_json, config)
    return config


def _require_entries(config_json: Mapping[str, Any], config: MedusaConfig) -> None:
    """InputError for the first entry of a `config.json` that is not read, or says what the tensors do not."""
    sizes = {"hidden_size": config.target_hidden, "vocab_size": config.target_vocab}
    for name, value in config_json.items():
        if (
            value in EMPTY_VALUES
            or name in (HEADS_KEY, LAYERS_KEY, *OTHER_KEYS, *HARMLESS_KEYS)
            or value == sizes.get(name)
        ):
            continue
        reason = f"; its tensors have {sizes[name]}" if name in sizes else ", which is not read here"
        raise InputError(f"config.json of Medusa heads has {name}={value!r}{reason}")


@dataclass(frozen=True)
class MedusaHeads:
    """Operators of all heads; each input row belongs to one head, and rows are fp32 in every precision.

    Attributes:
        blocks: per layer one linear per head, `[hidden] -> [hidden]`.
        projections: one output projection per head, or a single shared one.
        norm: the target's final norm.
    """

    config: MedusaConfig
    blocks: Sequence[Sequence[Linear]]
    projections: Sequence[Linear]
    norm: Norm | None
    device: torch.device

    def hidden(self, features: Tensor, heads: Sequence[int]) -> Tensor:
        """The heads' hidden states from the target's after its last layer, both `[rows, hidden]`."""
        x = features if self.norm is None else self.norm(features)
        for linears in self.blocks:
            x = x + F.silu(_each(linears, x, heads))
        return x

    def logits(self, hidden: Tensor, heads: Sequence[int]) -> Tensor:
        """Logits of hidden states, fp32 `[rows, vocab]`."""
        return _each(self.projections, hidden, heads)


def _each(linears: Sequence[Linear], x: Tensor, heads: Sequence[int]) -> Tensor:
    """Apply each row's head's linear, or the single shared one."""
    if len(linears) == 1:
        return linears[0](x).float()
    head_of_row = torch.tensor(heads, device=x.device)
    order = torch.cat([(head_of_row == head).nonzero()[:, 0] for head in dict.fromkeys(heads)])
    outputs = torch.cat([linears[head](x[head_of_row == head]).float() for head in dict.fromkeys(heads)])
    return outputs[order.argsort()]


def load(
    folder: Path, config: MedusaConfig, dtype: str, ends: EmbeddingAndHead, device: torch.device | str = "cpu"
) -> MedusaHeads:
    """Load the heads in a folder.

    Args:
        folder: `config.json`, and `medusa_lm_head.pt` or `*.safetensors` with the same tensor names.
        config: the heads' configuration.
        dtype: `float32` or `bfloat16`.
        ends: the target's final norm, and its output projection for heads without one.
        device: device of the weights.

    Raises:
        InputError: unsupported dtype; a tensor is missing or has the wrong shape.
    """
    if dtype not in DTYPES:
        raise InputError(f"Medusa heads compute in {' or '.join(DTYPES)}: {unknown('dtype', dtype, DTYPES)}")
    tensors, c, width = _tensors(folder), config, config.target_hidden

    def linear(weight: str, output_count: int, bias: str = "") -> Linear:
        matrix = tensors.take(weight, (output_count, width)).to(device, getattr(torch, dtype), copy=True)
        vector = (
            tensors.take(bias, (output_count,)).to(device, getattr(torch, dtype), copy=True) if bias else None
        )
        return fastest_linear(PlainLinear(matrix, vector))

    blocks = [
        [linear(f"{k}.{layer}.linear.weight", width, f"{k}.{layer}.linear.bias") for k in range(c.heads)]
        for layer in range(c.layers)
    ]
    projections = (
        [linear(f"{k}.{c.layers}.weight", c.target_vocab) for k in range(c.heads)] if c.untied else []
    )
    return MedusaHeads(c, blocks, projections or [ends.head], ends.final_norm, torch.device(device))


def _tensors(folder: Path) -> Tensors:
    """The weights from safetensors if any exist (the rank record does not count), else from the pickle."""
    if any(path.name != RANKS for path in folder.glob("*.safetensors")):
        return StoredTensors(folder)
    return PickledTensors(folder / MEDUSA_FILE)


class MedusaNetwork:
    """Medusa heads and the target's features they read; see `Network`."""

    depth = 1

    def __init__(self, head_count: int, load: Callable[[], MedusaHeads], features: Features) -> None:
        """`head_count` heads, which `load` returns on first use."""
        self._count = head_count
        self._load = load
        self.features = features
        self.lineage = MedusaLineage(0, head_count)

    @cached_property
    def heads(self) -> MedusaHeads:
        """The weights."""
        return self._load()

    def start(self, prompt: Prefix) -> None:
        """See `Network`; the target prefills the prompt before its heads draft."""
        self.lineage = MedusaLineage(prompt.length, self._count)
        self.features.start()

    def key(self, prefix: Prefix) -> bytes:
        """What a row is stored under: the sequence whose feature is read, and the head that reads it."""
        root, head = self.lineage.root_and_head(prefix)
        return row_key(root.digest, head + 1)

    def begin(self, wanted_prefixes: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """See `Network`."""
        return _MedusaStep(self, wanted_prefixes)

    def keep(self, text: Prefix) -> None:
        """See `Network`."""
        self.lineage.keep(text)
        self.features.keep(text)


class _MedusaStep(Step):
    def __init__(self, network: MedusaNetwork, prefixes: Sequence[Prefix]) -> None:
        self._network = network
        pairs = [network.lineage.root_and_head(prefix) for prefix in prefixes]
        self._roots, self._heads = [root for root, _ in pairs], [head for _, head in pairs]
        self._hidden: Tensor | None = None

    @inference
    def layers(self, start: int, end: int, streamed: Sequence[LayerWeights] | None = None) -> None:
        assert streamed is None, "heads stay in memory"
        if start < end:
            heads = self._network.heads
            features = self._network.features.of(self._roots).to(heads.device)
            self._hidden = heads.hidden(features, self._heads)

    @inference
    def rows(self, at: Sequence[int] | None = None) -> list[Logits]:
        assert self._hidden is not None, "heads say nothing before their layer has run"
        indices = list(range(len(self._heads)) if at is None else at)
        logits = self._network.heads.logits(self._hidden[indices], [self._heads[i] for i in indices])
        return [Logits(row) for row in logits]
