"""Times the attention within a token tree with three real kernels (Ghidorah Fig. 10(b)).

Must not know how a kernel works; needs a device whose clock measures real time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Annotated, ClassVar

from annotated_types import Interval

from repro.core.errors import InputError
from repro.core.registry import register
from repro.device.emulated import Device
from repro.device.op import CPU, Op
from repro.libraries import torch
from repro.methods.base import Serving, Sessions
from repro.methods.ghidorah.tree_kernels import FORMS, TreeKernel, TreePattern, kernel
from repro.methods.speculative.drafting.verification_tree import search_tree
from repro.methods.speculative.medusa import Medusa, TreeDecoding, calibration
from repro.records.record import Scalar

OUR_FORM = "optimized"
Size = Annotated[int, Interval(ge=1, le=4096)]
"""Heads of a layer, and elements of a head."""

CALLS = 10
"""Kernel calls per clock reading, so that the overhead of an op is negligible."""


@register("method", "tree_attention")
@dataclass(frozen=True)
class TreeAttention(Medusa):
    """Medusa that also records the time of each kernel for QK^T and AV of its tree, for one layer.

    Each round runs all kernels once, so ratios are paired; medians are over rounds.

    Attributes:
        heads: attention heads of the layer; Vicuna-7B's, without grouped-query attention.
        head_dim: head dimension; Vicuna-7B's.
        rounds: measured rounds, at least 2, after one warm-up.
    """

    clock: ClassVar[str] = "local"
    version: ClassVar[int] = 2  # 1 had loops of hand-built vectors, and a dense product of our own

    heads: Size = 32
    head_dim: Size = 128
    rounds: Annotated[int, Interval(ge=2, le=100_000)] = 200

    async def prepare(self, device: Device, sessions: Sessions) -> Serving:
        """Time the kernels, then decode with the same tree.

        Raises:
            InputError: the device's clock does not measure real time.
        """
        draft = sessions["draft"]
        tree = search_tree(calibration(draft), self.width)
        pattern = TreePattern.of_parents(tree.parents)
        works = [Work.of(kernel(name), pattern, self.heads, self.head_dim) for name in FORMS]
        with device.phase("profile"):
            rounds = [[await work.seconds(device) for work in works] for _ in range(self.rounds + 1)][1:]
        if min(map(min, rounds)) <= 0.0:
            raise InputError(f"{device.name} runs no kernel for real; choose device=local_cpu")
        return TimedDecoding(tree, compare_kernels(rounds) | {"tree_pairs": pattern.pair_count})


@dataclass(frozen=True)
class TimedDecoding(TreeDecoding):
    """Medusa decoding with kernel timings in its figures."""

    timed: Mapping[str, Scalar]

    @property
    def figures(self) -> Mapping[str, Scalar]:
        """The tree as text, and the kernels' seconds and ratios."""
        return {**super().figures, **self.timed}


@dataclass(frozen=True)
class Work:
    """A kernel with its inputs."""

    kernel: TreeKernel
    pattern: TreePattern
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def of(cls, tree_kernel: TreeKernel, pattern: TreePattern, head_count: int, head_dim: int) -> Work:
        """Random inputs, the same for every kernel."""
        generator, width = torch.Generator().manual_seed(0), pattern.width
        queries = torch.randn(width, head_count, head_dim, generator=generator)
        keys, values = torch.randn(2, head_count, width, head_dim, generator=generator)
        scores = tree_kernel.scores(pattern, queries, keys, head_dim**-0.5)
        weights = torch.sigmoid(scores)  # maps -inf to 0: a dense kernel's masked weights
        return cls(tree_kernel, pattern, queries, keys, values, weights)

    async def seconds(self, device: Device) -> float:
        """Seconds of both products, mean over `CALLS`."""
        start = device.now
        await device.run(
            Op(CPU, "kernel", f"{self.kernel.form} tree attention", compute=self._both, launches=0)
        )
        return (device.now - start) / CALLS

    def _both(self) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # torch's own product would take more
        try:
            for _ in range(CALLS):
                self.kernel.scores(self.pattern, self.queries, self.keys, 1.0)
                self.kernel.mix(self.pattern, self.weights, self.values)
        finally:
            torch.set_num_threads(threads)


def compare_kernels(rounds: Sequence[Sequence[float]]) -> dict[str, Scalar]:
    """Median seconds per kernel, and speedups of the optimized one with 10th and 90th percentiles.

    Args:
        rounds: seconds by kernel in the order of `FORMS`, per round.
    """
    times = dict(zip(FORMS, zip(*rounds, strict=True), strict=True))
    values: dict[str, Scalar] = {f"{name}_tree_seconds": median(seconds) for name, seconds in times.items()}
    for name in FORMS:
        if name != OUR_FORM:
            ratios = [
                other_seconds / our_seconds
                for other_seconds, our_seconds in zip(times[name], times[OUR_FORM], strict=True)
            ]
            tenth, *_, ninetieth = quantiles(ratios, n=10, method="inclusive")
            values |= {f"{OUR_FORM}_over_{name}": median(ratios)}
            values |= {f"{OUR_FORM}_over_{name}_low": tenth, f"{OUR_FORM}_over_{name}_high": ninetieth}
    return values
