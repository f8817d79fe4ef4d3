"""Published values: that they are all there, can be found, and carry no sentence of the papers."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from repro.core.errors import InputError
from repro.core.paths import conf_dir, project_root
from repro.reports.reference.reference import COLUMNS, find, load_cells, read_cells, select

PAPERS = {"edgellm": 257, "lever": 107, "mllm_npu": 419, "elastilm": 66, "ghidorah": 47}
SECOND_VERSION = "mllm_npu_v2"
"""A second version of a paper: its values are counted apart."""


def rows(file: str) -> list[dict[str, str]]:
    with (conf_dir() / "reference" / file).open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def one_cell(folder: Path, *lines: str) -> Path:
    path = folder / "cells.csv"
    path.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n", encoding="utf-8")
    return path


def line(name: str, low: str, high: str) -> str:
    values = {"id": name, "value_low": low, "value_high": high}
    return ",".join(values.get(column, "") for column in COLUMNS)


def test_an_installation_has_its_own_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert conf_dir() == project_root() / "conf"
    monkeypatch.setattr("repro.core.paths.__file__", str(tmp_path / "lib" / "repro" / "core" / "paths.py"))
    with pytest.raises(InputError, match=r"no folder 'conf' in .*install repro again"):
        conf_dir()
    (tmp_path / "lib" / "repro" / "conf").mkdir(parents=True)
    assert conf_dir() == tmp_path / "lib" / "repro" / "conf"


def test_every_published_value_is_there() -> None:
    cells = load_cells()
    assert Counter(cell.paper for cell in cells.values()) == {**PAPERS, SECOND_VERSION: 706}
    assert len(cells) - 706 == sum(PAPERS.values()) == 896
    assert all(cell.id == name and name.startswith(f"{cell.paper}.") for name, cell in cells.items())
    assert all(cell.metric and cell.unit for cell in cells.values())
    ranges = [c for c in cells.values() if c.value_low is not None and c.value_high is not None]
    assert all(c.value_low <= c.value_high for c in ranges)  # type: ignore[operator]


def test_the_other_files_are_whole_and_quote_nothing() -> None:
    settings, artifacts = rows("settings.csv"), rows("artifacts.csv")
    assert (len(settings), len(artifacts)) == (354, 107)
    assert {row["paper"] for row in (*settings, *artifacts)} == set(PAPERS)
    assert len({(row["paper"], row["artifact"]) for row in artifacts}) == 107
    for file in (rows("cells.csv"), rows("cells_mllm_npu_v2.csv"), settings, artifacts):
        assert not {"quote", "caption"} & set(file[0])


def test_a_cell_is_found_by_its_id() -> None:
    cell = find(load_cells(), "lever.table1.qwen3_8b.total")
    assert (cell.value_low, cell.value_high, cell.unit) == (1050.0, 1050.0, "ms")
    assert (cell.device, cell.model, cell.artifact) == ("OnePlus 12", "Qwen3-8B", "table1")


def test_a_claim_of_one_side_leaves_the_other_empty() -> None:
    cells = load_cells()
    up_to, more_than = cells["edgellm.abstract.speedup_max"], cells["edgellm.text.i.tokens_per_s_13b"]
    assert (up_to.value_low, up_to.value_high) == (None, 9.3)
    assert (more_than.value_low, more_than.value_high) == (1.0, None)
    first = [cell for cell in cells.values() if cell.paper != SECOND_VERSION]
    assert sum(cell.value_low is None for cell in first) == 53
    assert sum(cell.value_high is None for cell in first) == 19


def test_the_second_version_says_which_values_it_repeats() -> None:
    cells = load_cells()
    second = select(cells, paper=SECOND_VERSION)
    repeated = [cell for cell in second if cell.same_as]
    assert (len(second), len(repeated)) == (706, 417)
    for cell in repeated:
        first = cells[cell.same_as]
        assert (first.paper, first.metric, first.unit) == ("mllm_npu", cell.metric, cell.unit)
        assert (first.value_low, first.value_high) == (cell.value_low, cell.value_high)
    assert not any(cell.same_as for cell in cells.values() if cell.paper != SECOND_VERSION)


def test_the_split_of_prefill_and_decode_is_of_two_models() -> None:
    """That of the other three is kept apart for a final check. Parts add up to the printed totals."""
    of_requests = select(load_cells(), paper=SECOND_VERSION, artifact="table5")
    parts = {cell.id: cell for cell in of_requests if cell.id.rpartition(".")[2] in ("prefill", "decode")}
    assert len(parts) == 89
    assert {cell.model for cell in parts.values()} == {"Qwen1.5-1.8B", "LlaMA-2-7B"}
    assert {cell.metric for cell in parts.values()} == {"prefill_latency", "decode_latency"}
    odd = []
    for cell in of_requests:
        prefill, decode = (parts.get(f"{cell.id}.{part}") for part in ("prefill", "decode"))
        if prefill and decode:
            total = (prefill.value_low or 0.0) + (decode.value_low or 0.0)
            odd += [] if abs(total - (cell.value_low or 0.0)) < 0.1 else [cell.id]
    assert odd == [
        "mllm_npu_v2.table5.triviaqa.llama_2_7b.pi",
        "mllm_npu_v2.table5.applauncher.llama_2_7b.mnn",
        "mllm_npu_v2.table5.persona.llama_2_7b.mnn",
    ]


def test_conditions_are_read_as_keys_and_values() -> None:
    cell = select(load_cells(), paper="lever", condition="max_output=128; dram_fraction=0; prefill excluded")[
        0
    ]
    assert cell.conditions == {"max_output": "128", "dram_fraction": "0"}


def test_an_unknown_id_brings_near_misses_of_the_same_table() -> None:
    cells = load_cells()
    with pytest.raises(InputError, match=r"Did you mean lever\.table1\.qwen3_8b\.total") as caught:
        find(cells, "lever.table1.qwen3_8b.totl")
    assert "lever.table2" not in str(caught.value)
    with pytest.raises(InputError, match=r"no table or figure 'lever\.tabel1'. Did you mean lever\.table1"):
        find(cells, "lever.tabel1.qwen3_8b.total")


def test_cells_are_chosen_by_their_fields() -> None:
    cells = load_cells()
    chosen = select(cells, paper="edgellm", artifact="table1")
    assert [cell.id for cell in chosen] == [name for name in cells if name.startswith("edgellm.table1.")]
    assert len(chosen) == 4
    assert select(cells, paper="lever", dataset="LAMBADA") == []
    with pytest.raises(InputError, match=r"no field of a published cell 'papers'. Did you mean paper"):
        select(cells, papers="lever")
    with pytest.raises(InputError, match=r"no paper of a published cell 'leaver'. Did you mean lever"):
        select(cells, paper="leaver")


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([line("a.b", "1", "1"), line("a.b", "2", "2")], "has the id 'a.b' twice"),
        ([line("a.b", "one", "1")], "cell 'a.b': could not convert"),
        ([line("a.b", "", "")], "cell 'a.b' has no value"),
    ],
)
def test_a_broken_file_is_refused(lines: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        read_cells(one_cell(tmp_path, *lines))


def test_a_file_with_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    path.write_text("id,value\na,1\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"cells.csv has the columns \['id', 'value'\]"):
        read_cells(path)
