"""The score head of the dual-head TLM: importance of each prompt token (ElastiLM 3.3).

Owns the conversion of a prompt into encoder inputs, and the emulated cost of the encoder. Must not know how
heads are trained, where they are stored, or how scores are used.

Word pieces of the encoder and tokens of the language model are aligned by characters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from repro.device.op import Op
from repro.methods.elastilm.dual_head_network import DualHead
from repro.methods.elastilm.token_spans import TextSpan, carry_over, locate_tokens
from repro.methods.elastilm.word_pieces import WordPieces
from repro.methods.serving.shortening import Scorer
from repro.models.checkpoints.tokenizer import Tokenizer
from repro.models.costs.model_cost import Precision, precision

FP16 = precision("fp16")

WORDLESS_SCORE = 1.0
"""Score of tokens without a word piece (line breaks, control tokens), which structure the prompt."""


@dataclass(frozen=True)
class EncoderCost:
    """Cost of one encoder pass on an emulated device.

    Attributes:
        layers: layers per head; the lower half is shared by both heads.
        layer_weights: weights of one layer's linears.
        table: width of the embedding table.
        transformed: weights of the linear between embedding and layers; 0 without one.
        attended: total query width of all heads.
    """

    layers: int
    layer_weights: int
    table: int
    transformed: int
    attended: int

    def op(
        self, name: str, row_count: int, layer_count: int, on: str, embeds: bool, stored_precision: Precision
    ) -> Op:
        """An op of `layer_count` layers, stored in a precision, over `row_count` tokens; full attention."""
        weights = layer_count * self.layer_weights + (self.transformed if embeds else 0)
        table_reads = row_count * self.table if embeds else 0
        return Op(
            on,
            "layer",
            name,
            rows=row_count,
            flops=2.0 * row_count * weights + 4.0 * layer_count * row_count * row_count * self.attended,
            bytes=(weights + table_reads) * stored_precision.bits / 8,
            precision=stored_precision.arithmetic,
            launches=float(layer_count),
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
"""Costs by name. The paper's TLM is MobileBERT, so its cost is the default, whichever encoder computes."""


@dataclass(frozen=True)
class Reading:
    """The network, the encoder's tokenizer, and the language model's tokenizer."""

    net: DualHead
    pieces: WordPieces
    tokenizer: Tokenizer

    def split(self, tokens: Sequence[int]) -> tuple[str, list[TextSpan], list[int], list[TextSpan]]:
        """Decode tokens: the text, the span of each token, the word pieces, the span of each piece."""
        text, spans = locate_tokens(tokens, self.tokenizer.decode)
        return text, spans, *self.pieces.split(text)


@dataclass
class ScoreHead(Scorer):
    """Retention probability of each token; prompts beyond the encoder's context are split into windows.

    Attributes:
        heads: hash of the trained head.
        model_cost: key of `MODEL_COSTS`.
        stored: precision in which the encoder is billed.
        shares_bottom: the cost of the shared lower layers is counted in the decision head's pass.
            Deviation: the shared layers are computed again here, without SLO tokens.
    """

    heads: str
    model_cost: str = field(repr=False)  # not in repr: scores do not depend on it
    shares_bottom: bool = field(repr=False)
    reading: Reading = field(repr=False)
    stored: Precision = field(default=FP16, repr=False)
    _scores: dict[tuple[int, ...], list[float]] = field(default_factory=dict, repr=False)
    _rows: dict[tuple[int, ...], list[int]] = field(default_factory=dict, repr=False)

    def scores(self, tokens: Sequence[int]) -> Sequence[float]:
        """See `Scorer`: mean over the word pieces that overlap a token."""
        key = tuple(tokens)
        if key not in self._scores:
            text, spans, ids, piece_spans = self.reading.split(key)
            self._scores[key] = carry_over(
                self._retention(text, ids, piece_spans), piece_spans, spans, WORDLESS_SCORE
            )
        return self._scores[key]

    @torch.no_grad()
    def _retention(self, text: str, ids: Sequence[int], spans: Sequence[TextSpan]) -> list[float]:
        net, pieces = self.reading.net, self.reading.pieces
        probabilities: list[float] = []
        for window in windows(text, spans, net.positions - 2):
            window_ids = [pieces.first, *(ids[i] for i in window), pieces.last]
            probabilities += net.retain(torch.tensor([window_ids]))[0, 1:-1].softmax(-1)[:, 1].tolist()
        return probabilities

    def ops(self, tokens: Sequence[int], on: str) -> tuple[Op, ...]:
        """See `Scorer`."""
        key, model_cost = tuple(tokens), MODEL_COSTS[self.model_cost]
        if key not in self._rows:
            text, token_spans, _, piece_spans = self.reading.split(key)
            # A prompt of control tokens alone has no word piece; count one per token.
            spans = piece_spans or token_spans
            limit = self.reading.net.positions - 2
            self._rows[key] = [len(window) + 2 for window in windows(text, spans, limit)]
        layers = model_cost.layers - (model_cost.layers // 2 if self.shares_bottom else 0)
        embeds = not self.shares_bottom
        return tuple(
            model_cost.op("score head", row_count, layers, on, embeds, self.stored)
            for row_count in self._rows[key]
        )


def windows(text: str, spans: Sequence[TextSpan], limit: int) -> Iterator[range]:
    """Split word pieces into windows, at the last line break within each, or at `limit` pieces.

    Args:
        text: the whole text.
        spans: span of each word piece.
        limit: maximum pieces per window.
    """
    start = 0
    while start < len(spans):
        end = min(start + limit, len(spans))
        if end < len(spans):
            ends = (i for i in range(end, start, -1) if "\n" in text[spans[i - 1].stop : spans[i].start])
            end = next(ends, end)
        yield range(start, end)
        start = end
