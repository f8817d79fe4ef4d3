"""Runs that end early say in two lines what is kept and how to go on."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from records import begun
from repro.experiments import sweep
from repro.experiments.interrupted import stop_message, stopping
from repro.experiments.progress import Watcher
from repro.experiments.summaries.notes import Note
from tiny_project import Project


def test_what_is_kept_is_counted_and_the_command_is_named() -> None:
    watched = Watcher()
    for number, state in enumerate(("done", "cached", "failed")):
        watched.add({"method": state})
        watched.finish(number, Note("", {}, state, 0.0))
    assert stop_message(["/src/repro/__main__.py", "-m", "labels={a: b}"], watched).splitlines() == [
        "stopped; 2 of 3 cells are done and kept",
        "go on with: python -m repro -m 'labels={a: b}'",
    ]


LONG = ("method=std,flash_ar", "-m", "max_tokens=400", "prompts=3", "memo=false")


def heeding_interrupts() -> None:
    """What a shell runs in the background ignores SIGINT, and so does all that it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def ended(project: Project, act: Callable[[int], None], *more: str) -> tuple[int, str]:
    """Start a sweep, act on its process group once a cell runs, and return its exit code and stderr."""
    command = project.command(*LONG, *more)
    process = subprocess.Popen(
        command,
        cwd=project.root,
        env=project.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heeding_interrupts,
        encoding="utf-8",
    )
    try:
        while process.poll() is None and not any(begun(project.store)):
            try:
                process.wait(timeout=0.05)
            except subprocess.TimeoutExpired:
                continue
        act(process.pid)
        _, err = process.communicate(timeout=60)
        return process.returncode, err
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_a_signal_for_real(project: Project, tmp_path: Path, sent: signal.Signals, code: int) -> None:
    """The cell that ran is no failure, but one that `sweep=retry` runs."""
    mine = project.apart(tmp_path)
    status, err = ended(mine, lambda group: os.killpg(group, sent))
    assert status == code, err
    said = err.splitlines()[-2:]
    assert said[0] == "stopped; 0 of 2 cells are done and kept"
    assert said[1].startswith("go on with: python -m repro ")
    assert "Traceback" not in err
    assert not [record for record in mine.store.all() if not record.done]
    (left,) = begun(mine.store)
    assert mine.store.get(left) is None


class Swallowing:
    """A cell in which a library makes an error of its own of Ctrl-C, as torch does with a storage's shape."""

    emulated = True

    def check(self) -> None:
        """Raise as that library would."""
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ValueError("could not determine the shape") from None


def test_a_stop_that_a_library_swallows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the run, and no cell is noted as failed."""
    monkeypatch.setattr(sweep, "made", lambda config: Swallowing())
    before = signal.getsignal(signal.SIGINT)
    heeding_interrupts()
    try:
        with stopping(), pytest.raises(KeyboardInterrupt):
            sweep.compute({})
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
