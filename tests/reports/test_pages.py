"""Pages of every kind that are committed; facts beside our device files; forms of verification."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from invented_tables import cell
from repro import commands
from repro.core.errors import InputError
from repro.core.paths import project_root
from repro.experiments.tree_drawings.forms import DiagramsSpec, LookaheadSpec, lookahead_mask, tree_mask
from repro.reports.hardware_facts.facts import FactsSpec, Sources, read_facts
from same_text import same_text
from tiny_project import write_project

RESULTS = project_root() / "results"


PAGES = (
    "compare/agreement",
    "compare/phone",
    "edgellm/claims",
    "edgellm/fig1a",
    "edgellm/table2",
    "edgellm/table4",
    "edgellm/table5",
    "elastilm/fig15",
    "elastilm/table2",
    "ghidorah/claims",
    "ghidorah/fig3",
    "ghidorah/fig8",
    "ghidorah/setup",
    "lever/table1",
    "lever/table5",
    "mllm_npu/fig8",
    "mllm_npu/persona",
    "mllm_npu/table5",
)


"""Claims, facts, masks; tables with what does not vary, divided, in points, with rows that were not run, with
crossings, with the best of several cells, with what stands in no column; a figure of each kind."""


def different(folder: Path) -> dict[str, list[str]]:
    """The lines of texts in a folder that the committed ones lack or have otherwise, by file."""
    found = {}
    for path in (path for path in folder.rglob("*") if path.suffix in (".md", ".csv")):
        before = (RESULTS / path.relative_to(folder)).read_text(encoding="utf-8")
        if not same_text(before, text := path.read_text(encoding="utf-8")):
            found[str(path.relative_to(folder))] = [*unified_diff(before.split("\n"), text.split("\n"), n=0)]
    return found


def test_committed_pages_of_every_kind_are_what_the_command_makes(tmp_path: Path) -> None:
    folders = ["--results", str(RESULTS), "--out", str(tmp_path)]
    assert commands.run("table", [*PAGES, "edgellm/fig9b", *folders, "--format", "md", "csv", "png"]) == 0
    assert all((tmp_path / name / "table.csv").is_file() for name in PAGES)
    assert different(tmp_path) == {}
    figures = [path.relative_to(tmp_path) for path in tmp_path.rglob("figure.png")]
    assert len(figures) >= 10
    if f"matplotlib=={matplotlib.__version__}" in (project_root() / "constraints.txt").read_text("utf-8"):
        changed = [
            name for name in figures if (RESULTS / name).read_bytes() != (tmp_path / name).read_bytes()
        ]
        assert changed == [], "another release of matplotlib may draw otherwise; this one does not"


def test_errors_and_fidelity_are_what_the_tables_make(tmp_path: Path) -> None:
    assert commands.run("errors", ["--results", str(RESULTS), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "fidelity.md").is_file()
    assert different(tmp_path) == {}


def test_the_command_computes_no_cell(tmp_path: Path) -> None:
    project = write_project(tmp_path)
    done = project.here("experiment=edgellm/table2")
    assert done.returncode == 0, done.stderr
    tables = project.out / "results" / "edgellm" / "table2"
    assert sorted(path.name for path in tables.iterdir()) == ["table.csv", "table.md", "table.tex"]
    assert "| facts |" in (project.out / "results" / "README.md").read_text(encoding="utf-8")
    assert "Snapdragon 8 Gen 1" in done.stdout
    assert project.store.all() == []


# Facts


BOARD = """
name: Board
main: gpu
dram:
  budget: {value: 6, unit: GB, source: paper}
"""


SETTINGS = {("edgellm", "table2", "board.memory"): {"value": "8", "unit": "GB", "section": "IV-A"}}


CELLS = {
    "edgellm.fig1.fits": cell("edgellm.fig1.fits", 10.0, 10.0, "billion_params"),
    "edgellm.fig1.speed": cell("edgellm.fig1.speed", 2.0, 2.0),
    "lever.fig1.fits": cell("lever.fig1.fits", 10.0, 10.0, "billion_params"),
}


SIZE = {"fact": "fits", "id": "edgellm.fig1.fits", "device": "board", "path": "dram.budget", "precision": "q"}


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    (tmp_path / "devices").mkdir()
    (tmp_path / "devices" / "board.yaml").write_text(BOARD, encoding="utf-8")
    return Sources(CELLS, SETTINGS, tmp_path / "devices", {"q": 4.8, "fp16": 16})


def spec(*facts: dict[str, Any], **more: Any) -> FactsSpec:
    section = {"title": "T", "paper": "edgellm", "facts": list(facts), **more}
    return FactsSpec.parse("edgellm/facts", section)


@pytest.mark.parametrize(
    ("fact", "sentence"),
    [
        ({"setting": ["table2", "a"]}, "needs either `id`, or `setting"),
        ({"absent": "x"}, "needs either `device` and `path`, or `absent`"),
        ({"precision": ""}, "in 'billion_params' and fact 'fits' in 'tokens'"),
        ({"precision": "fp17"}, "no precision 'fp17'. Did you mean fp16"),
        ({"device": "bored"}, "no device 'bored'. Did you mean board"),
        ({"path": "dram.budgte"}, "in device file board: there is no entry 'dram.budgte'. Did you mean"),
        ({"id": "edgellm.fig1.fist"}, "Did you mean edgellm.fig1.fits"),
        ({"id": "edgellm.fig1.speed"}, "is in 'x' and fact 'fits' in 'billion_params'"),
        ({"id": "lever.fig1.fits"}, "fact 'fits' is lever's, not edgellm's"),
        ({"colour": "red"}, "no field 'colour'"),
        ({"id": "", "precision": "", "setting": ["table2", "board.memroy"]}, "Did you mean table2/board"),
    ],
)
def test_a_wrong_fact_is_named(fact: dict[str, Any], sentence: str, sources: Sources) -> None:
    with pytest.raises(InputError, match=sentence):
        read_facts(spec({**SIZE, **fact}), sources)


# Forms of verification


PAIR = ("ghidorah.table1.mt_bench.width2", "ghidorah.table1.mt_bench.width4")


def forms(**content: Any) -> DiagramsSpec:
    return DiagramsSpec.parse("x/y", {"title": "T", "paper": "ghidorah", "picture": "P", **content})


def shown(mask: tuple[tuple[bool, ...], ...]) -> list[str]:
    return ["".join("x" if point else "." for point in line) for line in mask]


def test_a_node_looks_at_its_ancestors_and_itself() -> None:
    paths = ((0,), (1,), (0, 0), (1, 2))
    assert shown(tree_mask(paths)) == ["x....", "xx...", "x.x..", "xx.x.", "x.x.x"]
    assert shown(tree_mask(paths, rootless=True)) == ["x...", ".x..", "x.x.", ".x.x"]


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


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({}, "needs either trees or masks"),
        ({"masks": [{"name": "a"}]}, "needs one of tree, expansion"),
        ({"masks": [{"name": "a", "tree": "0", "width": 4}]}, "`width` goes with"),
        ({"trees": [{"name": "a", "tree": "0"}]}, "trees come from match or checkpoint"),
        ({"trees": [{"name": "a", "match": list(PAIR), "widht": 4}]}, "widht"),
    ],
)
def test_what_cannot_be_drawn_is_said(content: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        forms(**content)
