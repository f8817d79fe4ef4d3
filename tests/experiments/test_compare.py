"""`repro compare`: two records and two folders of tables, with what the figures say about both."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

import records
from repro.commands import run
from repro.core.errors import InputError
from repro.experiments.summaries.comparing import compare_tables
from repro.records.record import Record, Round
from repro.records.results import Results

HEADER = "row,id,column,unit,ours,published_low,published_high\n"


def rounds_of(seconds: float, count: int = 6) -> list[Round]:
    """One round of three tokens for each prompt; later prompts take longer."""
    return [
        {"request": f"p/{i}", "rows": 1, "drafted": 0, "emitted": 3, "accepted": 0}
        | {"start": 0.0, "end": seconds * (i + 1)}
        for i in range(count)
    ]


def record(key: str, seconds: float, **settings: object) -> Record:
    values = {"decode_tokens_per_s": 18 / (21 * seconds), "rouge_l": 100.0 * seconds, "mine": 1.0}
    made = records.record("std", values, key=key * 8, config={"prompts": 6, **settings})
    return replace(made, labels={**made.labels, "device": "Phone"})


def test_two_records_on_the_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Results(tmp_path)
    for key, seconds, length in (("a", 1.0, 4), ("b", 0.5, 8)):
        method = {"name": "chain_sd", "length": length}
        store.put(record(key, seconds, method=method, name=f"table {key}"), rounds_of(seconds))
    assert run("compare", ["aaaa", "bbbb", "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "A  aaaaaaaa  std on Phone" in shown
    line = next(line for line in shown.splitlines() if line.strip().startswith("Decode"))
    assert line.split() == ["Decode", "0.857", "1.71", "2.00", "×", "[2.00,", "2.00]", "tokens/s"]
    assert "1 equal, 2 different, 0 gone, 0 fresh" in shown
    assert "method.length (4, 8)" in shown
    assert "table a" not in shown, "the name is no setting"


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (("nosuch", "aaaa"), "'nosuch' is neither an existing file or folder"),
        (("ffff", "aaaa"), "no record whose key begins with ffff"),
        (("aaaa", "bbbb"), "2 keys begin with aaaa"),
        (("cccc", "bbbb"), "failed, so it has no figures"),
    ],
)
def test_wrong_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], keys: tuple[str, str], sentence: str
) -> None:
    store = Results(tmp_path)
    for key in ("aaaa0000", "aaaa1111", "bbbb0000"):
        store.put(records.record("std", {}, key=key))
    store.put(records.record("std", {}, key="cccc0000", status="failed", error="Traceback"))
    assert run("compare", [*keys, "--results", str(tmp_path)]) == 2
    assert sentence in capsys.readouterr().err


def write(folder: Path, name: str, *lines: str) -> None:
    path = folder / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEADER + "".join(f"{line}\n" for line in lines), encoding="utf-8")


def test_folders_are_compared_by_artifact_row_and_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    write(one, "tables/lever/fig4", "Std,std,speed,x,1.0,2.0,2.0", "Draft,draft,speed,x,3.0,,")
    write(other, "lever/fig4/table", "Std,std,speed,x,1.5,2.0,2.5", "Lever,lever,speed,x,4.0,,")
    frame = compare_tables(one, other)
    assert frame.loc["lever/fig4, std, speed", "change"] == 1.5
    assert frame.loc["lever/fig4, std, speed, published high end", "state"] == "different"
    assert frame.loc["lever/fig4, draft, speed", "state"] == "gone"
    assert frame.loc["lever/fig4, lever, speed", "state"] == "fresh"
    assert run("compare", [str(one), str(other)]) == 0
    assert capsys.readouterr().out.endswith("1 equal, 2 different, 1 gone, 1 fresh\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"a" * 200_000, "is no CSV: field larger than field limit (131072)"),
        (b"\xff", "is no CSV: 'utf-8' codec can't decode byte 0xff"),
    ],
    ids=["long field", "no text"],
)
def test_tables_of_others_are_read_under_limits(tmp_path: Path, line: bytes, said: str) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b"row,column,ours\n" + line + b",b,1\n")
    with pytest.raises(InputError) as caught:
        compare_tables(tmp_path, tmp_path)
    assert f"{path} {said}" in str(caught.value)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match=r"table\.csv is no regular file"):
        compare_tables(tmp_path, tmp_path)


def test_a_folder_without_tables_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(InputError, match="holds no table"):
        compare_tables(tmp_path, tmp_path)


# --worse-than


def judged(folder: Path, ours: str, other: str, allowed: str = "5%") -> int:
    """The exit status for a table of one value: direction, figure, low and high end."""
    for name, values in (("a", ours), ("b", other)):
        header = "row,id,column,unit,better,ours,low,high,published_low,published_high\n"
        text = (
            f"{header}LEVER,lever,speed,x,{values},,\n"
            if values
            else f"{header}Std,std,speed,x,higher,1,,,,\n"
        )
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return run("compare", [str(folder / "a.csv"), str(folder / "b.csv"), f"--worse-than={allowed}"])


@pytest.mark.parametrize(
    ("ours", "other", "status"),
    [
        ("higher,2.0,,", "higher,1.8,,", 1),
        ("higher,2.0,,", "higher,1.91,,", 0),
        ("higher,2.0,,", "higher,3.0,,", 0),
        ("lower,2.0,,", "lower,1.0,,", 0),
        ("lower,2.0,,", "lower,2.2,,", 1),
        ("higher,-2.0,,", "higher,-2.2,,", 1),
        ("higher,0.0,,", "higher,-0.1,,", 1),
        ("higher,2.0,1.9,2.1", "higher,1.8,1.7,1.9", 1),
        ("higher,2.0,1.7,2.3", "higher,1.8,1.5,2.1", 0),  # within the interval of the first
        ("lower,2.0,1.7,2.1", "lower,2.2,1.9,2.5", 1),
        (",2.0,,", "higher,1.8,,", 1),  # the direction stands in one of them
        ("higher,2.0,,", "higher,OOM,,", 1),
        ("higher,2.0,,", "higher,,,", 1),  # gone
        ("higher,2.0,,", "", 1),  # the row is gone
    ],
)
def test_a_figure_that_is_worse_or_gone_ends_with_1(
    tmp_path: Path, ours: str, other: str, status: int
) -> None:
    assert judged(tmp_path, ours, other) == status


@pytest.mark.parametrize("allowed", ["5", "0.05", "-5%", "five%", "%", "nan%"])
def test_what_is_allowed_is_a_percentage(
    tmp_path: Path, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judged(tmp_path, "higher,2.0,,", "higher,1.8,,", allowed) == 2
    assert "give a percentage of A's figure, such as 5%" in capsys.readouterr().err


def test_tables_without_directions_are_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "a", "Std,std,speed,x,1.0,,")
    assert run("compare", [str(tmp_path / "a.csv"), str(tmp_path / "a.csv"), "--worse-than", "5%"]) == 2
    assert "no column `better`; make them again with `repro table`" in capsys.readouterr().err


@pytest.mark.parametrize(("seconds", "status"), [(0.5, 0), (1.02, 0), (1.2, 1)])
def test_two_records_are_judged_by_their_common_prompts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seconds: float, status: int
) -> None:
    """A record of 1 s a round before; with 1.2 s it decodes 17% fewer tokens a second."""
    store = Results(tmp_path)
    for key, each in (("a", 1.0), ("b", seconds)):
        made = record(key, each)
        store.put(replace(made, values={**made.values, "rouge_l": 1.0}), rounds_of(each))
    keys = ["aaaa", "bbbb", "--results", str(tmp_path)]
    assert run("compare", [*keys, "--worse-than", "5%"]) == status
    assert ("worse: decode_tokens_per_s" in capsys.readouterr().out) == bool(status)


def test_a_change_that_prompts_may_explain_is_not_worse(tmp_path: Path) -> None:
    """Half as fast on two prompts, faster on four: 9% slower in all, between 40% slower and 20% faster."""
    store = Results(tmp_path)
    times = {"a": [1.0] * 6, "b": [2.0, 2.0, 0.6, 0.6, 0.7, 0.7]}
    for key, each in times.items():
        lines = [{**line, "end": seconds} for line, seconds in zip(rounds_of(1.0), each, strict=True)]
        store.put(replace(record(key, 1.0), values={"decode_tokens_per_s": 18 / sum(each)}), lines)
    assert run("compare", ["aaaa", "bbbb", "--results", str(tmp_path), "--worse-than", "5%"]) == 0
