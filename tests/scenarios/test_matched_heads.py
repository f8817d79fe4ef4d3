"""Heads brought to published acceptance lengths: the fit, the coins, and what decoding then amounts to."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median

import pytest
import torch

from repro.core.errors import InputError
from repro.experiments.plan import plain
from repro.methods.base import Request
from repro.methods.speculative.drafting import heads_fit
from repro.methods.speculative.drafting.calibrated_heads import MatchedHeads, coin, with_rank
from repro.methods.speculative.drafting.head_ranks import TOP, Calibration, HeadRanks
from repro.methods.speculative.drafting.heads_fit import cumulative, fit_heads, published_accuracies
from repro.methods.speculative.drafting.verification_tree import (
    VerificationTree,
    estimate_tree,
    expected_acceptance,
    measured_acceptance,
    search_tree,
)
from repro.methods.speculative.medusa import Medusa, TreeDecoding
from repro.models.forward.network import Logits, Network
from repro.models.tokens.prefix import Prefix
from repro.reports.reference.reference import load_cells
from repro.scenarios.generation import draft_calibration
from repro.scenarios.generation.draft_calibration import HeadMatch, head_match
from tiny import TableNetwork
from tiny_heads import VOCAB, TableHeads, beside
from tiny_project import composed
from workshop.training.head_ranks import joined, recorded

ROWS = ("mt_bench", "gsm8k", "mbpp", "human_eval")
COUNT = 12
ACCURACIES = ((0.6, 0.1, 0.1, 0.05), (0.5, 0.2, 0.05, 0.05), (0.4, 0.1, 0.1, 0.0))


def ids(row: str) -> list[str]:
    return [f"ghidorah.table1.{row}.width{width}" for width in (2, 4)]


# The fit


@pytest.mark.parametrize("row", ROWS)
def test_the_estimated_trees_have_the_two_published_acceptances(row: str) -> None:
    heads, cells = head_match(ids(row)).heads, load_cells()
    for name, width in zip(ids(row), (2, 4), strict=True):
        value = expected_acceptance(estimate_tree(heads.accuracies, width), heads.accuracies)
        assert value == pytest.approx(cells[name].value_low, abs=1e-9)
    assert len(heads.accuracies) == 5
    for shares in heads.accuracies:
        assert len(shares) == TOP
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


def test_trees_are_mt_bench_s_whatever_the_heads() -> None:
    match = head_match(ids("mbpp"))
    assert match.heads.published == (1.78, 2.54)
    assert match.trees == head_match(ids("mt_bench")).heads
    assert match.cells == (*ids("mbpp"), *ids("mt_bench"))
    assert head_match(ids("mt_bench")).cells == tuple(ids("mt_bench"))


def test_what_no_rank_is_published_of_goes_on_falling() -> None:
    known = published_accuracies()
    for printed, whole in zip(known, cumulative(known), strict=True):
        assert whole[:5] == printed
        added = [b - a for a, b in pairwise(whole)]
        assert added[4:] == sorted(added[4:], reverse=True)
        # One power of the rank leads through the second, the fifth and all that follow.
        powers = [math.log(added[0] / step) / math.log(rank / 2) for rank, step in enumerate(added[3:], 5)]
        assert powers == pytest.approx([powers[0]] * 6)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["ghidorah.table1.mbpp.width2", "ghidorah.table1.mbpp.width3"], "width3.*ghidorah.table1.mbpp"),
        (["ghidorah.table1.mbpp.width4", "ghidorah.table1.mbpp.width2"], "width 4 on MBPP, width 2 on MBPP"),
        (
            ["ghidorah.table1.mbpp.width2", "ghidorah.table1.gsm8k.width4"],
            "width 4 on GSM8K.*mt_bench.width2",
        ),
        (["ghidorah.table1.mbpp.width2"], "match has width 2 on MBPP"),
        ([], "match has no id"),
        (
            ["ghidorah.fig9.speedup_max", "ghidorah.table1.mbpp.width4"],
            "published acceptance length of a width",
        ),
    ],
)
def test_what_is_no_pair_is_said(names: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        draft_calibration.goal_of(names)


def test_lengths_that_no_heads_have_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads_fit, "STEEPEST", 0.1)
    fit_heads.cache_clear()
    with pytest.raises(InputError, match=r"between \d\.\d+ and \d\.\d+ at width 4, and .*width4 is 2\.54"):
        head_match(ids("mbpp"))
    fit_heads.cache_clear()


def test_one_id_is_an_agreement_as_before() -> None:
    assert draft_calibration.goal_of("edgellm.table1.squad") == draft_calibration.published_goal(
        "edgellm.table1.squad"
    )
    assert isinstance(draft_calibration.goal_of(ids("gsm8k")), HeadMatch)


# One row


def test_a_token_comes_to_its_rank_and_the_others_keep_their_order() -> None:
    row = Logits(None, ([5, 3, 8, 1], [-0.1, -2.0, -3.0, -4.0]))
    assert with_rank(row, 8, 0).top_ranks() == ([8, 5, 3, 1], [-0.1, -2.0, -3.0, -4.0])
    assert with_rank(row, 5, 2).top_ranks() == ([3, 8, 5, 1], [-0.1, -2.0, -3.0, -4.0])
    assert with_rank(row, 9, 1).top_ranks() == ([5, 9, 3, 8], [-0.1, -2.0, -3.0, -4.0])
    assert with_rank(row, 3, None).top_ranks() == ([5, 8, 1], [-0.1, -2.0, -3.0])
    assert with_rank(row, 9, None).top_ranks() == row.top_ranks()


def test_coins_are_uniform_and_independent_of_head_and_seed() -> None:
    texts = [Prefix.of([i, i + 1]) for i in range(4000)]
    tossed = [[coin(text, *which) for text in texts] for which in ((0, 0), (1, 0), (0, 1))]
    for numbers in tossed:
        found = sum(number < 0.3 for number in numbers) / 4000
        assert found == pytest.approx(0.3, abs=3 * math.sqrt(0.21 / 4000))
    for other in tossed[1:]:
        both = sum(a < 0.5 and b < 0.5 for a, b in zip(tossed[0], other, strict=True)) / 4000
        assert both == pytest.approx(0.25, abs=3 * math.sqrt(0.1875 / 4000))


# Decoding


def sessions_of(seed: int = 0, accuracies: tuple[tuple[float, ...], ...] = ACCURACIES):  # type: ignore[no-untyped-def]
    target = TableNetwork(VOCAB, seed=1)
    heads: Network = MatchedHeads(TableHeads(3), TableNetwork(VOCAB, seed=1), accuracies, seed)
    device, sessions = beside(target, heads, 3)
    sessions["draft"].beside = Calibration(accuracies)
    return device, sessions


def requests(count: int, length: int = 101) -> list[Request]:
    return [Request(f"{i}", (i, 3), length) for i in range(count)]


def record(made: list[Request], seed: int = 0) -> HeadRanks:
    answers = []
    for request in made:
        device, sessions = sessions_of(seed)
        for session in sessions.values():
            session.start(Prefix.of(request.prompt))
        answers.append(device.play(recorded(request, device, **sessions)))
    return joined(answers)


@pytest.fixture(scope="module")
def ranks() -> HeadRanks:
    return record(requests(COUNT))


def test_ranks_are_those_that_were_asked_for(ranks: HeadRanks) -> None:
    assert (ranks.positions, ranks.heads, ranks.begins[:3]) == (100 * COUNT, 3, (0, 100, 200))
    for found, wanted in zip(ranks.accuracies(5), ACCURACIES, strict=True):
        for share, asked in zip(found, (*wanted, 0.0), strict=True):
            assert share == pytest.approx(asked, abs=3 * math.sqrt(asked * (1 - asked) / (98 * COUNT)))


def test_what_no_coin_gives_a_rank_is_in_none(ranks: HeadRanks) -> None:
    assert set(ranks.ranks.unique().tolist()) <= {0, 1, 2, 3, 64}


@pytest.mark.parametrize("width", [1, 4, 16])
def test_decoding_takes_the_verifications_that_the_replay_says(width: int, ranks: HeadRanks) -> None:
    """The same tree along the same answers: tokens a verification are equal, not close."""
    tree, tokens, rounds = search_tree(Calibration(ACCURACIES), width), 0, 0
    for request in requests(COUNT):
        device, sessions = sessions_of()
        made = device.play(Medusa(width=width).serve(request, device, sessions))
        tokens, rounds = tokens + len(made.tokens) - 1, rounds + len(made.rounds)
        assert all(r.rows == width for r in made.rounds)
    assert tokens / rounds == measured_acceptance(tree, ranks)
    assert tokens / rounds == pytest.approx(expected_acceptance(tree, ACCURACIES), rel=0.08)


def test_the_text_stays_the_targets_own_and_the_rows_do_not_depend_on_the_tree() -> None:
    request, texts = requests(1)[0], []
    for width in (1, 4, 16):
        device, sessions = sessions_of()
        texts.append(device.play(Medusa(width=width).serve(request, device, sessions)).tokens)
    assert texts[0] == texts[1] == texts[2]
    again, other = record([request]), record([request], seed=1)
    assert torch.equal(again.ranks, record([request]).ranks)
    assert not torch.equal(again.ranks, other.ranks)


def test_heads_as_they_are_decode_as_the_replay_says() -> None:
    """No coin: random heads, of whom some happen to be right."""
    answers, tree, tokens, rounds = [], VerificationTree.parse("0;1;2;0.0;0.1;1.0;0.0.0"), 0, 0
    for request in requests(5):
        device, sessions = beside(TableNetwork(VOCAB, seed=1), TableHeads(3), 3)
        for session in sessions.values():
            session.start(Prefix.of(request.prompt))
        answers.append(device.play(recorded(request, device, **sessions)))
    ranks = joined(answers)
    for request in requests(5):
        device, sessions = beside(TableNetwork(VOCAB, seed=1), TableHeads(3), 3)
        for session in sessions.values():
            session.start(Prefix.of(request.prompt))
        made = device.play(TreeDecoding(tree).serve(request, device, sessions))
        tokens, rounds = tokens + len(made.tokens) - 1, rounds + len(made.rounds)
    assert tokens / rounds == measured_acceptance(tree, ranks) > 1.2


# The workloads


@pytest.mark.parametrize(
    ("row", "dataset"), list(zip(ROWS, ("mt_bench", "gsm8k", "mbpp", "humaneval"), strict=True))
)
def test_a_workload_for_each_row_of_table_i(row: str, dataset: str) -> None:
    config = plain(composed(f"setup=ghidorah_{dataset}"))
    assert config["calibrate_draft_to"] == ids(row)
    assert (config["dataset"]["name"], config["device"]["name"]) == (dataset, "Jetson Xavier NX")
    assert (config["target"]["name"], config["draft"]["name"]) == ("Vicuna-7B", "Medusa for Vicuna-7B")
    assert config["labels"] == {"workload": f"ghidorah_{dataset}"}
