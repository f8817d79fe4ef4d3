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
from tiny_project import Project, write_project

COMMAND = ["/home/me/src/repro/__main__.py", "-m", "method=std,lever", "labels={a: b}"]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watcher:
    monkeypatch.setenv("REPRO_CACHE", str(tmp_path / "cache"))
    watcher = Watcher()
    for method in ("std", "lever", "edgellm"):
        watcher.add({"method": method})
    watcher.finish(0, Note("", {}, "done", 1.0))
    return watcher


def test_ctrl_c_in_a_sweep(watched: Watcher) -> None:
    assert stop_message(COMMAND, watched).splitlines() == [
        "stopped; 1 of 3 cells is done and kept",
        "go on with: python -m repro -m method=std,lever 'labels={a: b}'",
    ]
    watched.finish(1, Note("", {}, "cached", 0.0))
    watched.finish(2, Note("", {}, "failed", 0.0))
    assert stop_message(COMMAND, watched).startswith("stopped; 2 of 3 cells are done and kept\n")


def test_ctrl_c_before_a_sweep_and_in_a_cell() -> None:
    assert stop_message(COMMAND, Watcher()).startswith("stopped; no cell had begun\n")
    assert stop_message(["/env/bin/repro", "prompts=2"], None).splitlines() == [
        "stopped; the cell is not done",
        "go on with: repro prompts=2",
    ]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return write_project(tmp_path_factory.mktemp("project"))


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
    assert said[0].startswith("stopped; ")
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
