"""A model opened on a device: tracks its cached sequences, runs forward passes and verifies token trees.

Knows nothing of methods; of time it knows only the start and end of a pass. `engine` makes a pass's ops.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from repro.models.forward.chooser import Chooser
from repro.models.forward.network import Logits
from repro.models.runtime.arrangement import EarlyExitPoint, ForwardPass
from repro.models.runtime.engine import Engine
from repro.models.runtime.verifier import MASKED, Verifier
from repro.models.tokens.kv_slots import HeadLineage, Lineage, MedusaLineage
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.tree import TokenTree


class Verification(NamedTuple):
    """Result of verifying a token tree.

    Attributes:
        path: accepted nodes, root first.
        text: the accepted path and the target's next token.
        rows: positions that were computed.
        tree: the verified tree, without pruned nodes.
    """

    path: list[int]
    text: Prefix
    rows: int
    tree: TokenTree


class Pass(NamedTuple):
    """One forward pass: positions at its start, start and end time, seconds spent waiting for loads, and
    positions that reached the last layer."""

    rows: int
    start: float
    end: float
    loading: float
    last_rows: int = 0


class Session:
    """One model on one device, with its KV cache.

    Attributes:
        engine: turns passes into device ops.
        name: role of the model in timelines (`target`, `draft`).
        device: device that runs it.
        passes: forward passes so far.
        beside: what a method or a head opened beside the model, such as its early-exit predictor or recorded
            accuracies of Medusa heads; None for nothing.
    """

    def __init__(self, engine: Engine, beside: object | None = None) -> None:
        self.engine = engine
        self.name, self.device = engine.name, engine.device
        self.passes: list[Pass] = []
        self.beside = beside
        self._lineage: Lineage | MedusaLineage = Lineage()
        self._rows: dict[Prefix, Logits] = {}

    def start(self, prompt: Prefix) -> None:
        """Start a request: drop all state of the last one.

        Encoder-decoders: the full prompt maps to decoder position 0.
        """
        self.engine.start(prompt.length)
        shape = self.engine.model_cost.shape
        if self.heads:
            self._lineage = MedusaLineage(prompt.length, self.heads)
        elif shape.features:
            self._lineage = HeadLineage(prompt.length)
        else:
            self._lineage = Lineage(max(0, prompt.length - 1) if shape.encoder else 0)
        self.engine.network.start(prompt)
        self._rows = {}

    @property
    def heads(self) -> int:
        """Number of Medusa heads; 0 for other models."""
        return self.engine.model_cost.shape.medusa

    @property
    def reads_target(self) -> bool:
        """Whether it is a head, which reads what its target's passes computed."""
        shape = self.engine.model_cost.shape
        return bool(shape.medusa or shape.features)

    async def forward(
        self, prefixes: Sequence[Prefix], branches: Sequence[Prefix] = (), on: str = "", late: bool = False
    ) -> list[Logits]:
        """Logits of each wanted sequence, computing in one forward pass what is not cached.

        An EAGLE head runs one pass per level of guessed features. Medusa logits depend only on the length.

        Args:
            prefixes: sequences; one whose logits are still kept costs nothing.
            branches: compute each of these as a separate sequence of a batch; together they have `prefixes`.
            on: run on this processor in place of the placement's.
            late: logits may be computed lazily, when first read; the cost of all is charged.

        Raises:
            InputError: more tokens ahead than there are Medusa heads.
        """
        prefixes = [self._lineage.twin(prefix) for prefix in prefixes]
        missing = [prefix for prefix in dict.fromkeys(prefixes) if prefix not in self._rows]
        if missing:
            for wave in self._lineage.waves(missing)[:-1]:
                async with self.running(wave, (), on=on):
                    pass  # no logits needed here; the next wave builds on its features
            async with self.running(missing, branches, on=on) as forward_pass, self.engine.head():
                count = forward_pass.rows if branches else len(missing)
                rows = await self.engine.project(forward_pass.step, count, on=on, late=late)
            self._rows.update(zip(missing, rows, strict=True))
        return [self._rows[prefix] for prefix in prefixes]

    def logits_of(self, prefix: Prefix) -> Logits:
        """Logits of a sequence that an earlier pass computed."""
        return self._rows[self._lineage.twin(prefix)]

    @property
    def verifies_apart(self) -> bool:
        """Whether branches of a tree must be separate sequences: an encoder-decoder takes no tree mask."""
        return self.engine.model_cost.shape.encoder is not None

    async def verify(self, tree: TokenTree, chooser: Chooser, verifier: Verifier = MASKED) -> Verification:
        """Verify a token tree in one forward pass; only the accepted path stays in the KV cache.

        Args:
            tree: draft tokens.
            chooser: acceptance rule.
            verifier: what is computed of the tree.
        """
        before = len(self.passes)
        tree, (path, bonus) = await verifier.accept(self, tree, chooser)
        text = tree.prefixes[path[-1]].then(bonus)
        self.keep(text)
        return Verification(path, text, sum(p.rows for p in self.passes[before:]), tree)

    def keep(self, text: Prefix) -> None:
        """Drop all cached sequences that are neither prefixes nor continuations of `text`."""
        self._lineage.keep(text)
        self.engine.network.keep(text)
        # Medusa logits depend on the current text, so drop them when it grows.
        valid = {} if self.heads else self._rows
        self._rows = {p: row for p, row in valid.items() if p.starts_with(text)}

    @asynccontextmanager
    async def running(
        self,
        prefixes: list[Prefix],
        branches: Sequence[Prefix],
        exit_point: EarlyExitPoint | None = None,
        on: str = "",
    ) -> AsyncIterator[ForwardPass]:
        """Run a pass through all layers; logits are computed inside the block, the pass ends with it."""
        missing = self._lineage.missing(prefixes)
        rows = row_count(missing, branches)
        context, engine = self._lineage.length, self.engine
        step = engine.network.begin(prefixes, branches)
        forward_pass = ForwardPass(step, rows, context, missing, on, exit_point)
        start = self.device.now
        with engine.computes():
            await engine.embed(rows, self._lineage.count_fused(missing), on)
            await engine.arrangement_of(forward_pass).layers(engine, forward_pass)
            yield forward_pass
        pruned = (
            set(prefixes).difference(prefixes[i] for i in forward_pass.survivors)
            if forward_pass.survivors is not None
            else ()
        )
        self._lineage.add([prefix for prefix in missing if prefix not in pruned])
        self.passes.append(Pass(rows, start, self.device.now, engine.waited, forward_pass.rows))


def row_count(missing: Sequence[Prefix], branches: Sequence[Prefix]) -> int:
    """Positions that a pass computes: each once, or a batch of branches padded to the longest."""
    if not branches:
        return len(missing)
    uncached = set(missing)
    return len(branches) * max(sum(node in uncached for node in branch.back()) for branch in branches)
