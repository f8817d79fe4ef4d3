"""Compute a method's first tokens for real, and compare all of it with what is stored.

An emulated cell looks rows up, so its verifications run no tree attention and compact no cache, and a stored
row that is wrong changes its figures: `repro check` and tests compare them. Must not know metrics, records or
sweeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

from repro.models.forward.exactness import BOUNDS, rounding
from repro.models.forward.network import Network, rows_of
from repro.models.forward.side_by_side import GreedyText
from repro.models.observations import transfer
from repro.models.runtime.model import Model
from repro.models.runtime.sharded import ShardedModel
from repro.models.tokens.sampling import GREEDY
from repro.records.build_cache import memory_root
from repro.records.record import content_hash
from repro.scenarios.base import Scenario, silent
from repro.scenarios.generation import fidelity
from repro.scenarios.generation.compared_rows import (
    TOKENS,
    ComparedNetwork,
    ComparedScores,
    Known,
    along,
    cached,
)
from repro.scenarios.generation.run import (
    Calibrated,
    calibrated,
    known_exits,
    load,
    opened_sessions,
    own_texts,
    prepare,
    remembers,
    start,
)
from repro.scenarios.generation.scenario import GenerationScenario

OWN = "the target's own text"


class RealPasses:
    """Methods' first tokens, computed for real and compared with what is stored.

    Each method with its models is computed once. What is looked up tests neither tree attention nor the
    compaction of a cache, and a cached row or an own text may be another model's.

    Attributes:
        rows: rows compared, by method.
    """

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self._asked: set[str] = set()

    def compare(self, cell: Scenario) -> None:
        """Compute a cell's first tokens without stored rows, if it looks rows up.

        The target's rows along the own text must be that text's, other rows and scores those of caches, and
        some rows of other models those of a pass without branches. A method that does not compute the own
        text has it recomputed in one pass. A sampled cell is computed greedily.

        Raises:
            UnfaithfulRowError: a row or a score differs by more than rounding explains.
            NotLosslessError: the tokens of a lossless method differ.
        """
        if not isinstance(cell, GenerationScenario) or not (cell.emulated and cell.target.folder):
            return
        digests = {role: cell.inputs[role] for role in ("target", *cell.places)}
        asked = content_hash([str(cell.config["method"]), digests, remembers(cell)])
        if cell.target.computes_in not in BOUNDS or asked in self._asked:
            return
        self._asked.add(asked)
        texts, matched = own_texts(cell, silent), calibrated(cell, silent)
        self.rows[cell.labels["method"]] += _compared(cell, texts, matched)


def _compared(
    cell: GenerationScenario, texts: Sequence[GreedyText] | None, matched: Calibrated | None
) -> int:
    """Compute the first tokens of the shortest request, and return how many rows were compared."""
    places, dtype = cell.places, cell.target.computes_in
    shortest = min(range(len(cell.requests)), key=lambda i: len(cell.requests[i].prompt))
    asked_for = cell.requests[shortest]
    request = replace(asked_for, max_tokens=min(TOKENS, asked_for.max_tokens), sampling=GREEDY)
    if texts is None:
        (text,) = cell.target.compute_texts([request.prefix], TOKENS, lambda done: None)
    else:
        text = texts[shortest]
    own = GreedyText(request.prefix, text.tokens, text.rows)
    bound = rounding(dtype)
    plays = "target" in places and not places["target"].shards
    compared: list[ComparedNetwork] = []
    if not plays:
        compared.append(_recomputed(cell, own, request.max_tokens, bound))

    @contextmanager
    def computed(_: GenerationScenario, model: Model | ShardedModel, role: str) -> Iterator[Network]:
        network = model.network()
        if cell.model(role).computes_in not in BOUNDS or not model.folder:
            yield network
            return
        with ExitStack() as opened:
            stored: dict[str, Known] = {OWN: along(own)} if model is cell.target else {}
            if remembers(cell):
                memo = opened.enter_context(closing(model.memo(memory_root())))
                transfer.fill(memo, model.observed())
                stored["its cache"] = cached(network, memo, request.prefix)
            made = ComparedNetwork(network, role, stored, bound)
            compared.append(made)
            yield made
            if role != "target":
                made.repeat(model.network(), request.prefix)

    beforehand, device = cell.open_device(), cell.open_device()
    with closing(beforehand), opened_sessions(cell, beforehand, matched) as looked_up:
        serving = prepare(cell, beforehand, looked_up)  # rehearsals, of which only seconds are wanted
    with (
        closing(device),
        ExitStack() as caches,
        opened_sessions(cell, device, matched, computed) as sessions,
    ):
        for session in sessions.values():
            if session.predictor and remembers(cell):
                exits = caches.enter_context(known_exits(cell.target))
                session.predictor = ComparedScores(session.predictor, exits, bound)
        load(device, sessions)
        start(sessions, request)
        answer = device.play(serving.serve(request, device, sessions))
    if cell.method.lossless:
        fidelity.require_lossless([answer], [own], dtype)
    return sum(network.compared for network in compared)


def _recomputed(cell: GenerationScenario, own: GreedyText, tokens: int, bound: float) -> ComparedNetwork:
    """Recompute the first rows of an own text in one pass; UnfaithfulRowError as `RealPasses`."""
    network = ComparedNetwork(cell.target.network(), "target", {OWN: along(own)}, bound)
    network.start(own.prompt)
    rows_of(network, own.contexts()[:tokens])
    return network
