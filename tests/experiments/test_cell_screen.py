"""What one cell prints: groups with units and digits, what is absent, and where its files are."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from records import record
from repro.experiments.summaries.cell_screen import show_cell
from repro.records.record import Round
from tiny_project import Project

LABELS = {"agreement": "native", "dataset": "humaneval", "device": "OnePlus 12", "draft": "D", "target": "T"}


def test_a_cell_shows_its_figures_in_groups_and_where_its_files_lie(project: Project) -> None:
    first = project.here("method=chain_sd")
    assert first.returncode == 0, first.stderr
    (cell,) = project.store.all()
    lines = [" ".join(line.split()) for line in first.stdout.splitlines()]
    groups = ["Speed", "Latency", "Acceptance", "Quality", "Energy", "Memory", "Counts"]
    assert [line for line in lines if line in groups] == groups
    decode = f"Decode {cell.values['decode_tokens_per_s']:.2f} tokens/s tokens after each answer's first over"
    for said in (decode, "Exact match 1.00 share", "Target calls ", "Acceptance by position "):
        assert any(line.startswith(said) for line in lines), said
    assert "Not in this cell: Provisional generation" in lines
    assert f"answers repro show {cell.key[:12]}" in lines
    assert f"{project.store.place(cell.key)}\n" in first.stdout
    assert f"{project.out}/outputs/{cell.provenance.trace}\n" in first.stdout
    assert "(computed in " in first.stdout
    assert "(computed before, " in project.here("method=chain_sd").stdout
    assert "1 of 1 cells done" in project.here("method=chain_sd", "sweep=list").stdout


def test_figures_of_many_prompts_have_intervals() -> None:
    one = {"rows": 1, "accepted": 0, "drafted": 0, "start": 0.0, "end": 1.0}
    rounds: list[Round] = [{**one, "request": str(i), "emitted": 10 + i} for i in range(6)]
    cell = record(
        "std", {"decode_tokens_per_s": 12.5}, config={"prompts": 2, "max_tokens": 16}, labels=LABELS
    )
    screen = io.StringIO()
    show_cell(Console(width=120, file=screen), cell, rounds, (), "computed", {"record": Path("/r.json")})
    (line,) = (line for line in screen.getvalue().splitlines() if line.strip().startswith("Decode"))
    assert line.split()[1:4] == ["12.50", "[11.17,", "13.83]"]
