"""Importance of each shard of a checkpoint, measured once and cached.

Knows nothing of devices, of shard costs, or of how the ranking is used.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from repro.libraries import Tensor, torch
from repro.models.forward.network import VERSION
from repro.models.quantization.dictionary_rounding import WeightPiece, map_shards, round_shards
from repro.models.transformer import weights
from repro.models.transformer.cache import KVCache
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.decoder import Decoder, EmbeddingAndHead
from repro.models.transformer.inference import inference
from repro.models.transformer.layer import LayerWeights
from repro.records.build_cache import computed_once, memory_root

log = logging.getLogger(__name__)

TEXT_TOKENS = 192
"""Number of calibration tokens used."""

CALIBRATION_TEXT = """\
The baker opens her shop at six. Before that she has mixed flour, water and salt, let the dough
rest twice, and heated the oven to 240 degrees. "Two loaves, please," says the first customer, "and one of the
small ones." That is 2 x 3.50 plus 1.20, so he pays 8.20 in all and gets 1.80 back from a ten.

Question: Why does bread rise?
Answer: Yeast eats the sugar in the dough and gives off carbon dioxide. The gas is held by the gluten, which
stretches, and the loaf grows until the heat of the oven kills the yeast and sets the crumb.

def price(loaves, rolls):
    \"\"\"What a customer pays.\"\"\"
    total = 3.5 * loaves + 1.2 * rolls
    return round(total, 2)

In the evening, when the street is quiet, she counts the money, sweeps the floor and writes down what she
has to buy.
"""
"""Calibration text for importance: a story, arithmetic, a question and a function; written for this project.

Deviation: STI measures on the development set of its task; ours serves every dataset.
"""


def importance(
    folder: Path,
    dtype: str,
    config: DecoderConfig,
    ends: EmbeddingAndHead,
    text: Sequence[int],
    narrowest: int,
) -> list[list[float]]:
    """Change in the model's output when one shard is rounded to the narrowest width, `[layer][shard]`.

    The value is the mean KL divergence of the next-token distributions, in nats.
    Deviation: STI widens one shard of a model that is otherwise at its narrowest. A generative decoder does
    not work at that width, so the ranks would be noise; we narrow one shard of the unrounded model.

    Args:
        folder: the checkpoint.
        dtype: one of `shards.DENSE`.
        config: configuration of the checkpoint.
        ends: embeddings and output projection of its decoder.
        text: calibration token ids; the first `TEXT_TOKENS` are used.
        narrowest: bits of the narrowest width.
    """
    kind = f"{dtype}-{ends.embedding.device.type}-{narrowest}bits"
    path = memory_root() / "shards" / f"{weights.digest(folder)[:16]}-{kind}-runtime{VERSION}.json"

    def compute() -> list[list[float]]:
        log.warning("ranking %d x %d shards of %s, once", config.layers, config.kv_heads, folder.name)
        return _Profile(folder, dtype, ends, config, text[:TEXT_TOKENS]).divergences(narrowest)

    scores: list[list[float]] = computed_once(path, compute)
    return scores


class _Profile:
    """A forward pass of the unrounded model that can be resumed at any layer with changed weights."""

    def __init__(
        self, folder: Path, dtype: str, ends: EmbeddingAndHead, config: DecoderConfig, text: Sequence[int]
    ) -> None:
        device = ends.embedding.device
        self._config = config
        self._decoder = Decoder(config, list(weights.layers(folder, dtype, device=device)), ends)
        self._positions = torch.arange(len(text), device=device)
        self._tokens = torch.tensor(text, device=device)

    @inference
    def divergences(self, narrowest: int) -> list[list[float]]:
        """See `importance`."""
        layers, rows = self._decoder.resident_layers(), []
        x = self._decoder.embed(self._tokens, self._positions)
        logprobs = self._rest(x, layers)
        inputs = [x, *self._decoder.states(x, self._positions, None, self._cache())]
        for i, (layer, x) in enumerate(zip(layers, inputs[:-1], strict=True)):
            coarser = round_shards(layer, self._config, [narrowest] * self._config.kv_heads)
            mixes = (_taking(coarser, layer, self._config, shard) for shard in range(self._config.kv_heads))
            rows.append([_divergence(logprobs, self._rest(x, [mix, *layers[i + 1 :]])) for mix in mixes])
        return rows

    def _rest(self, x: Tensor, layers: Sequence[LayerWeights]) -> Tensor:
        """Log-probabilities `[rows, vocab]` with `layers` as the last ones, of which `x` is the input."""
        last_layers = range(self._config.layers - len(layers), self._config.layers)
        *_, x = self._decoder.states(x, self._positions, None, self._cache(), last_layers, layers)
        return self._decoder.head(x).log_softmax(-1)

    def _cache(self) -> KVCache:
        return KVCache(self._config, len(self._tokens), device=self._decoder.device)


def _taking(from_layer: LayerWeights, layer: LayerWeights, config: DecoderConfig, shard: int) -> LayerWeights:
    """A layer with one shard taken from another layer."""

    def theirs(piece: WeightPiece, _: Tensor) -> Tensor:
        weight: Tensor = getattr(from_layer, piece.linear).weight
        return weight[piece.rows, piece.columns]

    return map_shards(layer, config, {shard: theirs})


def _divergence(logprobs: Tensor, changed_logprobs: Tensor) -> float:
    return float((logprobs.exp() * (logprobs - changed_logprobs)).sum(-1).mean())
