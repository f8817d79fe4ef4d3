"""LEVER: cost-aware token trees, verified by a target streamed from flash with pruning after a
middle layer and output projection only along the accepted path.

Must not know the kind of device. Latency profiles and draft reliability persist across requests (`prepare`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

from annotated_types import Interval

from repro.core.bounds import DraftTokens, Layers, Nodes, Share
from repro.core.errors import InputError
from repro.core.registry import register
from repro.device.emulated import Device
from repro.device.op import CPU, NPU
from repro.methods.base import Decoding, Generation, Method, Request, Serving, Sessions
from repro.methods.lever.exit_predictor import ExitScores, exit_scores_of
from repro.methods.lever.greedy_tree import CycleCosts, Expansion, Growth, grow_greedily
from repro.methods.lever.latency_profile import DraftLatency, LatencyProfile
from repro.methods.lever.pruning import EarlyExit, PruningRule
from repro.methods.lever.sparing_verifier import SparingVerifier
from repro.methods.lever.token_gain import Reliability, candidate_hits
from repro.methods.speculative.opt_tree import OptTree
from repro.methods.speculative.specinfer import SpecInfer
from repro.methods.speculative.speculative import Speculative, begin
from repro.models.forward.chooser import Greedy
from repro.models.forward.network import RANK_COUNT, Logits, Ranks
from repro.models.runtime.placement import RESIDENT, Placement
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.sampling import Sampling
from repro.models.tokens.tree import TokenTree

SCHEDULES = {"batched": (CPU, NPU), "serial_cpu": (CPU, CPU), "serial_npu": (NPU, NPU)}
PROJECTIONS = {"on_demand_cpu": (CPU, True), "on_demand_npu": (NPU, True), "eager_npu": (NPU, False)}
OFFLINE_SHAPES = ((1, 1), (9, 1), (17, 1), (17, 8), (33, 1), (65, 1))
"""Rows and leaves of the verifications measured before the first request."""
Decay = Annotated[float, Interval(ge=0, le=0.9999)]
GROUP_SIZES = (1, 2, 4, 8, 16)
"""Nodes of the draft passes measured before the first request; without them batching never seems cheaper."""


@dataclass(frozen=True)
class Lever(Method):
    """Cost-aware drafting, pruned verification and on-demand projection; each can be ablated separately.

    The paper gives no values of the settings below except the processors; docs/lever.md says how these were
    chosen. Sampled requests also draft top candidates instead of sampling them, so pruning does not change
    the target's distribution; `specinfer` trees are of drawn tokens, and are then not pruned (`check`).

    Attributes:
        construction: `greedy` is LEVER's (Algorithm 1); the others build those methods' trees (Fig. 11).
        pruning: `full`; `without_shadow` or `without_safeguards` (Fig. 12); `off`.
        schedule: `batched` expands small batches on the CPU and larger ones on the NPU; the others expand
            single nodes on one processor (Fig. 13).
        projection: where and when hidden states are projected to the vocabulary (Fig. 14).
        resident: share of the target's layers in memory.
        prefetch: layers that are read ahead.
        candidates: |C(u)|.
        depth: maximum depth of draft tokens.
        reach: a node is expanded only if the target reaches it with at least this probability.
        limit: maximum draft tokens in a tree.
        batch: maximum nodes expanded in one pass.
        switch: number of nodes from which an expansion runs on the NPU; 0 runs it where measured passes of so
            many nodes took less time.
        reliability_decay: weight of the old r at each visited node.
        latency_decay: weight of the old average at each measurement.
        penalty: penalty on verifications of unseen shapes, see `LatencyProfile`.
        threshold: theta, the minimum normalized score of a branch that is kept.
        temperature: tau_E of Eq. 11.
        near_children: best children of the root that are always kept.
        least_nodes: pruning that would leave fewer nodes, root included, is rejected.
    """

    version: ClassVar[int] = 1  # before, the draft's pass over the prompt was decoding

    construction: Literal["greedy", "opt_tree", "specinfer"] = "greedy"
    pruning: Literal["full", "without_shadow", "without_safeguards", "off"] = "full"
    schedule: Literal["batched", "serial_cpu", "serial_npu"] = "batched"
    projection: Literal["on_demand_cpu", "on_demand_npu", "eager_npu"] = "on_demand_cpu"
    resident: Share = 0.0
    prefetch: Layers = 1
    candidates: Ranks = 8
    depth: DraftTokens = 8
    reach: Share = 0.05
    limit: DraftTokens = 63
    batch: DraftTokens = 8
    switch: Nodes = 0
    reliability_decay: Decay = 0.95
    latency_decay: Decay = 0.8
    penalty: Share = 0.25
    threshold: Share = 0.01
    temperature: Annotated[float, Interval(gt=0, le=1e6)] = 1.0
    near_children: Nodes = 2
    least_nodes: Nodes = 4

    @property
    def growth(self) -> Growth:
        """Settings of tree construction."""
        small, large = SCHEDULES[self.schedule]
        batch_size = self.batch if self.schedule == "batched" else 1
        return Growth(self.depth, self.reach, self.limit, batch_size, self.switch, small, large)

    @property
    def rule(self) -> PruningRule:
        """Settings of verification pruning."""
        return PruningRule(
            threshold=self.threshold,
            temperature=self.temperature,
            shadow=self.pruning != "without_shadow",
            safeguards=self.pruning != "without_safeguards",
            near_children=self.near_children,
            least_nodes=self.least_nodes,
        )

    def check(self, sampling: Sampling) -> None:
        """InputError for pruning of drawn tokens: a tree that loses draws because of what they are no longer
        has draws of the draft's distribution, and answers would be biased."""
        if self.construction == "specinfer" and self.pruning != "off" and not sampling.greedy:
            raise InputError(
                f"sampling.temperature is {sampling.temperature}, and method.construction=specinfer then "
                "draws its trees' tokens, which pruning must not drop; choose sampling.temperature=0, "
                "method.pruning=off, or method.construction=greedy or opt_tree"
            )

    def places(self) -> Mapping[str, Placement]:
        """Target streamed to the NPU, its output projection as set by `projection`, draft in memory."""
        head, _ = PROJECTIONS[self.projection]
        predictor = exit_scores_of if self.pruning != "off" else None
        target = Placement(NPU, head, self.resident, self.prefetch, beside=predictor)
        return {"target": target, "draft": RESIDENT}

    def computes_on(self, role: str) -> frozenset[str]:
        """See `Method`: the draft's trees grow where the schedule says."""
        return frozenset(SCHEDULES[self.schedule]) if role == "draft" else frozenset()

    def ranks(self, role: str) -> int:
        """See `Method`: the target's first choice; other constructions read more of the draft than C(u)."""
        if role == "target":
            return 1
        return self.candidates if self.construction == "greedy" else RANK_COUNT

    def look_ahead(self, role: str, answer_length: int) -> int:
        """See `Method`."""
        other_method = OTHER_METHODS.get(self.construction)
        return other_method.look_ahead(role, answer_length) if other_method else self.limit

    async def prepare(self, device: Device, sessions: Sessions) -> Serving:
        """Measure verifications and draft passes of some shapes to initialize the latency profiles."""
        target, draft = sessions["target"], sessions["draft"]
        costs = CycleCosts(
            LatencyProfile(decay=self.latency_decay, penalty=self.penalty), DraftLatency(self.latency_decay)
        )
        if self.construction == "greedy":
            with device.phase("profile"):
                for rows, leaves in OFFLINE_SHAPES:
                    costs.verify.observe(rows, leaves, await self._rehearse(device, target, rows, leaves))
                for nodes in GROUP_SIZES:
                    fastest_processor = self.growth.processor(nodes, costs.draft)
                    for processor in [fastest_processor] if self.switch else self.growth.processors:
                        costs.draft.observe(
                            processor, nodes, await self._expand(device, target, draft, nodes, processor)
                        )
        return _Serving(self, costs, Reliability(self.reliability_decay))

    async def _rehearse(self, device: Device, target: Session, row_count: int, leaves: int) -> float:
        """Seconds of verifying a tree of a shape, with arbitrary tokens."""
        root = Prefix.of((0,))
        target.start(root)
        tree = TokenTree(root)
        for _ in range(row_count - 1 - leaves):
            tree.grow(len(tree) - 1, 0)
        stem_length = len(tree) - 1
        for token in range(min(leaves, row_count - 1)):
            tree.grow(stem_length, token)
        _, on_demand = PROJECTIONS[self.projection]
        start = device.now
        await target.verify(tree, Greedy(), SparingVerifier(on_demand=on_demand))
        return device.now - start

    async def _expand(
        self, device: Device, target: Session, draft: Session, nodes: int, processor: str
    ) -> float:
        """Seconds of a draft pass over `nodes` nodes, with arbitrary tokens."""
        root = Prefix.of((0,))
        for session in (draft, target):
            session.start(root)
        await target.forward([root])
        await draft.forward([root.then(0)])
        start = device.now
        await draft.forward([root.then(0).then(token) for token in range(nodes)], on=processor)
        return device.now - start

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """Prepare, and answer one request; InputError as `check`."""
        self.check(request.sampling)
        target, draft = sessions["target"], sessions["draft"]
        serving = await self.prepare(device, sessions)
        for session in (target, draft):
            session.start(request.prefix)
        return await serving.serve(request, device, sessions)


class Drafted(NamedTuple):
    """A tree, why it stopped growing, and C(u) of the expanded nodes."""

    tree: TokenTree
    reason: str
    candidates: Mapping[Prefix, tuple[int, ...]]


@dataclass(frozen=True)
class _Serving(Serving):
    """LEVER's settings, latency profiles and draft reliability."""

    lever: Lever
    costs: CycleCosts
    reliability: Reliability

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """Draft and verify until the answer ends."""
        target, draft = sessions["target"], sessions["draft"]
        lever = self.lever
        _, on_demand = PROJECTIONS[lever.projection]
        decoding = await begin(request, device, target, draft)
        trees: list[TokenTree] = []
        with device.phase("decode"):
            while not decoding.done:
                draft_tree = await self._draft(decoding, device, draft)
                tree, candidates = draft_tree.tree, draft_tree.candidates
                pruner = self._pruner(target, candidates)
                start = device.now
                verification = await target.verify(tree, decoding.chooser, SparingVerifier(pruner, on_demand))
                leaf_count = sum(1 for _ in tree.leaves())
                self.costs.verify.observe(len(tree), leaf_count, device.now - start)
                self.reliability.observe(candidate_hits(candidates, tree.root, verification.text))
                decoding.verified(verification, len(tree) - 1, draft_tree.reason)
                trees.append(tree)
                draft.keep(verification.text)
        decoding.note_possible(trees)
        return decoding.generation

    def _pruner(self, target: Session, candidates: Mapping[Prefix, tuple[int, ...]]) -> EarlyExit | None:
        if not isinstance(target.beside, ExitScores):
            return None
        return EarlyExit(target.beside, self.lever.rule, lambda node: candidates.get(node, ()))

    async def _draft(self, decoding: Decoding, device: Device, draft: Session) -> Drafted:
        lever = self.lever

        async def expand(nodes: Sequence[Prefix], processor: str) -> Expansion:
            start = device.now
            rows: list[Logits] = await draft.forward(nodes, on=processor)
            return Expansion([row.top(lever.candidates) for row in rows], device.now - start)

        if lever.construction == "greedy":
            grown_tree = await grow_greedily(
                decoding.text, expand, self.costs, self.reliability.factor, lever.growth
            )
            return Drafted(grown_tree.tree, grown_tree.reason, grown_tree.candidates)
        tree, reason = await OTHER_METHODS[lever.construction].grow(decoding, draft)
        parents = (prefix for node, prefix in enumerate(tree.prefixes) if tree.children(node))
        candidates = {u: tuple(t for t, _ in draft.logits_of(u).top(lever.candidates)) for u in parents}
        return Drafted(tree, reason, candidates)


OTHER_METHODS: Mapping[str, Speculative] = {"opt_tree": OptTree(), "specinfer": SpecInfer()}


register("method", "lever")(Lever)
