"""The dual-head tiny language model at work: it scores a prompt's tokens and decides how a request is served.

Owns how a prompt of the language model's tokens becomes texts of the encoder's, and what a run is billed.
Must not know how heads are trained, nor what becomes of a decision.

The encoder reads word pieces and the language model its own tokens; both agree by characters. A decision is
made on the end of a prompt, where the request stands. Deviation: the release cuts the prompt behind 512
pieces and leaves the request's template empty, so that it decides by app and objective alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from repro.core.errors import InputError
from repro.core.op import Op
from repro.core.registry import unknown
from repro.methods.deciding import Ask, Decider
from repro.methods.objectives import Decision, Objective
from repro.methods.shortening import Scorer
from repro.models.dual_head import LEVELS, DualHead, committed, open_dual_head
from repro.models.encoder_folder import open_encoder
from repro.models.shape import precision
from repro.models.stored import digest
from repro.models.token_spans import Span, carried, located
from repro.models.word_pieces import WordPieces

WORDLESS = 1.0
"""The score of a token without a word piece: line breaks and control tokens hold a prompt together."""


class Decodes(Protocol):
    """The language model's tokenizer, as far as it is needed."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""


@dataclass(frozen=True)
class EncoderBill:
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


BILLS: dict[str, EncoderBill] = {
    # google/mobilebert-uncased: 24 layers, 512 wide, bottlenecks of 128. A layer's linears: two bottlenecks
    # in, 2 x 512 x 128, one out, 128 x 512, queries and keys 2 x 128 x 128, values 512 x 128, their output
    # 128 x 128, and 4 MLPs of 2 x 128 x 512: 835,584 weights. With both upper halves 36 layers, 30.1M, and
    # 4.4M of embeddings (30,522 x 128, 384 x 512 behind three of them, 514 x 512): 34.5M, the paper's
    # "about 40M".
    "mobilebert": EncoderBill(24, 835_584, 128, 384 * 512, 128),
    # 6 layers, 384 wide, MLPs of 1536: 4 x 384 x 384 + 2 x 384 x 1536.
    "minilm": EncoderBill(6, 1_769_472, 384, 0, 384),
}
"""By name. The paper's model ran on MobileBERT, so a device is billed that one, whichever computes."""


@dataclass
class _Reader:
    """The network with both tokenizers; what it said is remembered."""

    net: DualHead
    pieces: WordPieces
    text: Decodes

    def split(self, tokens: Sequence[int]) -> tuple[str, list[Span], list[int], list[Span]]:
        """The text of tokens, where they lie, and its word pieces and where these lie."""
        whole, spans = located(tokens, self.text.decode)
        return whole, spans, *self.pieces.split(whole)


@dataclass
class ScoreHead(Scorer):
    """Each token's probability of being retained; prompts that the encoder cannot hold are read in windows.

    Attributes:
        heads: the digest of the trained heads.
        bill: a name of `BILLS`.
        shares_bottom: the decision head read the same prompt before, so the layers that both share are billed
            there. Deviation: they are computed anew here, without the objective's tokens.
    """

    heads: str
    bill: str
    shares_bottom: bool
    reader: _Reader = field(repr=False)
    _said: dict[tuple[int, ...], list[float]] = field(default_factory=dict, repr=False)
    _rows: dict[tuple[int, ...], list[int]] = field(default_factory=dict, repr=False)

    def scores(self, tokens: Sequence[int]) -> Sequence[float]:
        """See `Scorer`: the mean over the word pieces that share a character with a token."""
        key = tuple(tokens)
        if key not in self._said:
            whole, spans, ids, at = self.reader.split(key)
            self._said[key] = carried(self._retained(whole, ids, at), at, spans, WORDLESS)
        return self._said[key]

    @torch.no_grad()
    def _retained(self, whole: str, ids: Sequence[int], at: Sequence[Span]) -> list[float]:
        net, pieces = self.reader.net, self.reader.pieces
        said: list[float] = []
        for window in windows(whole, at, net.positions - 2):
            read = [pieces.first, *(ids[i] for i in window), pieces.last]
            said += net.retain(torch.tensor([read]))[0, 1:-1].softmax(-1)[:, 1].tolist()
        return said

    def ops(self, tokens: Sequence[int], on: str) -> tuple[Op, ...]:
        """See `Scorer`."""
        key, bill = tuple(tokens), BILLS[self.bill]
        if key not in self._rows:
            whole, _, _, at = self.reader.split(key)
            longest = self.reader.net.positions - 2
            self._rows[key] = [len(window) + 2 for window in windows(whole, at, longest)]
        layers = bill.layers - (bill.layers // 2 if self.shares_bottom else 0)
        whole_run = not self.shares_bottom
        return tuple(bill.op("score head", rows, layers, on, whole_run) for rows in self._rows[key])


@dataclass
class DecisionHead(Decider):
    """The likeliest level of the prompt and of the model, by the objective's tokens and the prompt's end.

    Attributes:
        heads: the digest of the trained heads.
        bill: a name of `BILLS`.
    """

    heads: str
    bill: str
    reader: _Reader = field(repr=False)
    _decided: dict[tuple[int, ...], Decision] = field(default_factory=dict, repr=False)
    _read: dict[tuple[int, ...], list[int]] = field(default_factory=dict, repr=False)

    @torch.no_grad()
    def decide(self, ask: Ask, feasible: Sequence[Decision]) -> Decision:
        """See `Decider`; what is feasible is not looked at."""
        net = self.reader.net
        ids = (*self._objective(ask), *self._end(ask.prompt))
        if ids not in self._decided:
            first, told, rest = self.reader.pieces.first, ids[:2], ids[2:]
            whole = torch.tensor([[first, *told, *rest, self.reader.pieces.last]])
            prompt, model = (LEVELS[int(logits.argmax())] for logits in net.decide(whole))
            self._decided[ids] = Decision(prompt, model)
        return self._decided[ids]

    def ops(self, ask: Ask, on: str) -> tuple[Op, ...]:
        """See `Decider`."""
        bill = BILLS[self.bill]
        return (bill.op("decision head", len(self._end(ask.prompt)) + 4, bill.layers, on, True),)

    def _objective(self, ask: Ask) -> tuple[int, int]:
        return self.reader.net.objective_ids(*told(ask.objective))

    def _end(self, tokens: tuple[int, ...]) -> list[int]:
        if tokens not in self._read:
            self._read[tokens] = fitting(self.reader.split(tokens)[2], self.reader.net.positions)
        return self._read[tokens]


def fitting(ids: Sequence[int], positions: int) -> list[int]:
    """The last pieces of a text, as many as fit beside the objective's two tokens and one at either end."""
    return list(ids[max(0, len(ids) - (positions - 4)) :])


def told(objective: Objective) -> tuple[float, float]:
    """The levels in which an objective is told, for TTFT and TPOT: the next one that is not above it.

    Time to the last token and energy (5.6) bind both; what is not asked for is 1.
    """
    asked = objective.asked
    both = [asked[name] for name in ("time", "energy") if name in asked]
    return tuple(
        _level(min([asked[name], *both] if name in asked else [*both, 1.0])) for name in ("ttft", "tpot")
    )  # type: ignore[return-value]


def _level(share: float) -> float:
    # Nine decimals: 0.6 may come as 0.6000000000000001 or just below.
    return max((level for level in LEVELS if round(level - share, 9) <= 0), default=LEVELS[0])


def windows(text: str, at: Sequence[Span], most: int) -> Iterator[range]:
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


def score_head(
    text: Decodes,
    encoder: str = "minilm",
    bill: str = "mobilebert",
    shares_bottom: bool = False,
    heads: Path | None = None,
) -> ScoreHead:
    """The trained score head.

    Args:
        text: the language model's tokenizer.
        encoder: see `encoder_folder.open_encoder`.
        bill: what a device is billed, a name of `BILLS`.
        shares_bottom: see `ScoreHead`; say so where the decision head decides.
        heads: folder of the heads; None takes those that lie with the project.

    Raises:
        InputError: no such bill, encoder or heads.
    """
    return ScoreHead(_digest(encoder, heads), _bill(bill), shares_bottom, _reader(text, encoder, heads))


def decision_head(
    text: Decodes,
    encoder: str = "minilm",
    bill: str = "mobilebert",
    heads: Path | None = None,
) -> DecisionHead:
    """The trained decision head; see `score_head`."""
    return DecisionHead(_digest(encoder, heads), _bill(bill), _reader(text, encoder, heads))


def scorer_of(net: DualHead, pieces: WordPieces, text: Decodes) -> ScoreHead:
    """The score head of a network that is being trained."""
    return ScoreHead("in training", "mobilebert", False, _Reader(net, pieces, text))


def _digest(encoder: str, heads: Path | None) -> str:
    return digest(committed(open_encoder(encoder)) if heads is None else heads)


def _bill(name: str) -> str:
    if name not in BILLS:
        raise InputError(unknown("bill of an encoder", name, BILLS))
    return name


def _reader(text: Decodes, encoder: str, heads: Path | None) -> _Reader:
    net, folder = open_dual_head(encoder, heads)
    return _Reader(net, WordPieces(folder), text)
