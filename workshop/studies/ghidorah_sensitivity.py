"""Sensitivity of Ghidorah's claims to each assumed number of the device, changed by -30% and +30%.

python -m workshop.studies.ghidorah_sensitivity               every assumed number, about a minute a core
python -m workshop.studies.ghidorah_sensitivity --only cpu    those whose path contains this
python -m workshop.studies.ghidorah_sensitivity --engine ghidorah_memory     under the second hypothesis

Owns the list of claims. Runs the search itself (`methods.ghidorah.ghidorah`) on the emulator, with
Vicuna-7B's shape and the accuracies that its heads are fitted to; computes no token.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from repro.device.device_file import facts, machine
from repro.device.emulated import EmulatedDevice
from repro.device.engines.engine_file import OWN, device_with_engine
from repro.methods.base import Serving
from repro.methods.ghidorah.ghidorah import Ghidorah, Plan
from repro.methods.ghidorah.heads_fit import WIDTHS as FITTED_WIDTHS
from repro.methods.ghidorah.medusa import Medusa
from repro.methods.ghidorah.medusa_em import DividedDecoding, MedusaEM
from repro.methods.ghidorah.pass_profiling import Rehearsal
from repro.methods.ghidorah.verification_tree import VerificationTree, expected_acceptance
from repro.models.costs.partition import Split
from repro.models.drafting.head_ranks import Calibration
from repro.models.forward.network import NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT
from repro.models.runtime.session import Session
from repro.scenarios.generation.draft_calibration import head_match
from workshop.fitting.measures import model_cost
from workshop.fitting.specification import leaf

DEVICE = "jetson_xavier_nx"
WIDTHS = (4, 8, 16, 32, 64)
SHARE = 0.3
IDLE = ("flash", "power", "watts", "dram.capacity", "dram.budget", "tile", "fp32", "int8")
"""Parts of paths whose numbers do not affect any claim (energy, reads, other precisions), whole numbers."""

ALONE = VerificationTree(())


@dataclass(frozen=True)
class Claims:
    """The paper's claims on Fig. 9, as computed by the search and the emulator.

    Attributes:
        fastest: speedup of Ghidorah at width 16 over sequential decoding on MBPP.
        parallel: speedup over Medusa at width 16.
        over_medusa: mean speedup over Medusa at widths 4 to 64.
        over_em: likewise, over Medusa+EM.
        medusa_width: best width on the GPU alone.
        ghidorah_width: best width on both processors.
    """

    fastest: float
    parallel: float
    over_medusa: float
    over_em: float
    medusa_width: int
    ghidorah_width: int

    def row(self) -> list[str]:
        """The claims as cells of a table row."""
        ratios = (self.fastest, self.parallel, self.over_medusa, self.over_em)
        return [*(f"{ratio:.2f}" for ratio in ratios), str(self.medusa_width), str(self.ghidorah_width)]


HEADINGS = ("over sequential", "over Medusa, 16", "over Medusa", "over Medusa+EM", "width alone", "width")


@dataclass(frozen=True)
class Pair:
    """Vicuna-7B and its heads, opened on an emulated device without real computation."""

    device: EmulatedDevice
    target: Session
    draft: Session
    acceptance: Mapping[str, Calibration]

    @classmethod
    def on(cls, described: Mapping[str, Any]) -> Pair:
        """Both models, with MT-Bench's accuracies for the trees and MBPP's for acceptance."""
        device = EmulatedDevice(machine(described))
        sessions = [
            Session(Engine(role, device, model_cost(name), NoNetwork(), RESIDENT))
            for role, name in (("target", "vicuna_7b_fp16"), ("draft", "vicuna_7b_medusa"))
        ]
        match = head_match([f"ghidorah.table1.mbpp.width{width}" for width in FITTED_WIDTHS])
        known = {"trees": Calibration(match.trees.accuracies), "mbpp": Calibration(match.heads.accuracies)}
        sessions[1].calibration = known["trees"]
        return cls(device, sessions[0], sessions[1], known)

    def prepared(self, method: Medusa) -> Serving:
        """Result of a method's search."""
        return self.device.play(method.prepare(self.device, {"target": self.target, "draft": self.draft}))

    def seconds(self, form: VerificationTree, split: Split | None) -> float:
        """Seconds of a round: drafting and verification."""
        rehearsal = Rehearsal(self.device, self.target, self.draft, form)

        async def both() -> float:
            drafting = await rehearsal.drafting(split) if form.height else 0.0
            return drafting + await rehearsal.verification(split)

        return self.device.play(both())

    def accepted(self, form: VerificationTree, dataset: str) -> float:
        """Expected acceptance length from the heads' accuracies."""
        return expected_acceptance(form, self.acceptance[dataset].accuracies)


def claims(described: Mapping[str, Any]) -> Claims:
    """The claims on a device given by its description."""
    pair = Pair.on(described)
    alone, megatron, columns, trees = {}, {}, {}, {}
    for width in WIDTHS:
        plan = pair.prepared(Ghidorah(width=width))
        divided = pair.prepared(MedusaEM(width=width))
        assert isinstance(plan, Plan)
        assert isinstance(divided, DividedDecoding)
        trees[width] = plan.tree
        alone[width] = pair.seconds(plan.tree, None)
        megatron[width] = pair.seconds(plan.tree, divided.split)
        columns[width] = pair.accepted(plan.tree, "trees") / plan.speed
    sequential = pair.seconds(ALONE, None)
    speeds = {
        name: {width: pair.accepted(trees[width], "trees") / seconds[width] for width in WIDTHS}
        for name, seconds in (("alone", alone), ("both", columns))
    }
    return Claims(
        fastest=pair.accepted(trees[16], "mbpp") * sequential / columns[16],
        parallel=alone[16] / columns[16],
        over_medusa=sum(alone[width] / columns[width] for width in WIDTHS) / len(WIDTHS),
        over_em=sum(megatron[width] / columns[width] for width in WIDTHS) / len(WIDTHS),
        medusa_width=max(WIDTHS, key=speeds["alone"].__getitem__),
        ghidorah_width=max(WIDTHS, key=speeds["both"].__getitem__),
    )


def varied(described: Mapping[str, Any], path: str, factor: float) -> dict[str, Any]:
    """The device with one number, or all points of a curve, multiplied by a factor."""
    other: dict[str, Any] = copy.deepcopy(dict(described))
    fact, _ = leaf(other, path)
    if "points" in fact:
        fact["points"] = [[x, y * factor] for x, y in fact["points"]]
    else:
        fact["value"] *= factor
    return other


def assumed(described: Mapping[str, Any], only: str) -> Iterator[str]:
    """Paths of the assumed numbers that may affect a claim."""
    for fact in facts(described):
        if fact.source == "assumed" and only in fact.path and not any(part in fact.path for part in IDLE):
            yield fact.path


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table of the claims, unchanged and with every assumed number varied."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="vary numbers whose place has this in it")
    parser.add_argument("--share", type=float, default=SHARE, help="how much (default %(default)s)")
    parser.add_argument("--engine", default=OWN, help="how the board is used (`ghidorah_memory`)")
    parser.add_argument("--markdown", type=Path, help="write the table there too")
    args = parser.parse_args(argv)
    described = device_with_engine(DEVICE, args.engine)
    rows = [("as it is", claims(described).row())]
    for path in track(list(assumed(described, args.only)), "varying", console=Console(stderr=True)):
        both = (1 - args.share, 1 + args.share)
        rows += [(f"{path} x {f:.1f}", claims(varied(described, path, f)).row()) for f in both]
    table = Table("number", *HEADINGS)
    for name, row in rows:
        table.add_row(name, *row)
    Console(width=140 if not sys.stdout.isatty() else None).print(table)
    if args.markdown:
        lines = ["| number | " + " | ".join(HEADINGS) + " |", "|---|" + "---|" * len(HEADINGS)]
        lines += [f"| {name} | " + " | ".join(row) + " |" for name, row in rows]
        args.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
