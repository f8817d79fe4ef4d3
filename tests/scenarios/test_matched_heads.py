"""Heads brought to published acceptance lengths: the fit, and how often which rank comes."""

from __future__ import annotations

import math
from statistics import median

import pytest

from repro.core.errors import InputError
from repro.methods.base import Request
from repro.methods.speculative.drafting.calibrated_draft import MatchedHeads
from repro.methods.speculative.drafting.head_ranks import TOP_RANKS, Calibration
from repro.methods.speculative.drafting.verification_tree import estimate_tree, expected_acceptance
from repro.models.forward.network import Network
from repro.models.tokens.prefix import Prefix
from repro.reports.reference.reference import load_cells
from repro.scenarios.generation import draft_calibration
from repro.scenarios.generation.draft_calibration import head_match
from tiny import TableNetwork
from tiny_heads import VOCAB, TableHeads, beside
from workshop.training.head_ranks import joined, recorded

ROWS = ("mt_bench", "gsm8k", "mbpp", "human_eval")


COUNT = 12


ACCURACIES = ((0.6, 0.1, 0.1, 0.05), (0.5, 0.2, 0.05, 0.05), (0.4, 0.1, 0.1, 0.0))


def ids(row: str) -> list[str]:
    return [f"ghidorah.table1.{row}.width{width}" for width in (2, 4)]


@pytest.mark.parametrize("row", ROWS)
def test_the_estimated_trees_have_the_two_published_acceptances(row: str) -> None:
    heads, cells = head_match(ids(row)).heads, load_cells()
    for name, width in zip(ids(row), (2, 4), strict=True):
        value = expected_acceptance(estimate_tree(heads.accuracies, width), heads.accuracies)
        assert value == pytest.approx(cells[name].value_low, abs=1e-9)
    assert len(heads.accuracies) == 5
    for shares in heads.accuracies:
        assert len(shares) == TOP_RANKS
        assert list(shares) == sorted(shares, reverse=True), "a rank is more accurate than the one before"
        assert 0 < sum(shares) < 1


def test_mt_benchs_trees_meet_the_other_widths_of_all_rows() -> None:
    """Nothing of these was fitted."""
    cells, errors = load_cells(), []
    for row in ROWS:
        match = head_match(ids(row))
        for width in (8, 16, 32, 64):
            tree = estimate_tree(match.trees.accuracies, width)
            published = cells[f"ghidorah.table1.{row}.width{width}"].value_low
            errors.append(abs(expected_acceptance(tree, match.heads.accuracies) / (published or 0.0) - 1))
    assert median(errors) < 0.025
    assert max(errors) < 0.05


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["ghidorah.table1.mbpp.width2", "ghidorah.table1.mbpp.width3"], "width3.*ghidorah.table1.mbpp"),
        (
            ["ghidorah.table1.mbpp.width2", "ghidorah.table1.gsm8k.width4"],
            "width 4 on GSM8K.*mt_bench.width2",
        ),
    ],
)
def test_what_is_no_pair_is_said(names: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        draft_calibration.goal_of(names)


def test_ranks_come_as_often_as_was_asked_for() -> None:
    answers = []
    for number in range(COUNT):
        heads: Network = MatchedHeads(TableHeads(3), TableNetwork(VOCAB, seed=1), ACCURACIES, 0)
        device, sessions = beside(TableNetwork(VOCAB, seed=1), heads, 3)
        sessions["draft"].beside = Calibration(ACCURACIES)
        request = Request("", (number, 3), 101)
        for session in sessions.values():
            session.start(Prefix.of(request.prompt))
        answers.append(device.play(recorded(request, device, **sessions)))
    ranks = joined(answers)
    assert (ranks.positions, ranks.heads, ranks.begins[:3]) == (100 * COUNT, 3, (0, 100, 200))
    for found, wanted in zip(ranks.accuracies(5), ACCURACIES, strict=True):
        for share, asked in zip(found, (*wanted, 0.0), strict=True):
            assert share == pytest.approx(asked, abs=3 * math.sqrt(asked * (1 - asked) / (98 * COUNT)))
