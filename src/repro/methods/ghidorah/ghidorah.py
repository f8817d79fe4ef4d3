"""Ghidorah (arXiv 2505.23219): Medusa on all processors of one memory. The token tree, its width and the
division of the work come from a search before the first request (ARCA, sec. III-C).

Knows nothing of which device runs it, of how a divided layer becomes ops, or of whose heads draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from repro.core.errors import InputError
from repro.core.registry import register, unknown
from repro.device.emulated import Device
from repro.methods.base import Decoding, Generation, Request, Serving, Sessions
from repro.methods.ghidorah.contention import ByContext, adjusted, by_speed
from repro.methods.ghidorah.medusa import WIDTHS, Medusa, TreeDecoding, calibration, drafted
from repro.methods.ghidorah.medusa_em import partner
from repro.methods.ghidorah.pass_profiling import CONTEXT, Rehearsal
from repro.methods.ghidorah.verification_tree import (
    VerificationTree,
    expected_acceptance,
    measured_acceptance,
    searched,
)
from repro.methods.speculative.speculative import speculate
from repro.models.costs.partition import Split
from repro.models.drafting.head_ranks import Calibration
from repro.models.runtime.session import Session
from repro.models.tokens.tree import TokenTree
from repro.records.record import Scalar

ATTENTIONS = ("dynamic", "static")
CONTEXTS = (64, 256, 1024, 4096)
LEFT = (0, 1, 2, 4, 8)


@dataclass(frozen=True)
class Ghidorah(Medusa):
    """Decoding as the search left it.

    Attributes:
        width: rows of a verification; 0 takes what the search finds best of 2, 4, 8, 16, 32 and 64.
        attention: `dynamic` lets the other processor, which has the tree's own part, take of the cached keys
            as many as balances both, by context; `static` leaves them all to the main one (Fig. 10(a)).
        contention: adjust the ratio by trying; without, it is EdgeNN's, by speeds measured alone.
        divided: on two processors; without, the search chooses a tree and a width for the main one.
    """

    width: int = 0
    attention: str = "dynamic"
    contention: bool = True
    divided: bool = True

    def __post_init__(self) -> None:
        if self.width:
            super().__post_init__()
        if self.attention not in ATTENTIONS:
            raise InputError(unknown("method.attention", self.attention, ATTENTIONS))

    async def prepare(self, device: Device, sessions: Sessions) -> Serving:
        """ARCA: a tree for every width, measured and divided; the one with the most tokens a second stays."""
        target, draft = sessions["target"], sessions["draft"]
        known = calibration(draft)
        to = partner(device) if self.divided else ""
        found = []
        with device.phase("profile"):
            for width in [self.width] if self.width else WIDTHS[1:]:
                rehearsal = Rehearsal(device, target, draft, searched(known, width))
                found.append(await self._planned(rehearsal, known, to))
        return max(found, key=lambda plan: plan.speed)

    async def _planned(self, rehearsal: Rehearsal, known: Calibration, to: str) -> Plan:
        form, split, keys = rehearsal.form, None, None
        seconds = await rehearsal.verification()
        if to:
            share = by_speed(seconds, await rehearsal.verification(on=to))
            if self.contention:
                share, _ = await adjusted(lambda s: rehearsal.verification(Split(s, to=to)), share)
            split, keys = await self._attention(rehearsal, Split(share, to=to))
            seconds = await rehearsal.verification(replace(split, keys=keys.at(CONTEXT)))
        seconds += await rehearsal.drafting(split)
        return Plan(form, split, keys, acceptance(form, known) / seconds)

    async def _attention(self, rehearsal: Rehearsal, split: Split) -> tuple[Split, ByContext]:
        """Which keys of the cache the other processor attends to, and which of the tree's the main one."""

        async def balanced(left: int, context: int) -> tuple[float, float]:
            async def measure(keys: float) -> float:
                return await rehearsal.attention(replace(split, left=left, keys=keys), context)

            return (0.0, await measure(0.0)) if self.attention == "static" else await adjusted(measure, 0.0)

        lefts = LEFT[:1] if self.attention == "static" else LEFT
        tried = {left: await balanced(left, CONTEXT) for left in lefts if left <= rehearsal.form.width}
        left = min(tried, key=lambda each: tried[each][1])
        shares, seconds = zip(*[await balanced(left, context) for context in CONTEXTS], strict=True)
        return replace(split, left=left), ByContext(CONTEXTS, shares, seconds)


def acceptance(form: VerificationTree, known: Calibration) -> float:
    """Tokens a verification on the calibration prompts, estimated where only accuracies are known."""
    if known.ranks is None:
        return expected_acceptance(form, known.accuracies)
    return measured_acceptance(form, known.ranks)


@dataclass(frozen=True)
class Plan(TreeDecoding):
    """What the search found for a width; it serves.

    Attributes:
        split: how the work is divided, if it is.
        keys: the other processor's share of the cached keys, by context.
        speed: tokens a second that are expected.
    """

    split: Split | None
    keys: ByContext | None
    speed: float

    @property
    def figures(self) -> Mapping[str, Scalar]:
        """The tree as text, its width, the speed that was expected; the other processor's shares, and seconds
        of one layer's attention by context."""
        out = {**super().figures, "chosen_width": self.tree.width, "expected_tokens_per_s": self.speed}
        if self.split and self.keys:
            keys, split = self.keys, self.split
            out |= {"other_share": split.share, "other_keys": keys.at(CONTEXT), "left": split.left}
            out |= {f"attention_{at}": spent for at, spent in zip(keys.contexts, keys.seconds, strict=True)}
        return out

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """Rounds of drafting and verifying, attention divided by how long the text has become."""
        target, draft = sessions["target"], sessions["draft"]
        draft.engine.divide(self.split)

        async def grow(decoding: Decoding) -> tuple[TokenTree, str]:
            self._divide(target, decoding.text.length)
            return await drafted(self.tree, decoding.text, draft), "width"

        self._divide(target, len(request.prompt))
        return await speculate(request, device, target, [draft], grow)

    def _divide(self, target: Session, context: int) -> None:
        split = self.split
        target.engine.divide(replace(split, keys=self.keys.at(context)) if split and self.keys else None)


register("method", "ghidorah")(Ghidorah)
