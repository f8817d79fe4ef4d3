"""What one cell prints: groups with units and digits, what is absent, and where its files are."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from records import record
from repro.experiments.summaries.cell_screen import headline, show_cell
from repro.records.record import Record, Round
from tiny_project import Project, write_project

CONFIG = {"prompts": 2, "max_tokens": 16}
LABELS = {"agreement": "native", "dataset": "humaneval", "device": "OnePlus 12", "draft": "D", "target": "T"}
VALUES = {
    "ttft": 0.1862,
    "decode_tokens_per_s": 51.8,
    "acceptance_by_position": "1.0 0.3333333333",
    "accuracy": 50.0,
    "accuracy_stderr": 12.5,
    "provisional_pass": None,
    "hops": 3.0,
    "prompts": 2,
}


def made(**changes: object) -> Record:
    about = {"labels": LABELS, "config": CONFIG, "uncertainty": {"accuracy": 12.5}, **changes}
    return record("chain_sd", VALUES, memory={"emulated_dram": 307_000_000, "resident_set": 5}, **about)


def screen(cell: Record, width: int = 120, rounds: tuple[Round, ...] = ()) -> list[str]:
    text = io.StringIO()
    console = Console(width=width, file=text)
    show_cell(console, cell, rounds, (), "computed in 4 s", {"record": Path("/r.json")})
    return text.getvalue().splitlines()


def test_figures_stand_in_groups_with_their_units() -> None:
    lines = screen(made())
    assert (
        lines[0] == "chain_sd on OnePlus 12: humaneval, T, D, 2 prompts, 16 tokens at most (computed in 4 s)"
    )
    groups = [line for line in lines if line and not line.startswith(" ")][1:]
    assert groups[:7] == ["Speed", "Latency", "Acceptance", "Quality", "Memory", "Other", "Counts"]
    words = [" ".join(line.split()) for line in lines]
    assert (
        "Decode 51.80 tokens/s tokens after each answer's first over the time to decode them, within one cell"
        in words
    )
    assert any(line.startswith("TTFT 0.186 s ") for line in words)
    assert any(line.startswith("Acceptance by position 1.00 0.33 share") for line in words)
    assert any(line.startswith("Peak memory 0.307 GB") for line in words)
    assert any(line.startswith("Accuracy 50.0 ± 12.5 % ") for line in words)
    assert "hops 3.00" in words
    assert not any("standard error" in line for line in words), "it stands behind its value"
    assert "Not in this cell: Provisional generation" in lines


def test_the_answers_and_files_are_named() -> None:
    cell = made()
    lines = screen(cell)
    assert f"{'answers':<20} repro show {cell.key[:12]}" in lines
    assert f"{'record':<20} /r.json" in lines
    compressed = made(config={"prompts": 2, "compression": {"name": "w8a8"}})
    assert not any("repro.show" in line for line in screen(compressed)), "it has no answers"
    assert headline(compressed).endswith("2 examples")


def test_a_narrow_terminal_has_no_definitions() -> None:
    assert all(len(line) <= 60 for line in screen(made(), 60)[1:] if "python -m" not in line)
    assert not any("mean time" in line for line in screen(made(), 60))


def test_rounds_give_intervals() -> None:
    rounds = [
        {
            "request": str(i),
            "rows": 1,
            "emitted": 10 + i,
            "accepted": 0,
            "drafted": 0,
            "start": 0.0,
            "end": 1.0,
        }
        for i in range(6)
    ]
    cell = record("std", {"decode_tokens_per_s": 12.5}, config=CONFIG, labels=LABELS)
    (line,) = (line for line in screen(cell, rounds=tuple(rounds)) if line.strip().startswith("Decode"))
    assert line.split()[1:4] == ["12.50", "[11.17,", "13.83]"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return write_project(tmp_path_factory.mktemp("project"))


def test_a_cell_says_where_its_record_and_timeline_lie(project: Project, tmp_path: Path) -> None:
    mine = project.apart(tmp_path)
    first = mine.here("method=std")
    assert first.returncode == 0, first.stderr
    (cell,) = mine.store.all()
    assert f"{mine.store.place(cell.key)}\n" in first.stdout
    assert f"{tmp_path}/outputs/{cell.provenance.trace}\n" in first.stdout
    assert "(computed in " in first.stdout
    assert "(computed before, " in mine.here("method=std").stdout
    assert "1 of 1 cells done" in mine.here("method=std", "sweep=list").stdout


def test_a_failed_cell_says_where_its_traceback_is(project: Project, tmp_path: Path) -> None:
    done = project.apart(tmp_path).here("method=std", "device.dram.budget.value=0.00005")
    assert done.returncode == 2
    assert "The traceback is in " in done.stdout
    assert done.stderr.startswith("error: target weights needs")
