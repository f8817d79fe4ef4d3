"""The score head of the dual-head model at work: how much each token of a prompt matters (ElastiLM 3.3).

Owns how a prompt of the language model's tokens becomes texts of the encoder's, and what a run of the encoder
is billed. Must not know how heads are trained or where they lie, nor what becomes of scores.

The encoder reads word pieces and the language model its own tokens; both agree by characters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from repro.device.op import Op
from repro.methods.serving.shortening import Scorer
from repro.models.checkpoints.tokenizer import Tokenizer
from repro.models.costs.model_cost import precision
from repro.models.encoders.dual_head import DualHead
from repro.models.encoders.token_spans import TextSpan, carried, located
from repro.models.encoders.word_pieces import WordPieces

WORDLESS = 1.0
"""The score of a token without a word piece: line breaks and control tokens hold a prompt together."""


@dataclass(frozen=True)
class EncoderCost:
    """What a device is billed for one encoder.

    Attributes:
        layers: of the encoder, those of one head; half of them are shared.
        layer_weights: weights of one layer's linears.
        table: width of a row of the embedding table.
        transformed: weights of the linear between table and layers; 0 without one.
        attended: width of all heads' queries together.
        stored: precision of the weights and of the arithmetic.
    """

    layers: int
    layer_weights: int
    table: int
    transformed: int
    attended: int
    stored: str = "fp16"

    def op(self, name: str, rows: int, layers: int, on: str, embeds: bool) -> Op:
        """So many layers over so many rows, which all see each other."""
        kept = precision(self.stored)
        weights = layers * self.layer_weights + (self.transformed if embeds else 0)
        looked_up = rows * self.table if embeds else 0
        return Op(
            on,
            "layer",
            name,
            rows=rows,
            flops=2.0 * rows * weights + 4.0 * layers * rows * rows * self.attended,
            bytes=(weights + looked_up) * kept.bits / 8,
            precision=kept.arithmetic,
            launches=float(layers),
        )


MODEL_COSTS: dict[str, EncoderCost] = {
    # google/mobilebert-uncased: 24 layers, 512 wide, bottlenecks of 128. A layer's linears: two bottlenecks
    # in, 2 x 512 x 128, one out, 128 x 512, queries and keys 2 x 128 x 128, values 512 x 128, their output
    # 128 x 128, and 4 MLPs of 2 x 128 x 512: 835,584 weights. With both upper halves 36 layers, 30.1M, and
    # 4.4M of embeddings (30,522 x 128, 384 x 512 behind three of them, 514 x 512): 34.5M, the paper's
    # "about 40M".
    "mobilebert": EncoderCost(24, 835_584, 128, 384 * 512, 128),
    # 6 layers, 384 wide, MLPs of 1536: 4 x 384 x 384 + 2 x 384 x 1536.
    "minilm": EncoderCost(6, 1_769_472, 384, 0, 384),
}
"""By name. The paper's model ran on MobileBERT, so a device is billed that one, whichever computes."""


@dataclass(frozen=True)
class Reading:
    """The network between both tokenizers."""

    net: DualHead
    pieces: WordPieces
    text: Tokenizer

    def split(self, tokens: Sequence[int]) -> tuple[str, list[TextSpan], list[int], list[TextSpan]]:
        """The text of tokens, where they lie, and its word pieces and where these lie."""
        whole, spans = located(tokens, self.text.decode)
        return whole, spans, *self.pieces.split(whole)


@dataclass
class ScoreHead(Scorer):
    """Each token's probability of being retained; prompts that the encoder cannot hold are read in windows.

    Attributes:
        heads: the hash of the trained head.
        model_cost: a name of `MODEL_COSTS`.
        shares_bottom: the decision head read the same prompt before, so the layers that both share are billed
            there. Deviation: they are computed anew here, without the objective's tokens.
    """

    heads: str
    model_cost: str = field(repr=False)  # what tells scorers apart is what scores depend on
    shares_bottom: bool = field(repr=False)
    reading: Reading = field(repr=False)
    _said: dict[tuple[int, ...], list[float]] = field(default_factory=dict, repr=False)
    _rows: dict[tuple[int, ...], list[int]] = field(default_factory=dict, repr=False)

    def scores(self, tokens: Sequence[int]) -> Sequence[float]:
        """See `Scorer`: the mean over the word pieces that share a character with a token."""
        key = tuple(tokens)
        if key not in self._said:
            whole, spans, ids, at = self.reading.split(key)
            self._said[key] = carried(self._retained(whole, ids, at), at, spans, WORDLESS)
        return self._said[key]

    @torch.no_grad()
    def _retained(self, whole: str, ids: Sequence[int], at: Sequence[TextSpan]) -> list[float]:
        net, pieces = self.reading.net, self.reading.pieces
        said: list[float] = []
        for window in windows(whole, at, net.positions - 2):
            read = [pieces.first, *(ids[i] for i in window), pieces.last]
            said += net.retain(torch.tensor([read]))[0, 1:-1].softmax(-1)[:, 1].tolist()
        return said

    def ops(self, tokens: Sequence[int], on: str) -> tuple[Op, ...]:
        """See `Scorer`."""
        key, model_cost = tuple(tokens), MODEL_COSTS[self.model_cost]
        if key not in self._rows:
            whole, spans, _, at = self.reading.split(key)
            # Control tokens have no text and would have one piece each; a prompt of them alone has no piece.
            read = at or spans
            longest = self.reading.net.positions - 2
            self._rows[key] = [len(window) + 2 for window in windows(whole, read, longest)]
        layers = model_cost.layers - (model_cost.layers // 2 if self.shares_bottom else 0)
        whole_run = not self.shares_bottom
        return tuple(model_cost.op("score head", rows, layers, on, whole_run) for rows in self._rows[key])


def windows(text: str, at: Sequence[TextSpan], most: int) -> Iterator[range]:
    """Runs of at most so many pieces, cut at the last end of a line within, or where they are full.

    Args:
        text: the whole text.
        at: the span of each of its pieces.
        most: pieces in one window.
    """
    first = 0
    while first < len(at):
        last = min(first + most, len(at))
        if last < len(at):
            ends = (i for i in range(last, first, -1) if "\n" in text[at[i - 1].stop : at[i].start])
            last = next(ends, last)
        yield range(first, last)
        first = last
