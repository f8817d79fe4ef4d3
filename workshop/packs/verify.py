"""Recompute a share of a pack's rows, one row at a time, and compare.

Owns which rows are drawn and what counts as equal. Must not read a cache of rows.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from repro.core.errors import InputError
from repro.methods.lever.exit_scores import exit_scores_of, scores_variant
from repro.models.forward.cached_features import lowest
from repro.models.forward.exactness import rounding
from repro.models.forward.network import DecoderNetwork, Logits, Network, rows_of
from repro.models.observations.pack import ObservedRow, Pack, read
from repro.models.runtime.model import Model
from repro.models.tokens.prefix import Prefix
from workshop.packs.plan import Planned

SHARE = 0.01
"""Share of the rows that is recomputed."""

EXIT_BOUND = 1e-2
"""By how much rounding may change an early exit's score, an unnormalized logit."""

State = Literal["equal", "tie", "different"]


def verify(path: Path, one: Planned, share: float = SHARE, seed: int = 0) -> Counter[State]:
    """Recompute a random share of a pack's rows, at least one; how many are equal, tie or differ.

    Args:
        path: the pack.
        one: the plan that it belongs to.
        share: share of the rows.
        seed: seed of the draw.

    Raises:
        InputError: the pack is damaged, or belongs to another checkpoint, version or prompts than this code
            and these files: it is stale.
    """
    pack = read(path)
    model = _model(pack, one)
    is_exit = pack.facts.kind == "exit"
    observed = model.outputs_key(scores_variant(model) if is_exit else "")
    if observed != pack.facts.observed:
        raise InputError(
            f"{path} is stale: it has {pack.facts.observed}, and {model.config.name} is {observed} "
            "now; run python -m workshop.packs compute and export"
        )
    prompts = {prompt.digest.hex(): prompt for prompt in one.prompts}
    missing = [digest for digest, _ in pack.facts.prompts if digest not in prompts]
    if missing:
        raise InputError(
            f"{path} is stale: {len(missing)} of its {len(pack.facts.prompts)} prompts are not those of "
            f"{one.name} now; run python -m workshop.packs compute and export"
        )
    count = max(1, round(share * len(pack.rows)))
    drawn = sorted(random.Random(seed).sample(range(len(pack.rows)), count))
    network, dtype = model.network(), model.config.dtype
    tally: Counter[State] = Counter()
    for index in drawn:
        row = pack.rows[index]
        prefix = _place(pack, row, prompts).extend(_path(pack, row))
        if is_exit:
            scores = _scores_again(model, prefix, row.tokens)
            tally["equal" if _apart(row, scores) <= EXIT_BOUND else "different"] += 1
            continue
        tally[compared(row, _again(pack, row, prefix, prompts, network), rounding(dtype))] += 1
    return tally


def _model(pack: Pack, one: Planned) -> Model:
    if pack.facts.kind in ("text", "exit"):
        return one.cell.target
    return next(model for name, _, model in one.models() if name == pack.facts.name)


def _place(pack: Pack, row: ObservedRow, prompts: Mapping[str, Prefix]) -> Prefix:
    """The place in the text that a row's prefix starts with."""
    facts = pack.facts
    return prompts[facts.prompts[row.prompt][0]].extend(facts.texts[row.prompt][: row.at])


def _again(
    pack: Pack, row: ObservedRow, prefix: Prefix, prompts: Mapping[str, Prefix], network: Network
) -> Logits:
    """One row, from an empty key-value cache."""
    facts, text = pack.facts, _place(pack, row, prompts)
    network.start(prompts[facts.prompts[row.prompt][0]])
    if facts.kind == "eagle":
        network.keep(_place(pack, row._replace(at=row.source), prompts))
    if facts.kind == "medusa":  # head k reads the text's last token and skips k tokens, whatever they are
        network.keep(text.extend([0]))
        prefix = text.extend([0] * row.source)
    return rows_of(network, [prefix])[0]


def _scores_again(target: Model, prefix: Prefix, tokens: Sequence[int]) -> dict[int, float]:
    """An early exit's scores of some tokens after a sequence, from an empty key-value cache."""
    predictor = exit_scores_of(target).predictor()
    step = DecoderNetwork(lowest(target.decoder(), predictor.layer)).begin([prefix])
    step.layers(0, predictor.layer)
    (scores,) = predictor.scores(step.hidden(), [tuple(tokens)])
    return dict(zip(tokens, scores.tolist(), strict=True))


def _path(pack: Pack, row: ObservedRow) -> list[int]:
    """The tokens of a row's prefix after its place in the text."""
    tokens: list[int] = []
    while row.parent >= 0:
        tokens.append(row.token)
        row = pack.rows[row.parent]
    return tokens[::-1]


def _apart(row: ObservedRow, scores: Mapping[int, float]) -> float:
    """The largest difference of a row's scores from recomputed ones."""
    return max(abs(score - scores[token]) for token, score in zip(row.tokens, row.scores, strict=True))


def compared(row: ObservedRow, found: Logits, bound: float) -> State:
    """Whether a row equals a recomputed one: the same ranks, and log-probabilities within rounding.

    Ranks that changed places are a tie if their log-probabilities are within the bound of each other.
    """
    logps = dict(zip(*found.top_ranks(), strict=True))
    last = min(logps.values())
    apart = max(
        abs(score - logps.get(token, last)) for token, score in zip(row.tokens, row.scores, strict=True)
    )
    if apart > bound:
        return "different"
    return "equal" if list(row.tokens) == list(found.top_ranks()[0][: len(row.tokens)]) else "tie"
