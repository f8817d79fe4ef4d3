"""Published facts beside our device files: what each is compared with, how it is said, what is refused."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from invented_tables import BIBTEX, cell
from repro.core.errors import InputError
from repro.reports.claims.claims import read_table
from repro.reports.hardware_facts.facts import FactsSpec, Sources, Stated, read_facts
from repro.reports.hardware_facts.facts_page import draw, page, to_csv, write_facts
from tiny_project import write_project

BOARD = """
name: Board
main: gpu
soc: Chip 2
dram:
  capacity: {value: 8, unit: GB, source: datasheet, note: a leaflet}
  budget: {value: 6, unit: GB, source: paper}
  bandwidth: {value: 40, unit: GB/s, source: assumed}
"""
SETTINGS = {
    ("edgellm", "table2", "board.processor"): {"value": "Chip 1", "unit": "", "section": "IV-A"},
    ("edgellm", "table2", "board.memory"): {"value": "8", "unit": "GB", "section": "IV-A"},
}
CELLS = {
    c.id: c
    for c in (
        cell("edgellm.fig1.fits", 10.0, 10.0, "billion_params", section="I", note="a slip"),
        cell("edgellm.fig1.over", 30.0, None, "billion_params", section="II"),
        cell("edgellm.fig1.speed", 2.0, 2.0),
        cell("lever.fig1.fits", 10.0, 10.0, "billion_params"),
    )
}
CHIP = {"fact": "processor", "setting": ["table2", "board.processor"], "device": "board", "path": "soc"}
MEMORY = {"fact": "memory", "setting": ["table2", "board.memory"], "device": "board", "path": "dram.capacity"}
SIZE = {"fact": "fits", "id": "edgellm.fig1.fits", "device": "board", "path": "dram.budget", "precision": "q"}
OVER = {"fact": "needed", "id": "edgellm.fig1.over", "absent": "no server", "remark": "old"}


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    (tmp_path / "devices").mkdir()
    (tmp_path / "devices" / "board.yaml").write_text(BOARD, encoding="utf-8")
    return Sources(CELLS, SETTINGS, tmp_path / "devices", {"q": 4.8, "fp16": 16})


def spec(*facts: dict[str, Any], **more: Any) -> FactsSpec:
    section = {"title": "T", "paper": "edgellm", "facts": list(facts), **more}
    return FactsSpec.parse("edgellm/facts", section)


def stated(sources: Sources, *facts: dict[str, Any]) -> list[Stated]:
    return read_facts(spec(*facts), sources)


class TestFacts:
    def test_words_and_printed_numbers_are_set_beside_settings(self, sources: Sources) -> None:
        chip, memory = stated(sources, CHIP, MEMORY)
        assert (chip.published, chip.ours, chip.basis) == ("Chip 1", "Chip 2", "board: soc")
        assert (memory.published, memory.ours) == ("8 GB", "8 GB")
        assert memory.basis == "board: dram.capacity (datasheet: a leaflet)"
        assert (memory.ratio, memory.marks) == (None, ())

    def test_a_size_in_memory_becomes_billions_of_weights(self, sources: Sources) -> None:
        (size,) = stated(sources, SIZE)
        assert size.ours == pytest.approx(10.0), "6 GB of 4.8 bits each"
        assert size.ratio == pytest.approx(1.0)
        assert size.marks == ("fitted",), "the budget is the paper's own number"
        (half,) = stated(sources, {**SIZE, "path": "dram.capacity", "precision": "fp16"})
        assert (half.ours, half.ratio, half.marks) == (4.0, 0.4, ())

    def test_without_ours(self, sources: Sources) -> None:
        (over,) = stated(sources, OVER)
        assert (over.ours, over.ratio, over.basis) == (None, None, "")

    @pytest.mark.parametrize(
        ("fact", "sentence"),
        [
            ({"setting": ["table2", "a"]}, "needs either `id`, or `setting"),
            ({"id": ""}, "needs either `id`, or `setting"),
            ({"id": "", "setting": ["table2"]}, "needs either `id`, or `setting"),
            ({"absent": "x"}, "needs either `device` and `path`, or `absent`"),
            ({"path": ""}, "needs either `device` and `path`, or `absent`"),
            ({"precision": ""}, "in 'billion_params' and fact 'fits' in 'tokens'"),
            ({"precision": "fp17"}, "no precision 'fp17'. Did you mean fp16"),
            ({"device": "bored"}, "no device 'bored'. Did you mean board"),
            ({"path": "dram.budgte"}, "in device file board: there is no entry 'dram.budgte'. Did you mean"),
            ({"id": "edgellm.fig1.fist"}, "Did you mean edgellm.fig1.fits"),
            ({"id": "edgellm.fig1.speed"}, "is in 'x' and fact 'fits' in 'billion_params'"),
            ({"id": "lever.fig1.fits"}, "fact 'fits' is lever's, not edgellm's"),
            ({"colour": "red"}, "no field 'colour'"),
        ],
    )
    def test_bad_input(self, fact: dict[str, Any], sentence: str, sources: Sources) -> None:
        with pytest.raises(InputError, match=sentence):
            stated(sources, {**SIZE, **fact})

    def test_a_setting_that_there_is_not(self, sources: Sources) -> None:
        with pytest.raises(InputError, match=r"no setting 'table2/board\.memroy'. Did you mean table2/board"):
            stated(sources, {**MEMORY, "setting": ["table2", "board.memroy"]})

    def test_a_picture_needs_numbers(self) -> None:
        with pytest.raises(InputError, match="picture of table 'edgellm/facts' has no number"):
            spec(CHIP, picture="P")


class TestPage:
    def test_lines_and_notes(self, sources: Sources) -> None:
        shown = page(spec(footnotes=["careful"]), stated(sources, SIZE, OVER))
        (grid,) = shown.grids
        names = [heading.words for heading in grid.headings]
        assert names == ["fact", "where", "paper", "ours", "ratio", "from", "remark"]
        unit = "billion parameters"
        basis = "board: dram.budget 6 GB (paper), 4.8 bits a weight"
        assert grid.lines == (
            ("fits", "sec. I", f"10 {unit}", f"10 {unit} ‡", "1.00", basis, "a slip"),
            ("needed", "sec. II", f"≥ 30 {unit}", "—", "—", "—", "no server; old"),
        )
        assert shown.notes[0].startswith("‡ ")
        assert shown.notes[1] == "careful"
        assert shown.notes[2].endswith("made by `python -m repro experiment=edgellm/facts`.")

    def test_a_column_without_a_word_is_left_out(self, sources: Sources) -> None:
        (grid,) = page(spec(), stated(sources, CHIP)).grids
        assert [heading.words for heading in grid.headings] == ["fact", "where", "paper", "ours", "from"]
        assert grid.alignment == "llllp"

    def test_csv(self, sources: Sources) -> None:
        lines = list(csv.DictReader(io.StringIO(to_csv(stated(sources, CHIP, SIZE, OVER)))))
        assert [line["id"] for line in lines] == [
            "table2/board.processor",
            "edgellm.fig1.fits",
            "edgellm.fig1.over",
        ]
        assert [(line["published"], line["ours"], line["ratio"]) for line in lines] == [
            ("Chip 1", "Chip 2", ""),
            ("", "10.0", "1.0"),
            ("", "", ""),
        ]
        assert (lines[1]["marks"], lines[1]["unit"], lines[1]["published_low"]) == (
            "fitted",
            "billion_params",
            "10.0",
        )

    def test_files(self, sources: Sources, tmp_path: Path) -> None:
        formats = ("md", "csv", "tex", "png")
        _, files = write_facts(spec(SIZE, picture="P"), tmp_path, sources, BIBTEX, formats)
        assert list(files) == list(formats)
        before = [path.read_bytes() for path in files.values()]
        _, again = write_facts(spec(SIZE, picture="P"), tmp_path, sources, BIBTEX, formats)
        assert [path.read_bytes() for path in again.values()] == before
        assert len(read_table(files["csv"])) == 1, "claims and error reports read it as a table"
        _, files = write_facts(spec(CHIP), tmp_path, sources, BIBTEX, ("md", "png"))
        assert list(files) == ["md"], "without a picture"

    def test_the_picture_draws_what_is_a_number(self, sources: Sources) -> None:
        one = draw(spec(SIZE, picture="P"), stated(sources, SIZE))
        assert one == draw(spec(SIZE, picture="P"), stated(sources, OVER, SIZE))
        half = {**SIZE, "precision": "fp16"}
        assert one != draw(spec(half, picture="P"), stated(sources, half))


def test_the_command_computes_no_cell(tmp_path: Path) -> None:
    project = write_project(tmp_path)
    done = project.here("experiment=edgellm/table2")
    assert done.returncode == 0, done.stderr
    tables = project.out / "results" / "edgellm" / "table2"
    assert sorted(path.name for path in tables.iterdir()) == ["table.csv", "table.md", "table.tex"]
    assert "| facts |" in (project.out / "results" / "README.md").read_text(encoding="utf-8")
    assert "Snapdragon 8 Gen 1" in done.stdout
    assert project.store.all() == []
