"""Verification trees for tree drawings: given as text, by branching factors, or found by Ghidorah's search.

Must not know how trees are drawn, nor runs: the search reads only accuracies and recorded ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from repro.core.errors import InputError
from repro.core.registry import require_choice
from repro.experiments.tree_drawings.forms import DiagramSpec, VerificationDiagram, branching
from repro.methods.speculative.drafting.head_ranks import RANKS_FILE, Calibration, HeadRanks
from repro.methods.speculative.drafting.verification_tree import (
    VerificationTree,
    estimate_tree,
    expected_acceptance,
    measured_acceptance,
    search_tree,
)
from repro.models.checkpoints.checkpoint import open_checkpoint
from repro.models.checkpoints.origin import Checkpoint, checkpoint_files
from repro.scenarios.generation.draft_calibration import head_match


def read_ranks(name: str) -> HeadRanks:
    """The recorded head ranks in the checkpoint folder of a `conf/model/checkpoint` entry.

    Raises:
        InputError: there is no such entry, its checkpoint is missing, or no ranks were recorded.
    """
    files = checkpoint_files()
    require_choice("checkpoint", name, files)
    path = Path(open_checkpoint(Checkpoint.from_yaml(files[name]))) / RANKS_FILE
    if not path.is_file():
        raise InputError(
            f"checkpoint {name!r} has no recorded ranks: workshop.training.head_ranks records them"
        )
    return HeadRanks.load(path)


def form(spec: DiagramSpec, ranks_of: Callable[[str], HeadRanks] = read_ranks) -> VerificationDiagram:
    """The verification tree of a drawing.

    Raises:
        InputError: its text is not a tree, its ids are not a pair, or no ranks were recorded for its heads.
    """
    if spec.expansion:
        return VerificationDiagram(spec.name, branching(spec.expansion))
    if not spec.is_searched:
        return VerificationDiagram(spec.name, VerificationTree.parse(spec.tree).paths)
    if spec.match:
        calibration = Calibration(head_match(spec.match).heads.accuracies[: spec.heads or None])
    else:
        recorded_ranks = ranks_of(spec.checkpoint)
        calibration = Calibration.of(recorded_ranks.first(spec.heads or recorded_ranks.heads))
    accuracies, ranks = calibration.accuracies, calibration.ranks
    estimated_tree, tree = estimate_tree(accuracies, spec.width), search_tree(calibration, spec.width)
    return VerificationDiagram(
        spec.name,
        tree.paths,
        estimated_tree.paths,
        accuracies,
        (expected_acceptance(estimated_tree, accuracies), expected_acceptance(tree, accuracies)),
        (measured_acceptance(estimated_tree, ranks), measured_acceptance(tree, ranks)) if ranks else None,
        bool(spec.match),
    )
