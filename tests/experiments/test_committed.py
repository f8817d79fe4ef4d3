"""The committed results: every table follows from its cells, every cell is there, and they stay small."""

from __future__ import annotations

import csv
import gzip
import lzma
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from changed import changed_files, is_changed, new_keys
from committed_results import smallest_tables
from repro import commands
from repro.core.paths import project_root
from repro.experiments.plan import axes, composed, table_section
from repro.experiments.tables import asked_of, made_table, older_keys, overrides_of
from repro.records.results import Results, open_results
from repro.records.store import WRITER_NAME
from repro.reports.fidelity.index import write_index
from repro.reports.files import table_names, write_all
from repro.reports.intervals.samples import Samples
from repro.reports.reference.bibliography import load_bibliography
from repro.reports.reference.reference import load_cells
from repro.reports.spec.spec import TableSpec
from repro.reports.tables.bands import BANDS_PATH
from same_text import FRACTION, same_text

RESULTS = project_root() / "results"
OUTCOMES = project_root() / "tests" / "outcomes.json"
REFERENCE = project_root() / "conf" / "reference"
TEXTS = ("md", "csv")


@cache
def committed() -> Results:
    return open_results(RESULTS)


@cache
def files() -> dict[Path, int]:
    return {path: path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()}


def test_there_are_few_files_and_they_are_small() -> None:
    assert len(files()) < 600
    assert sum(files().values()) < 42e6
    assert len(committed().tables()) > 80
    assert committed().problems() == []
    loose = [path for path in files() if WRITER_NAME.fullmatch(path.name)]
    assert loose == [], "bring them together with `repro table --pack results`"


@pytest.mark.slow
def test_every_table_is_what_its_cells_make() -> None:
    assert different_files(committed().tables()) == [], REMAKE


def test_a_sample_of_tables_and_those_that_changed_are_what_their_cells_make() -> None:
    """The smallest of each paper, and what differs from the commit before; all where published values do."""
    results = committed()
    published = any(name.startswith("conf/reference/") for name in changed_files())
    changed = [
        table
        for table in results.tables()
        if published or is_changed(table) or new_keys() & {member.key for member in results.members(table)}
    ]
    assert different_files({*smallest_tables(), *changed}) == [], REMAKE


REMAKE = "make them again with `repro table --results results`"


def different_files(tables: Iterable[str]) -> list[str]:
    """The texts of tables that are not what the tables' cells make."""
    results, bibliography = committed(), load_bibliography()
    different, older, samples = [], older_keys(results.all()), Samples(results)
    for name in tables:
        members = results.members(name)
        records = results.records(members)
        assert len({r.key for r in records}) == len({m.key for m in members}), name
        config = composed(*overrides_of(name, members))
        spec, asked = table_section(config), asked_of(name, members, axes(config))
        assert isinstance(spec, TableSpec)
        table = made_table(asked, asked.spec(spec), members, records, older, samples, RESULTS)
        with TemporaryDirectory() as folder:
            for path in write_all(table, Path(folder), bibliography, TEXTS).values():
                place = path.relative_to(folder)
                committed_text = (RESULTS / place).read_text(encoding="utf-8")
                if not same_text(committed_text, path.read_text(encoding="utf-8")):
                    different.append(str(place))
    return different


def test_no_value_lies_outside_of_its_band() -> None:
    """Ends are written with four digits. A band of other cells than its figure's stands nowhere."""
    outside, banded = [], 0
    with (RESULTS / BANDS_PATH).open(encoding="utf-8") as file:
        lines = [(line["value"], line) for line in csv.DictReader(file)]
    for path in RESULTS.glob("*/*/table.csv"):
        with path.open(encoding="utf-8") as file:
            lines += [
                (line["ours"], line)
                for line in csv.DictReader(file)
                if line.get("ours") and line.get("band_low")
            ]
    for value, line in lines:
        low, ours, high = float(line["band_low"]), float(value), float(line["band_high"])
        slack = 1e-3 * max(abs(low), abs(high))
        banded += 1
        if not low - slack <= ours <= high + slack:
            outside.append((line.get("table", line.get("id")), line["row"], line["column"], low, ours, high))
    assert banded > 1000
    assert outside == []


def digits(number: str) -> int:
    return len(number.partition("e")[0].lstrip("-0.").replace(".", "").rstrip("0"))


AS_TEXT = re.compile(r'"acceptance_by_position": ?"[^"]*"')
"""Quotients of two whole numbers, the same on every host, kept as one text."""


def test_no_number_has_more_than_ten_digits() -> None:
    """The others depend on the processor."""
    assert [digits(text) for text in ("-0.0012300", "1e-05", "12.5e+20", "1327137704.2285714")] == [
        3,
        1,
        3,
        17,
    ]
    read = {".csv": Path.read_bytes, ".json": Path.read_bytes, ".jsonl": Path.read_bytes}
    read |= {".gz": lambda path: gzip.decompress(path.read_bytes())}
    read |= {".xz": lambda path: lzma.decompress(path.read_bytes())}
    texts = {path: read[path.suffix](path).decode() for path in (*files(), OUTCOMES) if path.suffix in read}
    assert len(texts) > 250
    long = {
        str(path): [n for n in FRACTION.findall(AS_TEXT.sub("", text)) if digits(n) > 10]
        for path, text in texts.items()
    }
    assert {name: found[:3] for name, found in long.items() if found} == {}


def test_the_cells_that_a_table_names_are_beside_it() -> None:
    for name in committed().tables():
        keys = {member.key[:12] for member in committed().members(name)}
        with (RESULTS / name / "table.csv").open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                named = {*line["cell"].split(), *line["baseline"].split()}
                assert named <= keys, f"{name}: {line['row']}, {line['column']}"
                assert named or not line["ours"], f"{name}: {line['row']}, {line['column']}"


def test_the_readme_is_what_the_tables_make(tmp_path: Path) -> None:
    before = (RESULTS / "README.md").read_text(encoding="utf-8")
    text = write_index(committed(), load_cells(), REFERENCE / "artifacts.csv", tmp_path).read_text(
        encoding="utf-8"
    )
    assert same_text(text, before)
    for name in table_names(RESULTS):
        assert f"[{name}]({name}/table.md)" in text


def test_what_a_reader_opens_is_committed_and_the_rest_is_made_in_a_folder(tmp_path: Path) -> None:
    """Claims and timelines find their tables and excerpts in the results, not in that folder."""
    assert (RESULTS / "quickstart" / "figure.png").read_bytes().startswith(b"\x89PNG")
    names = ["edgellm/claims", "edgellm/fig9b"]
    line = ["--results", str(RESULTS), "--format", "tex", "pdf", "bib", "--out", str(tmp_path)]
    assert commands.run("table", [*names, *line]) == 0
    made = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    texts = {"paper.bib", *(f"{name}/table.tex" for name in names)}
    assert made == texts | {f"edgellm/fig9b/timeline.{end}" for end in ("json", "csv", "pdf")}
    text = (RESULTS / names[0] / "table.md").read_text(encoding="utf-8")
    assert "--format tex pdf bib --out" in text.splitlines()[-1]
