"""Inference with ElastiLM's dual-head tiny language model (TLM): decision head and score head.

Owns the encoder's input for a request. Must not know how heads are trained or how outputs are used.

The decision head reads the end of a prompt, which holds the request itself. Deviation: the release truncates
the prompt after 512 word pieces and leaves the request's template empty, so that it decides by app and SLO.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.device.op import Op
from repro.methods.elastilm.score_head import FP16, MODEL_COSTS, Reading, ScoreHead
from repro.methods.elastilm.trained_heads import head_file, open_dual_head
from repro.methods.elastilm.word_pieces import WordPieces, open_encoder
from repro.methods.serving.deciders import Decider, ServiceRequest
from repro.methods.serving.slo import LEVELS, Decision, LatencySlo
from repro.models.checkpoints.tokenizer import Tokenizer
from repro.models.checkpoints.wheels import sha256_of
from repro.models.costs.model_cost import Precision


@dataclass
class DecisionHead(Decider):
    """Chooses the most likely levels of prompt and model, given SLO tokens and the end of the prompt.

    Attributes:
        heads: hash of the trained head.
        model_cost: key of `MODEL_COSTS`.
        stored: precision in which the encoder is billed.
    """

    heads: str
    model_cost: str
    reading: Reading = field(repr=False)
    stored: Precision = field(default=FP16, repr=False)
    _decisions: dict[tuple[int, ...], Decision] = field(default_factory=dict, repr=False)
    _ends: dict[tuple[int, ...], list[int]] = field(default_factory=dict, repr=False)

    @torch.no_grad()
    def decide(self, request: ServiceRequest, choices: Sequence[Decision]) -> Decision:
        """See `Decider`; `choices` is ignored."""
        net = self.reading.net
        ids = (*net.objective_ids(*slo_levels(request.objective)), *self._end(request.prompt))
        if ids not in self._decisions:
            first_id, slo_ids, prompt_ids = self.reading.pieces.first, ids[:2], ids[2:]
            input_ids = torch.tensor([[first_id, *slo_ids, *prompt_ids, self.reading.pieces.last]])
            prompt, model = (LEVELS[int(logits.argmax())] for logits in net.decide(input_ids))
            self._decisions[ids] = Decision(prompt, model)
        return self._decisions[ids]

    def ops(self, request: ServiceRequest, on: str) -> tuple[Op, ...]:
        """See `Decider`."""
        model_cost, limit = MODEL_COSTS[self.model_cost], self.reading.net.positions
        piece_count = len(self._end(request.prompt)) or len(request.prompt)  # see `ScoreHead.ops`
        row_count = min(piece_count + 4, limit)
        return (model_cost.op("decision head", row_count, model_cost.layers, on, True, self.stored),)

    def _end(self, tokens: tuple[int, ...]) -> list[int]:
        if tokens not in self._ends:
            self._ends[tokens] = last_pieces(self.reading.split(tokens)[2], self.reading.net.positions)
        return self._ends[tokens]


def last_pieces(ids: Sequence[int], position_count: int) -> list[int]:
    """The last word pieces of a text that fit, beside two SLO tokens and the first and last special token."""
    return list(ids[max(0, len(ids) - (position_count - 4)) :])


def slo_levels(objective: LatencySlo) -> tuple[float, float]:
    """SLO levels of TTFT and TPOT for the encoder, rounded down to `LEVELS`.

    Time to the last token and energy (5.6) bound both; a share that is not set is 1.
    """
    limits = objective.bounds
    bounds = [limits[name] for name in ("time", "energy") if name in limits]
    return tuple(
        _level(min([limits[name], *bounds] if name in limits else [*bounds, 1.0]))
        for name in ("ttft", "tpot")
    )  # type: ignore[return-value]


def _level(share: float) -> float:
    # Rounding to nine decimals removes floating-point error: 0.6 may be 0.6000000000000001.
    return max((level for level in LEVELS if round(level - share, 9) <= 0), default=LEVELS[0])


def open_score_head(
    tokenizer: Tokenizer,
    encoder: str = "minilm",
    model_cost: str = "mobilebert",
    shares_bottom: bool = False,
    heads: Path | None = None,
    stored_precision: Precision = FP16,
) -> ScoreHead:
    """Open the trained score head.

    Args:
        tokenizer: tokenizer of the language model.
        encoder: see `word_pieces.open_encoder`.
        model_cost: encoder whose cost is emulated, a key of `MODEL_COSTS`.
        shares_bottom: see `ScoreHead`; set it if the decision head decides.
        heads: folder of the heads; `None` uses the committed ones.
        stored_precision: precision in which the encoder is billed.

    Raises:
        InputError: unknown cost, encoder or heads.
    """
    name, reading = _open_reading(tokenizer, encoder, heads, "score")
    return ScoreHead(name, _model_cost(model_cost), shares_bottom, reading, stored_precision)


def open_decision_head(
    tokenizer: Tokenizer,
    encoder: str = "minilm",
    model_cost: str = "mobilebert",
    heads: Path | None = None,
    stored_precision: Precision = FP16,
) -> DecisionHead:
    """Open the trained decision head; see `open_score_head`."""
    name, reading = _open_reading(tokenizer, encoder, heads, "decision")
    return DecisionHead(name, _model_cost(model_cost), reading, stored_precision)


def _model_cost(name: str) -> str:
    if name not in MODEL_COSTS:
        raise InputError(unknown("cost of an encoder", name, MODEL_COSTS))
    return name


def _open_reading(tokenizer: Tokenizer, encoder: str, heads: Path | None, part: str) -> tuple[str, Reading]:
    """Hash of a head's file, and the opened network."""
    net, folder = open_dual_head(encoder, heads, part)
    reading = Reading(net, WordPieces(open_encoder(encoder)), tokenizer)
    return sha256_of(folder / head_file(part)), reading
