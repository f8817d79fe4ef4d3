"""Verification trees for tree drawings: given as text, by branching factors, or found by Ghidorah's search.

Must not know how trees are drawn, nor runs: the search reads only accuracies and recorded ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.registry import unknown
from repro.methods.ghidorah.verification_tree import (
    VerificationTree,
    expected_acceptance,
    grown,
    measured_acceptance,
    searched,
)
from repro.models.checkpoints.checkpoint import open_checkpoint
from repro.models.checkpoints.origin import Checkpoint
from repro.models.drafting.head_ranks import FILE, Calibration, HeadRanks
from repro.reports.tree_drawings.forms import DiagramSpec, VerificationDiagram, branching
from repro.scenarios.generation.draft_calibration import head_match


def recorded(name: str) -> HeadRanks:
    """The recorded head ranks in the checkpoint folder of a `conf/model/checkpoint` entry.

    Raises:
        InputError: there is no such entry, its checkpoint is missing, or no ranks were recorded.
    """
    folder = conf_dir() / "model" / "checkpoint"
    if name not in (known := sorted(path.stem for path in folder.glob("*.yaml"))):
        raise InputError(unknown("checkpoint", name, known))
    mapping = yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    path = Path(open_checkpoint(Checkpoint.from_mapping(mapping))) / FILE
    if not path.is_file():
        raise InputError(
            f"checkpoint {name!r} has no recorded ranks: workshop.training.head_ranks records them"
        )
    return HeadRanks.load(path)


def form(spec: DiagramSpec, ranks_of: Callable[[str], HeadRanks] = recorded) -> VerificationDiagram:
    """The verification tree of a drawing.

    Raises:
        InputError: its text is not a tree, its ids are not a pair, or no ranks were recorded for its heads.
    """
    if spec.expansion:
        return VerificationDiagram(spec.name, branching(spec.expansion))
    if not spec.searched:
        return VerificationDiagram(spec.name, VerificationTree.parse(spec.tree).paths)
    return _searched(spec, _calibration(spec, ranks_of))


def _calibration(spec: DiagramSpec, ranks_of: Callable[[str], HeadRanks]) -> Calibration:
    if spec.match:
        heads = head_match(spec.match).heads.accuracies
        return Calibration(heads[: spec.heads or None])
    ranks = ranks_of(spec.checkpoint)
    return Calibration.of(ranks.first(spec.heads or ranks.heads))


def _searched(spec: DiagramSpec, known: Calibration) -> VerificationDiagram:
    before, tree = grown(known.accuracies, spec.width), searched(known, spec.width)
    ranks = known.ranks
    return VerificationDiagram(
        spec.name,
        tree.paths,
        before.paths,
        known.accuracies,
        (expected_acceptance(before, known.accuracies), expected_acceptance(tree, known.accuracies)),
        (measured_acceptance(before, ranks), measured_acceptance(tree, ranks)) if ranks else None,
        bool(spec.match),
    )
