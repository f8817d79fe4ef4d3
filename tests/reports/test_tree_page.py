"""Forms of verification as they are drawn: masks point by point, trees before and after their refinement."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from invented_ranks import record
from repro.core.digits import same_number
from repro.core.errors import InputError
from repro.experiments.tree_drawings import drawing
from repro.experiments.tree_drawings import page as tables
from repro.experiments.tree_drawings import search as searches
from repro.experiments.tree_drawings.forms import (
    DiagramSpec,
    DiagramsSpec,
    LookaheadSpec,
    branching,
    lookahead_mask,
    tree_mask,
)
from repro.experiments.tree_drawings.page import write_forms
from repro.experiments.tree_drawings.search import form
from repro.methods.ghidorah.verification_tree import grown, measured_acceptance, refined

PAIR = ("ghidorah.table1.mt_bench.width2", "ghidorah.table1.mt_bench.width4")
BIBLIOGRAPHY = {name: f"@misc{{{name},\n}}" for name in ("ghidorah", "repro")}


def spec(**content: Any) -> DiagramsSpec:
    return DiagramsSpec.parse("x/y", {"title": "T", "paper": "ghidorah", "picture": "P", **content})


def shown(mask: tuple[tuple[bool, ...], ...]) -> list[str]:
    return ["".join("x" if point else "." for point in line) for line in mask]


# Masks


def test_a_node_looks_at_its_ancestors_and_itself() -> None:
    paths = ((0,), (1,), (0, 0), (1, 2))
    assert shown(tree_mask(paths)) == ["x....", "xx...", "x.x..", "xx.x.", "x.x.x"]
    assert shown(tree_mask(paths, rootless=True)) == ["x...", ".x..", "x.x.", ".x.x"]


def test_branching_makes_every_node_of_a_level_alike() -> None:
    assert branching((2, 1)) == ((0,), (1,), (0, 0), (1, 0))
    assert len(branching((1, 1, 3, 1, 1, 1, 1, 1))) == 20


def test_lookahead_s_window_and_its_guesses() -> None:
    assert shown(lookahead_mask(LookaheadSpec(window=3, ngram=3, guesses=2))) == [
        "x.........",
        "xx........",
        "xxx.......",
        "x..x......",
        "xx..x.....",
        "xxx..x....",
        "x.....x...",
        "x.....xx..",
        "x.......x.",
        "x.......xx",
    ]


def test_a_mask_s_figures_count_its_points() -> None:
    found = {name: number for name, (_, number) in tables.mask_figures(tree_mask(((0,), (1,)))).items()}
    assert found == {
        "tokens": 3,
        "points": 9,
        "computed": 5,
        "density": pytest.approx(500 / 9),
        "causal_density": pytest.approx(500 / 6),
    }


# Trees


def test_a_searched_form_is_the_search() -> None:
    ranks = record(1, positions=120, answers=3)
    found = form(DiagramSpec("ours", checkpoint="heads", width=8), lambda name: ranks)
    before = grown(ranks.accuracies(), 8)
    assert found.estimated == before.paths
    assert found.paths == refined(before, ranks).paths != before.paths
    assert found.measured == (
        measured_acceptance(before, ranks),
        measured_acceptance(refined(before, ranks), ranks),
    )
    changed = len(set(found.paths) - set(before.paths))
    assert tables.tree_figures(found)["changed"] == ("nodes", changed)
    few = form(DiagramSpec("ours", checkpoint="heads", width=8, heads=1), lambda name: ranks)
    assert max(map(len, few.paths)) == 1


def test_fitted_heads_have_no_measurement() -> None:
    found = form(DiagramSpec("theirs", match=PAIR, width=4, heads=4))
    assert found.paths == found.estimated == ((0,), (0, 0), (0, 0, 0))
    assert found.expected == pytest.approx((2.28, 2.28))
    assert (found.measured, found.fitted, len(found.accuracies)) == (None, True, 4)
    assert found.value((0, 0)) == pytest.approx(found.accuracies[0][0] * found.accuracies[1][0])


def test_places_stand_over_their_children_and_never_on_each_other() -> None:
    found = form(DiagramSpec("theirs", match=PAIR, width=16))
    places = drawing._places(found)
    assert len(set(places.values())) == len(places) == 16
    for path, (x, y) in places.items():
        assert y == len(path)
        under = [places[child][0] for child in places if child and child[:-1] == path]
        assert not under or x == (min(under) + max(under)) / 2


# Files


def test_trees_become_files(tmp_path: Path) -> None:
    ranks = record(1, positions=120, answers=3)
    asked = spec(
        trees=[
            {"name": "ours", "checkpoint": "heads", "width": 8},
            {"name": "theirs", "match": list(PAIR), "width": 8},
        ]
    )
    made = [form(one, lambda name: ranks) for one in asked.trees]
    page, files = write_forms(asked, made, tmp_path, BIBLIOGRAPHY, ("md", "csv", "png"))
    assert [line[0] for line in page.grids[0].lines] == ["ours", "theirs"]
    assert len(page.grids) == 3
    assert len(page.grids[2].lines) == 7
    rows = list(csv.DictReader(io.StringIO(files["csv"].read_text(encoding="utf-8"))))
    found = {(row["row"], row["column"]): row for row in rows}
    assert same_number(float(found["ours", "measured_refined"]["ours"]), made[0].measured[1])  # type: ignore[index]
    assert found["theirs", "measured"]["ours"] == ""
    assert found["theirs", "expected"]["marks"] == "fitted"
    assert files["png"].read_bytes() == drawing.draw_trees(asked, made)


def test_masks_become_files(tmp_path: Path) -> None:
    asked = spec(
        masks=[
            {"name": "tree", "tree": "0;1", "rootless": True},
            {"name": "wide", "match": list(PAIR), "width": 64},
            {"name": "lookahead", "lookahead": {"window": 2, "ngram": 3, "guesses": 1}},
        ]
    )
    made = [None if one.lookahead else form(one) for one in asked.masks]
    page, files = write_forms(asked, made, tmp_path, BIBLIOGRAPHY, ("md", "csv", "png"))
    assert [line[:2] for line in page.grids[0].lines] == [("tree", "2"), ("wide", "64"), ("lookahead", "6")]
    assert set(files) == {"md", "csv", "png"}
    assert files["png"].read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({}, "needs either trees or masks"),
        ({"masks": [{"name": "a"}]}, "needs one of tree, expansion"),
        ({"masks": [{"name": "a", "tree": "0", "expansion": [1]}]}, "needs one of tree, expansion"),
        ({"masks": [{"name": "a", "tree": "0", "width": 4}]}, "`width` goes with"),
        ({"trees": [{"name": "a", "match": list(PAIR)}]}, "`width` goes with"),
        ({"trees": [{"name": "a", "tree": "0"}]}, "trees come from match or checkpoint"),
        ({"trees": [{"name": "a", "match": list(PAIR), "widht": 4}]}, "widht"),
    ],
)
def test_what_cannot_be_drawn_is_said(content: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        spec(**content)


def test_heads_without_ranks_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="smollm2_135m_medusa"):
        searches.recorded("smollm2_135m_medussa")
    monkeypatch.setattr(searches, "open_checkpoint", lambda checkpoint: tmp_path)
    with pytest.raises(InputError, match=r"no recorded ranks: workshop\.training\.head_ranks"):
        searches.recorded("smollm2_135m_medusa")
