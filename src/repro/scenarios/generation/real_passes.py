"""A method's first tokens, computed for real and compared with what is stored: for `repro check` and tests.

An emulated cell looks rows up, so its verifications run no tree attention and compact no cache, and a stored
row that is wrong changes its figures. Behind these networks every row that is computed is compared with the
target's own text and with caches. Must not know metrics, records or sweeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from repro.models.forward.exactness import ROUNDING_BOUNDS, rounding
from repro.models.forward.logit_cache import MemoNetwork
from repro.models.forward.network import Logits, Network, RewrittenStep, Step, rows_of
from repro.models.forward.side_by_side import GreedyText
from repro.models.observations import transfer
from repro.models.runtime.model import Model
from repro.models.runtime.side_network import SideNetwork
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.sampling import GREEDY
from repro.records.build_cache import memory_root
from repro.records.record import content_hash
from repro.scenarios.base import Scenario, silent
from repro.scenarios.generation.answers import require_lossless
from repro.scenarios.generation.asked import GenerationCell
from repro.scenarios.generation.prefixes import PreparedRows, outputs_of, prepare_rows, remembers
from repro.scenarios.generation.scenario import load, opened_sessions, prepare, start

OWN_TEXT = "the target's own text"

TOKEN_COUNT = 12
"""Tokens that are computed: several verifications, each after a compaction of the cache."""

COMPARED_RANKS = 4
"""First ranks of a row whose log-probabilities are compared."""

REPEATED_ROWS = 4
"""Rows of each model that are computed again, each in a pass of its sequence alone."""

StoredRow = Callable[[Prefix], "Logits | None"]
"""The stored row after a sequence, if there is one."""


class UnfaithfulRowError(RuntimeError):
    """A pass of a method computed other logits than are stored."""


class RealPasses:
    """Methods' first tokens, computed for real and compared with what is stored.

    Each method with its models is computed once. What is looked up tests neither tree attention nor the
    compaction of a cache, and a cached row or an own text may be another model's.

    Attributes:
        rows: rows compared, by method.
    """

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self._keys: set[str] = set()

    def compare(self, cell: Scenario) -> None:
        """Compute a cell's first tokens without stored rows, if it looks rows up.

        The target's rows along the own text must be that text's, other rows and scores those of caches, and
        some rows of other models those of a pass without branches. A method that does not compute the own
        text has it recomputed in one pass. A sampled cell is computed greedily.

        Raises:
            UnfaithfulRowError: a row or a score differs by more than rounding explains.
            NotLosslessError: the tokens of a lossless method differ.
        """
        if not isinstance(cell, GenerationCell) or not (cell.emulated and cell.target.folder):
            return
        digests = {role: cell.inputs[role] for role in ("target", *cell.places)}
        key = content_hash([str(cell.config["method"]), digests, remembers(cell)])
        if cell.target.computes_in not in ROUNDING_BOUNDS or key in self._keys:
            return
        self._keys.add(key)
        self.rows[cell.labels["method"]] += _compare_cell(cell, prepare_rows(cell, silent))


def _compare_cell(cell: GenerationCell, prepared: PreparedRows) -> int:
    """Compute the first tokens of the shortest request, and return how many rows were compared."""
    places, dtype = cell.places, cell.target.computes_in
    shortest_index = min(range(len(cell.requests)), key=lambda i: len(cell.requests[i].prompt))
    shortest_request = cell.requests[shortest_index]
    request = replace(
        shortest_request, max_tokens=min(TOKEN_COUNT, shortest_request.max_tokens), sampling=GREEDY
    )
    if prepared.references is None:
        (text,) = cell.target.compute_texts([request.prefix], TOKEN_COUNT, lambda done: None)
    else:
        text = prepared.references[shortest_index]
    greedy_text = GreedyText(request.prefix, text.tokens, text.rows)
    bound = rounding(dtype)
    plays_target = "target" in places and not cell.method.alters_target
    networks: list[ComparedNetwork] = []
    if not plays_target:
        networks.append(_recompute(cell, greedy_text, request.max_tokens, bound))

    @contextmanager
    def open_network(_: GenerationCell, model: Model, role: str) -> Iterator[Network]:
        network = model.network()
        if cell.model(role).computes_in not in ROUNDING_BOUNDS or not model.folder:
            yield network
            return
        with ExitStack() as stack:
            rows: dict[str, StoredRow] = {OWN_TEXT: along(greedy_text)} if model is cell.target else {}
            if remembers(cell):
                memo = stack.enter_context(closing(model.memo(memory_root())))
                transfer.fill(memo, model.outputs_key())
                rows["its cache"] = MemoNetwork(network, memo, ranks=1).look_up
            compared_network = ComparedNetwork(network, role, rows, bound)
            networks.append(compared_network)
            yield compared_network
            if role != "target":
                compared_network.repeat(model.network(), request.prefix)

    first_device, device = cell.open_device(), cell.open_device()
    with closing(first_device), opened_sessions(cell, first_device, prepared.calibrated) as first_sessions:
        serving = prepare(cell, first_device, first_sessions)  # rehearsals, of which only seconds are wanted
    with (
        closing(device),
        ExitStack() as caches,
        opened_sessions(cell, device, prepared.calibrated, open_network) as sessions,
    ):
        for session in sessions.values():
            if isinstance(side := session.beside, SideNetwork) and remembers(cell):
                rows = caches.enter_context(outputs_of(cell.target, side))
                session.beside = side.compare(rows, partial(require_score, bound, side.kind))
        load(device, sessions)
        start(sessions, request)
        answer = device.play(serving.serve(request, device, sessions))
    if cell.method.lossless:
        require_lossless([answer], [greedy_text], dtype)
    return sum(network.compared for network in networks)


def _recompute(
    cell: GenerationCell, greedy_text: GreedyText, token_count: int, bound: float
) -> ComparedNetwork:
    """Recompute the first rows of an own text in one pass; UnfaithfulRowError as `RealPasses`."""
    network = ComparedNetwork(cell.target.network(), "target", {OWN_TEXT: along(greedy_text)}, bound)
    network.start(greedy_text.prompt)
    rows_of(network, greedy_text.contexts()[:token_count])
    return network


class ComputedRow(NamedTuple):
    """A row that a pass computed after a sequence; `text` was kept before, if any was."""

    prefix: Prefix
    row: Logits
    text: Prefix | None


class ComparedNetwork:
    """A network whose rows must be the stored ones, where there are any."""

    def __init__(
        self, network: Network, role: str, stored_rows: Mapping[str, StoredRow], bound: float
    ) -> None:
        """Compare a network's rows.

        Args:
            network: computes them.
            role: the model's role (`target`, `draft`), for the error.
            stored_rows: the stored rows, by what they are, for the error.
            bound: the largest difference of log-probabilities that rounding explains.
        """
        self._network = network
        self._role = role
        self._stored = stored_rows
        self._bind_table = bound
        self._text: Prefix | None = None
        self._rows: list[ComputedRow] = []
        self.depth = network.depth
        self.compared = 0

    def start(self, prompt: Prefix) -> None:
        """See `Network`; rows of an earlier request are forgotten."""
        self._network.start(prompt)
        self._text = None
        self._rows.clear()

    def begin(self, prefixes: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """See `Network`."""
        return RewrittenStep(self._network.begin(prefixes, branches), prefixes, self._compare_rows)

    def keep(self, text: Prefix) -> None:
        """See `Network`."""
        self._network.keep(text)
        self._text = text

    def _compare_rows(self, prefixes: Sequence[Prefix], rows: list[Logits]) -> list[Logits]:
        """The computed rows, compared with the stored ones; UnfaithfulRowError as `_compare`."""
        for prefix, row in zip(prefixes, rows, strict=True):
            self._rows.append(ComputedRow(prefix, row, self._text))
            for where, known_after in self._stored.items():
                if stored_row := known_after(prefix):
                    self._compare(prefix, row, stored_row, where)
        return rows

    def repeat(self, network: Network, prompt: Prefix) -> None:
        """Compute some of the rows again in a new network, which sees no other branch and compacts nothing.

        Raises:
            UnfaithfulRowError: one differs by more than rounding explains.
        """
        indices = (
            {len(self._rows) * (2 * i + 1) // (2 * REPEATED_ROWS) for i in range(REPEATED_ROWS)}
            if self._rows
            else ()
        )
        for prefix, row, text in (self._rows[i] for i in indices):
            network.start(prompt)
            if text is not None:
                network.keep(text)
            (alone,) = rows_of(network, [prefix])
            self._compare(prefix, row, alone, "a pass of the same tokens alone")

    def _compare(self, prefix: Prefix, row: Logits, other_row: Logits, where: str) -> None:
        """Compare a row with a known one.

        Raises:
            UnfaithfulRowError: they differ by more than rounding explains.
        """
        self.compared += 1
        tokens, logps = other_row.top_ranks()
        logps_by_token = dict(zip(*row.top_ranks(), strict=True))
        top_ranks = list(zip(tokens, logps, strict=True))[:COMPARED_RANKS]
        difference = max(abs(logp - logps_by_token.get(token, float("-inf"))) for token, logp in top_ranks)
        if difference > self._bind_table:
            raise UnfaithfulRowError(
                f"a pass of the {self._role} computed logits after {prefix.length} tokens that differ by "
                f"{difference:.3g} from those of {where}, and rounding explains {self._bind_table:g}: "
                "the pass's attention mask, the cache that it read, or what is stored is wrong"
            )


def along(text: GreedyText) -> StoredRow:
    """The rows of an own text."""
    return dict(zip(text.contexts(), text.rows, strict=True)).get


def require_score(bound: float, kind: str, length: int, gap: float) -> None:
    """UnfaithfulRowError if an output after `length` tokens differs by more than rounding explains."""
    if not gap <= bound:  # an output that is not a number is none of the cache's
        raise UnfaithfulRowError(
            f"the {kind} beside the target gave after {length} tokens another output than its cache has, by "
            f"{gap:.3g}, and rounding explains {bound:g}: the hidden state that it read or what is stored "
            "is wrong"
        )
