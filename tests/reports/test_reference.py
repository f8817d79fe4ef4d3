"""Published values and metrics: that they are all there, can be found, and may stand in other packages."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from invented_tables import cells_csv
from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.reports.reference.bibliography import citations, load_bibliography
from repro.reports.reference.names import footnotes, load_names, load_notes
from repro.reports.reference.reference import find, load_cells, select
from repro.reports.spec.metric import load_metrics

PAPERS = {"edgellm": 257, "lever": 107, "mllm_npu": 419, "elastilm": 66, "ghidorah": 47}
SECOND_VERSION = "mllm_npu_v2"
"""A second version of a paper: its values are counted apart."""
OUTCOMES = Path(__file__).parents[1] / "outcomes.json"


def rows(file: str) -> list[dict[str, str]]:
    with (conf_dir() / "reference" / file).open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


class TestPublishedValues:
    def test_every_published_value_is_there(self) -> None:
        cells = load_cells()
        assert Counter(cell.paper for cell in cells.values()) == {**PAPERS, SECOND_VERSION: 706}
        assert all(cell.id == name and name.startswith(f"{cell.paper}.") for name, cell in cells.items())
        assert all(cell.metric and cell.unit for cell in cells.values())
        ranges = [c for c in cells.values() if c.value_low is not None and c.value_high is not None]
        assert all(c.value_low <= c.value_high for c in ranges)  # type: ignore[operator]
        first = [cell for cell in cells.values() if cell.paper != SECOND_VERSION]
        assert sum(cell.value_low is None for cell in first) == 53
        assert sum(cell.value_high is None for cell in first) == 19

    def test_the_other_files_are_whole_and_quote_nothing(self) -> None:
        settings, artifacts = rows("settings.csv"), rows("artifacts.csv")
        assert (len(settings), len(artifacts)) == (354, 107)
        assert {row["paper"] for row in (*settings, *artifacts)} == set(PAPERS)
        assert len({(row["paper"], row["artifact"]) for row in artifacts}) == 107
        for file in (rows("cells.csv"), rows("cells_mllm_npu_v2.csv"), settings, artifacts):
            assert not {"quote", "caption"} & set(file[0])

    def test_every_paper_is_in_the_bibliography(self) -> None:
        entries, papers = load_bibliography([conf_dir()]), sorted({*PAPERS, SECOND_VERSION})
        assert sorted(entries) == sorted([*papers, "repro"])
        assert len(citations(papers, entries)) == 7
        assert all(text.count("{") == text.count("}") for text in entries.values())

    def test_the_second_version_says_which_values_it_repeats(self) -> None:
        cells = load_cells()
        repeated = [cell for cell in cells.values() if cell.same_as]
        assert len(repeated) == 417
        assert {cell.paper for cell in repeated} == {SECOND_VERSION}
        for cell in repeated:
            first = cells[cell.same_as]
            assert (first.paper, first.metric, first.unit) == ("mllm_npu", cell.metric, cell.unit)
            assert (first.value_low, first.value_high) == (cell.value_low, cell.value_high)

    def test_the_split_of_prefill_and_decode_is_of_two_models(self) -> None:
        """That of the other three is kept apart for a final check. Parts add up to the printed totals."""
        requests = select(load_cells(), paper=SECOND_VERSION, artifact="table5")
        parts = {cell.id: cell for cell in requests if cell.id.rpartition(".")[2] in ("prefill", "decode")}
        assert len(parts) == 89
        assert {cell.model for cell in parts.values()} == {"Qwen1.5-1.8B", "LlaMA-2-7B"}
        assert {cell.metric for cell in parts.values()} == {"prefill_latency", "decode_latency"}
        odd = []
        for cell in requests:
            prefill, decode = (parts.get(f"{cell.id}.{part}") for part in ("prefill", "decode"))
            if prefill and decode:
                total = (prefill.value_low or 0.0) + (decode.value_low or 0.0)
                odd += [] if abs(total - (cell.value_low or 0.0)) < 0.1 else [cell.id]
        assert odd == [
            "mllm_npu_v2.table5.triviaqa.llama_2_7b.pi",
            "mllm_npu_v2.table5.applauncher.llama_2_7b.mnn",
            "mllm_npu_v2.table5.persona.llama_2_7b.mnn",
        ]

    def test_one_is_found_by_its_id_or_brings_near_misses_of_its_table(self) -> None:
        cells = load_cells()
        cell = find(cells, "lever.table1.qwen3_8b.total")
        assert (cell.value_low, cell.value_high, cell.unit) == (1050.0, 1050.0, "ms")
        for wrong, near in (("table1.qwen3_8b.totl", "table1.qwen3_8b.total"), ("tabel1.x", "table1")):
            with pytest.raises(InputError, match=rf"Did you mean lever\.{near}") as caught:
                find(cells, f"lever.{wrong}")
            assert "lever.table2.qwen" not in str(caught.value)


class TestMetrics:
    def test_every_value_of_every_component_is_described(self) -> None:
        metrics = load_metrics()
        outcomes = json.loads(OUTCOMES.read_text(encoding="utf-8")).values()
        values = {name for outcome in outcomes for name in outcome["found"].get("values", {})}
        assert len(values) > 20
        assert sorted(name for name in values if metrics.of_value(name) is None) == []
        assert metrics.of_value("decode_speed") is None, "a ratio of two values"
        assert metrics.of_value("served_accuracy") is None, "another name for `accuracy`"


def folder(root: Path, files: dict[str, str]) -> Path:
    """A `conf/` folder with these files."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def value(name: str, low: str = "1", high: str = "1") -> dict[str, str]:
    return {"id": name, "paper": "mine", "value_low": low, "value_high": high}


CELLS, METRICS = "reference/cells.csv", "metric/mine.yaml"
HOPS = "hops: {heading: Hops, unit: hops, definition: jumps of a frog}\n"


class TestPackages:
    """Files of a `conf/` folder; the first folder is the project's own, and an error in it is one."""

    def test_values_papers_names_notes_and_metrics_are_merged(self, tmp_path: Path) -> None:
        files = {
            CELLS: cells_csv(value("mine.a")),
            METRICS: HOPS,
            "reference/names.yaml": "mine: {method: {edgellm: Ours}}",
            "reference/papers.bib": "@misc{mine,\n title = {M}\n}\n",
            "reference/notes.yaml": "frogs: A frog jumps.\n",
        }
        folders = [conf_dir(), folder(tmp_path, files)]
        assert load_cells(folders).keys() == {*load_cells(), "mine.a"}
        assert {"mine", "edgellm"} <= load_bibliography(folders).keys()
        assert load_names(folders).find("mine", "method", "edgellm").name == "Ours"
        assert load_names(folders).find("edgellm", "method", "edgellm").name == "EdgeLLM"
        assert footnotes(["frogs", "Two words."], load_notes(folders)) == ["A frog jumps.", "Two words."]
        assert load_metrics(folders).find("hops").group == "mine"
        assert "ttft" in load_metrics(folders)

    def test_what_is_defined_twice_is_an_error_at_home_and_a_warning_elsewhere(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        text = HOPS + "ttft: {heading: First, definition: mine}\n"
        mine = folder(tmp_path, {METRICS: text, "away/metric/mine.yaml": text, "metric/two.yaml": text})
        with pytest.raises(InputError, match=r"metric 'hops' .*mine\.yaml and in .*two\.yaml"):
            load_metrics([mine])
        found = load_metrics([conf_dir(), mine / "away"])
        assert found["ttft"] == load_metrics([conf_dir()])["ttft"]
        assert "hops" in found
        (warning,) = capsys.readouterr().err.splitlines()
        assert warning.startswith(f"warning: metric 'ttft' is defined twice: in {conf_dir()}")
        assert warning.endswith(f"and in {mine / 'away' / METRICS}; the second is left out")

    @pytest.mark.parametrize(
        ("load", "file", "text", "reason"),
        [
            (load_cells, CELLS, "id,value\na,1\n", r"cells.csv has the columns \['id', 'value'\]"),
            (load_cells, CELLS, cells_csv() + "a,b\n", "line 2: it must have 17 fields"),
            (load_cells, CELLS, cells_csv(value("a.b"), value("a.b")), "has the id 'a.b' twice"),
            (load_cells, CELLS, cells_csv(value("a.b", "one")), "cell 'a.b': could not convert"),
            (load_cells, CELLS, cells_csv(value("a.b", "", "")), "cell 'a.b' has no value"),
            (load_metrics, METRICS, "hops: {heading: Hops}", "the field 'definition' is lacking"),
            (load_metrics, METRICS, HOPS.replace("unit", "colour"), "no field 'colour'"),
            (load_metrics, METRICS, HOPS.replace("unit", "total"), "either `value`, or `total` and `per`"),
            (load_metrics, METRICS, "- hops", "must be a mapping"),
            (load_metrics, METRICS, "hops: {", "is not YAML"),
        ],
    )
    def test_a_broken_file_is_an_error_at_home_and_a_warning_elsewhere(
        self,
        load: Callable[[list[Path]], Any],
        file: str,
        text: str,
        reason: str,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        mine = folder(tmp_path, {file: text})
        with pytest.raises(InputError, match=reason):
            load([mine])
        assert dict(load([conf_dir(), mine])) == dict(load([conf_dir()]))
        (warning,) = capsys.readouterr().err.splitlines()
        assert warning.startswith(f"warning: {mine / file} is left out")

    def test_a_name_with_a_star_stands_for_all_others_that_begin_so(self) -> None:
        names = {"draft_hidden": "Drafting hidden", "accuracy_GMail": "Accuracy, GMail"}
        names["accuracy_stderr"] = "Its standard error"
        assert {name: load_metrics().find(name).heading for name in names} == names
        with pytest.raises(InputError, match=r"no metric 'ttf'\. Did you mean ttft"):
            load_metrics().find("ttf")
