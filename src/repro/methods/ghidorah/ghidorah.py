"""Ghidorah (arXiv 2505.23219): Medusa on two processors with unified memory, and its baseline Medusa+EM (sec.
IV-A).

ARCA (sec. III-C) searches tree, width and division of the work before the first request. The baseline is
divided as in Megatron-LM, without copies, at the ratio of EdgeNN (Zhang et al., ICDE 2023). Must not know the
kind of device, how a divided layer becomes ops, or which heads draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from annotated_types import Interval

from repro.core.errors import InputError
from repro.core.registry import register
from repro.device.emulated import Device
from repro.device.op import CPU, GPU
from repro.methods.base import Decoding, Generation, Request, Serving, Sessions
from repro.methods.ghidorah.contention import ByContext, adjust, by_speed
from repro.methods.ghidorah.division import divide
from repro.methods.ghidorah.partition import Split
from repro.methods.ghidorah.pass_profiling import CONTEXT_LENGTH, Rehearsal
from repro.methods.speculative.drafting.head_ranks import Calibration
from repro.methods.speculative.drafting.verification_tree import (
    VerificationTree,
    expected_acceptance,
    measured_acceptance,
    search_tree,
)
from repro.methods.speculative.medusa import WIDTHS, Medusa, TreeDecoding, calibration, draft_tree
from repro.methods.speculative.speculative import speculate
from repro.models.runtime.session import Session
from repro.models.tokens.tree import TokenTree
from repro.records.record import Scalar


@register("method", "medusa_em")
@dataclass(frozen=True)
class MedusaEM(Medusa):
    """Tensor parallelism over two processors with shared memory: attention divided by heads, dense with mask.

    The ratio is that of the processors' speeds, each measured alone with the whole work, which ignores
    memory contention.
    """

    @property
    def processors(self) -> frozenset[str]:
        """See `Method`."""
        return frozenset({CPU, GPU})

    async def prepare(self, device: Device, sessions: Sessions) -> Serving:
        """Measure each processor alone, and set the ratio."""
        target, draft = sessions["target"], sessions["draft"]
        tree = search_tree(calibration(draft), self.width)
        rehearsal, other_processor = Rehearsal(device, target, draft, tree), partner(device)
        with device.phase("profile"):
            main_seconds = await rehearsal.verification()
            other_seconds = await rehearsal.verification(on=other_processor)
        split = Split(by_speed(main_seconds, other_seconds), "megatron", to=other_processor)
        return DividedDecoding(tree, split)


@dataclass(frozen=True)
class DividedDecoding(TreeDecoding):
    """Medusa decoding with a fixed tree, target and heads divided at one ratio."""

    split: Split

    @property
    def figures(self) -> Mapping[str, Scalar]:
        """The tree as text, and the other processor's share."""
        return {**super().figures, "other_share": self.split.share}

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """As `TreeDecoding`, with the split applied."""
        target, draft = sessions["target"], sessions["draft"]
        for session in (target, draft):
            divide(session, self.split)
        return await super().serve(request, device, sessions)


def partner(device: Device) -> str:
    """The second processor: the CPU, or the GPU if the main processor is the CPU.

    Raises:
        InputError: the device does not have it.
    """
    other_processor = GPU if device.main == CPU else CPU
    if other_processor not in device.resources:
        raise InputError(
            f"{device.name} has no {other_processor} beside its {device.main} to divide the work with; "
            "choose a device with both (jetson_xavier_nx), or method=medusa, or ghidorah with "
            "method.divided=false"
        )
    return other_processor


CONTEXT_LENGTHS = (64, 256, 1024, 4096)
DENSE_KEYS = (0, 1, 2, 4, 8)


@dataclass(frozen=True)
class Ghidorah(Medusa):
    """Medusa with tree, width and division found by search.

    Attributes:
        width: verification width; 0 searches the best of 2, 4, 8, 16, 32 and 64.
        attention: `dynamic` gives the other processor, which attends to the tree's own keys, a share of the
            cached keys that balances both, by context; `static` keeps cached keys on the main processor
            (Fig. 10(a)).
        contention: adjust the ratio by measured search; else use EdgeNN's ratio of speeds measured alone.
        divided: use two processors; else search tree and width for the main processor.
    """

    width: Annotated[int, Interval(ge=0, le=64)] = 0
    attention: Literal["dynamic", "static"] = "dynamic"
    contention: bool = True
    divided: bool = True

    @property
    def processors(self) -> frozenset[str]:
        """See `Method`."""
        return frozenset({CPU, GPU}) if self.divided else frozenset()

    async def prepare(self, device: Device, sessions: Sessions) -> Serving:
        """ARCA: search and divide a tree for every width; keep the one with the most tokens per second."""
        target, draft = sessions["target"], sessions["draft"]
        head_calibration = calibration(draft)
        other_processor = partner(device) if self.divided else ""
        plans = []
        with device.phase("profile"):
            for width in [self.width] if self.width else WIDTHS[1:]:
                rehearsal = Rehearsal(device, target, draft, search_tree(head_calibration, width))
                plans.append(await self._plan(rehearsal, head_calibration, other_processor))
        return max(plans, key=lambda plan: plan.speed)

    async def _plan(self, rehearsal: Rehearsal, head_calibration: Calibration, processor: str) -> Plan:
        tree, split, keys = rehearsal.tree, None, None
        seconds = await rehearsal.verification()
        if processor:
            share = by_speed(seconds, await rehearsal.verification(on=processor))
            if self.contention:
                share, _ = await adjust(lambda part: rehearsal.verification(Split(part, to=processor)), share)
            split, keys = await self._attention(rehearsal, Split(share, to=processor))
            seconds = await rehearsal.verification(replace(split, keys=keys.at(CONTEXT_LENGTH)))
        seconds += await rehearsal.drafting(split)
        return Plan(tree, split, keys, acceptance(tree, head_calibration) / seconds)

    async def _attention(self, rehearsal: Rehearsal, split: Split) -> tuple[Split, ByContext]:
        """Find the other processor's share of cached keys, and how many tree keys join them."""

        async def balance(dense_keys: int, context_length: int) -> tuple[float, float]:
            async def measure(key_count: float) -> float:
                return await rehearsal.attention(
                    replace(split, dense_keys=dense_keys, keys=key_count), context_length
                )

            return (0.0, await measure(0.0)) if self.attention == "static" else await adjust(measure, 0.0)

        choices = DENSE_KEYS[:1] if self.attention == "static" else DENSE_KEYS
        results = {
            count: await balance(count, CONTEXT_LENGTH) for count in choices if count <= rehearsal.tree.width
        }
        dense_keys = min(results, key=lambda count: results[count][1])
        shares, seconds = zip(
            *[await balance(dense_keys, context) for context in CONTEXT_LENGTHS], strict=True
        )
        return replace(split, dense_keys=dense_keys), ByContext(CONTEXT_LENGTHS, shares, seconds)


def acceptance(tree: VerificationTree, head_calibration: Calibration) -> float:
    """Acceptance length on the calibration prompts; estimated if only accuracies are known."""
    if head_calibration.ranks is None:
        return expected_acceptance(tree, head_calibration.accuracies)
    return measured_acceptance(tree, head_calibration.ranks)


@dataclass(frozen=True)
class Plan(TreeDecoding):
    """Search result for a width; serves requests with it.

    Attributes:
        split: division of the work, if divided.
        keys: the other processor's share of the cached keys, by context.
        speed: expected tokens per second.
    """

    split: Split | None
    keys: ByContext | None
    speed: float

    @property
    def figures(self) -> Mapping[str, Scalar]:
        """Tree as text, width, expected speed; the other processor's shares, and seconds of one layer's
        attention by context."""
        values = {**super().figures, "chosen_width": self.tree.width, "expected_tokens_per_s": self.speed}
        if self.split and self.keys:
            keys, split = self.keys, self.split
            values |= {
                "other_share": split.share,
                "other_keys": keys.at(CONTEXT_LENGTH),
                "left": split.dense_keys,
            }
            values |= {
                f"attention_{context_length}": seconds
                for context_length, seconds in zip(keys.contexts, keys.seconds, strict=True)
            }
        return values

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """Draft and verify until the answer ends, with attention divided by the current context length."""
        target, draft = sessions["target"], sessions["draft"]
        divide(draft, self.split)

        async def grow(decoding: Decoding) -> tuple[TokenTree, str]:
            self._divide(target, decoding.text.length)
            return await draft_tree(self.tree, decoding.text, draft), "width"

        self._divide(target, len(request.prompt))
        return await speculate(request, device, target, [draft], grow)

    def _divide(self, target: Session, context_length: int) -> None:
        split = self.split
        divide(target, replace(split, keys=self.keys.at(context_length)) if split and self.keys else None)


register("method", "ghidorah")(Ghidorah)
