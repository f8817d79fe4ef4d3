"""A model opened on a device: which sequences it has computed, and which passes and verdicts that takes.

Knows nothing of methods, and of time no more than that a pass has a beginning and an end; `engine` makes a
pass's ops.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from repro.models.costs.partition import extent
from repro.models.drafting.early_exit import ExitPredictor
from repro.models.drafting.head_ranks import Calibration
from repro.models.forward.chooser import Chooser
from repro.models.forward.network import Logits, Step
from repro.models.runtime.engine import EarlyExitPoint, Engine, ForwardPass
from repro.models.tokens.acceptance import Accepted, drive
from repro.models.tokens.kv_slots import HeadLineage, Lineage, MedusaLineage
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.tree import TokenTree

if TYPE_CHECKING:
    from torch import Tensor


class Verification(NamedTuple):
    """What the target said of a tree: nodes accepted (root first), rows that were verified, the new text,
    which is the accepted path and the target's own next token, and the tree whose nodes went to the end."""

    path: list[int]
    text: Prefix
    rows: int
    tree: TokenTree


class Pass(NamedTuple):
    """One forward pass: its rows, its start and end, how long of it waited for reads, seconds, and the rows
    that went through its last layers."""

    rows: int
    start: float
    end: float
    loading: float
    kept: int = 0


class Pruner(Protocol):
    """What judges a tree's nodes in the middle of their verification.

    Attributes:
        layer: layers of the network that computes before it looks; spread over the billed ones like all.
    """

    layer: int

    def keep(self, tree: TokenTree, hidden: Tensor) -> list[int]:
        """The nodes that go on, the root first, parents with their children; `hidden` is `[nodes, h]`."""

    def scored(self, tree: TokenTree) -> int:
        """How many tokens it scores, each by a dot product of the hidden size."""


class Session:
    """One model on one device, and the sequences that it has computed.

    Attributes:
        engine: what makes ops of passes.
        name: of the model's role, as timelines show it (`target`, `draft`).
        device: where it runs.
        passes: forward passes so far.
        predictor: what judges rows after a middle layer, if the placement asked for it.
        calibration: how often Medusa heads are right, for a search of trees; None where nobody knows.
    """

    def __init__(self, engine: Engine, predictor: ExitPredictor | None = None) -> None:
        self.engine = engine
        self.name, self.device = engine.name, engine.device
        self.passes: list[Pass] = []
        self.predictor = predictor
        self.calibration: Calibration | None = None
        self._lineage: Lineage | MedusaLineage = Lineage()
        self._rows: dict[Prefix, Logits] = {}

    def start(self, prompt: Prefix) -> None:
        """A new request: forget all of the one before. Of the prompt only the tokens count.

        Behind an encoder, which reads the prompt in the first pass, the prompt as a sequence stands for the
        decoder's start token, and nothing shorter has a row.
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
        """How many tokens one pass foresees by Medusa heads; 0 for another model."""
        return self.engine.model_cost.shape.medusa

    async def forward(
        self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = (), on: str = "", late: bool = False
    ) -> list[Logits]:
        """One pass over the wanted sequences and all that is not computed of them; one row for each.

        A sequence that was asked for before, and kept, costs nothing. With `branches`, which together hold
        all that is wanted, each of them is computed as a sequence of its own. `on` is another processor than
        the placement's. Medusa heads say the same of all sequences of a length; asking for more tokens than
        there are heads is an InputError.

        Of `late` rows only some may ever be looked at, which spares an emulated device the others' computing;
        all of them are billed.
        """
        wanted = [self._lineage.twin(prefix) for prefix in wanted]
        new = [prefix for prefix in dict.fromkeys(wanted) if prefix not in self._rows]
        if new:
            for guessed in self._lineage.waves(new)[:-1]:
                async with self._pass(guessed, (), on=on):
                    pass  # nobody asks for these rows; the next wave stands on them
            async with self._pass(new, branches, on=on) as forward_pass, self.engine.head():
                count = forward_pass.rows if branches else len(new)
                rows = await self.engine.project(forward_pass.step, count, on=on, late=late)
            self._rows.update(zip(new, rows, strict=True))
        return [self._rows[prefix] for prefix in wanted]

    def known(self, prefix: Prefix) -> Logits:
        """The row of a sequence that a pass has answered."""
        return self._rows[self._lineage.twin(prefix)]

    async def verify(
        self,
        tree: TokenTree,
        chooser: Chooser,
        apart: bool = False,
        pruner: Pruner | None = None,
        on_demand: bool = False,
    ) -> Verification:
        """One pass over a tree; the accepted path stays in the cache, the rest of the tree does not.

        A `pruner` drops nodes on the way, which can only shorten what is accepted. With `on_demand` a node
        is projected to the vocabulary only if the accepted path comes to it, one after the other.

        With `apart` the branches are a mini-batch of sequences, padded to the longest (EdgeLLM sec. III-B),
        which is the only way with an encoder-decoder, and without it one sequence under a tree mask.
        """
        before = len(self.passes)
        apart = apart or self.engine.model_cost.shape.encoder is not None
        branches = [tree.prefixes[leaf] for leaf in tree.leaves()] if apart else []
        if pruner or on_demand:
            tree, (path, bonus) = await self._verify_sparingly(tree, chooser, branches, pruner, on_demand)
        else:
            rows = await self.forward(tree.prefixes, branches, late=True)
            path, bonus = drive(chooser.walk(tree), rows.__getitem__)
        text = tree.prefixes[path[-1]].then(bonus)
        self.keep(text)
        return Verification(path, text, sum(p.rows for p in self.passes[before:]), tree)

    async def _verify_sparingly(
        self,
        tree: TokenTree,
        chooser: Chooser,
        branches: Sequence[Prefix],
        pruner: Pruner | None,
        on_demand: bool,
    ) -> tuple[TokenTree, Accepted]:
        """Verify a tree of which nodes may be dropped on the way, or whose rows are projected one by one."""
        nodes = list(dict.fromkeys(tree.prefixes))
        if pruner and (branches or len(nodes) < len(tree)):
            raise RuntimeError("a tree is pruned under a tree mask, and only if no token was drawn twice")
        exit_point = _exit_point(pruner, tree) if pruner else None
        async with self._pass(nodes, branches, exit_point) as forward_pass, self.engine.head():
            if forward_pass.kept is not None:
                tree = tree.only(forward_pass.kept)
                nodes = tree.prefixes
            place = {prefix: i for i, prefix in enumerate(nodes)}
            if not on_demand:
                rows = await self.engine.project(forward_pass.step, len(nodes))
                return tree, drive(chooser.walk(tree), lambda node: rows[place[tree.prefixes[node]]])
            walk = chooser.walk(tree)
            node = next(walk)
            while True:
                (row,) = await self.engine.project(forward_pass.step, 1, [place[tree.prefixes[node]]])
                try:
                    node = walk.send(row)
                except StopIteration as end:
                    return tree, end.value

    def keep(self, text: Prefix) -> None:
        """Forget all that neither leads to `text` nor goes on from it."""
        self._lineage.keep(text)
        self.engine.network.keep(text)
        # A Medusa head's row is of the text that it was asked after, and there is a new one.
        kept = {} if self.heads else self._rows
        self._rows = {p: row for p, row in kept.items() if p.starts_with(text)}

    @asynccontextmanager
    async def _pass(
        self,
        wanted: list[Prefix],
        branches: Sequence[Prefix],
        exit_point: EarlyExitPoint | None = None,
        on: str = "",
    ) -> AsyncIterator[ForwardPass]:
        """A pass through all layers; its rows are projected within the block, at whose end it is over."""
        missing = self._lineage.missing(wanted)
        rows = padded(missing, branches)
        context, engine = self._lineage.length, self.engine
        look = extent(missing, context) if engine.split else None
        forward_pass = ForwardPass(engine.network.begin(wanted, branches), rows, context, look)
        start = self.device.now
        with engine.computes():
            await engine.embed(rows, self._lineage.fused(missing), on)
            await engine.layers(forward_pass, on, exit_point)
            yield forward_pass
        gone = (
            set(wanted).difference(wanted[i] for i in forward_pass.kept)
            if forward_pass.kept is not None
            else ()
        )
        self._lineage.add([prefix for prefix in missing if prefix not in gone])
        self.passes.append(Pass(rows, start, self.device.now, engine.waited, forward_pass.rows))


def _exit_point(pruner: Pruner, tree: TokenTree) -> EarlyExitPoint:
    """A pruner's look at the rows of a tree's nodes."""

    def judge(step: Step) -> list[int]:
        kept = pruner.keep(tree, step.hidden())
        if len(kept) < len(tree):
            step.drop(kept)
        return kept

    return EarlyExitPoint(pruner.layer, len(tree), pruner.scored(tree), judge)


def padded(missing: Sequence[Prefix], branches: Sequence[Prefix]) -> int:
    """Rows that a pass computes: each once, or a mini-batch of branches padded to the longest."""
    if not branches:
        return len(missing)
    new = set(missing)
    return len(branches) * max(sum(node in new for node in branch.back()) for branch in branches)
