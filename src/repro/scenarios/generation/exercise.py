"""Compute a method's first tokens for real, and compare all of it with what is stored.

An emulated cell looks rows up, so its verifications run no tree attention and compact no cache, and a stored
row that is wrong changes its figures. What was found equal is noted beside the stored rows. Must not know
metrics, records or sweeps.
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
from repro.models.observations.pack import checksum
from repro.models.runtime.model import Model
from repro.models.runtime.sharded import ShardedModel
from repro.models.tokens.sampling import GREEDY
from repro.records.build_cache import computed_once, memory_root
from repro.records.code_version import source_hash
from repro.records.effort import counting
from repro.records.record import content_hash
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
    known_exits,
    load,
    opened_sessions,
    prepare,
    remembers,
    start,
)
from repro.scenarios.generation.scenario import GenerationScenario

OWN = "the target's own text"

_exercised: dict[str, tuple[str, int]] = {}
"""What `exercise` has computed in this process, or found noted: the method, and how many rows it compared."""

_trusted = False
"""Whether cells are taken as exercised, see `trusted`."""


@contextmanager
def trusted() -> Iterator[None]:
    """No cell in this block is exercised: its rows were compared when a record of them was made."""
    global _trusted
    before, _trusted = _trusted, True
    try:
        yield
    finally:
        _trusted = before


def exercised() -> Counter[str]:
    """How many rows of each method's passes this process computed for real and compared with stored ones."""
    rows: Counter[str] = Counter()
    for method, compared in _exercised.values():
        rows[method] += compared
    return rows


def exercise(
    cell: GenerationScenario, texts: Sequence[GreedyText] | None, matched: Calibrated | None
) -> None:
    """Compute the method's first tokens without stored rows, and compare all of it with what is stored.

    Once for each method and its models, version of the code and packs, drafts of one target's weights
    together; a note beside the stored rows says so. `repro check` keeps no notes, and computes it in every
    process. What is looked up tests neither tree attention nor the compaction of a cache, and a cached row or
    an own text may be another model's. The target's rows along the own text must be that text's, other rows
    and scores those of caches, and some rows of other models those of a pass without branches. A method that
    does not compute the own text has it recomputed in one pass. A sampled cell is exercised greedily.

    Raises:
        UnfaithfulRowError: a row or a score differs by more than rounding explains.
        NotLosslessError: the tokens of a lossless method differ.
    """
    places, dtype = cell.places, cell.target.computes_in
    digests = {role: cell.inputs[role] for role in ("target", *places)}
    asked = content_hash([str(cell.config["method"]), digests, remembers(cell)])
    if _trusted or not (cell.emulated and cell.target.folder) or dtype not in BOUNDS or asked in _exercised:
        return
    method = cell.labels["method"]

    def compute() -> int:
        with counting():  # apart from what the cell computes
            compared = _compared(cell, texts, matched)
        _exercised[asked] = method, compared
        return compared

    package = type(cell.component).__module__.partition(".")[0]
    version = content_hash([asked, cell.config["host"], source_hash(package), _packs(cell)])
    computed_once(memory_root() / "memo" / f"{version[:24]}-exercised.json", compute)
    _exercised.setdefault(asked, (method, 0))


def _packs(cell: GenerationScenario) -> list[str]:
    """Checksums of the packs that a cell's rows may come from."""
    observed = {cell.model(role).observed() for role in ("target", *cell.places)}
    if cell.target.has_exit:
        observed.add(cell.target.observed(cell.target.exits))
    return sorted(checksum(path).hex() for model in observed for path, _ in transfer.packs(model))


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
    """Recompute the first rows of an own text in one pass; UnfaithfulRowError as `exercise`."""
    network = ComparedNetwork(cell.target.network(), "target", {OWN: along(own)}, bound)
    network.start(own.prompt)
    rows_of(network, own.contexts()[:tokens])
    return network
