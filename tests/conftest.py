"""What tests share: folders that a process writes once and that tests only read."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tiny_project import Project

os.environ.pop("HF_HUB_OFFLINE", None)  # libraries read it when they are imported; tests set it themselves

settings.register_profile("any host", deadline=None)  # a busy machine makes no test fail
settings.load_profile("any host")


def pytest_collection_finish() -> None:
    """What all tests share is no garbage, and what one of them makes is looked through seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of pictures are empty: drawing them takes longer than all else that a table needs."""
    monkeypatch.setattr("repro.reports.files._picture", lambda table, format: b"")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Models, rows and what the models said, which tests only add to."""
    from tiny_project import write_project

    return write_project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def project(shared: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The same with results and outputs of the test's own."""
    monkeypatch.setenv("REPRO_CACHE", str(shared.root / "cache"))
    return shared.apart(tmp_path)


@pytest.fixture
def cache_of_project(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the cells of a test remember lies with the test's `project`."""
    monkeypatch.setenv("REPRO_CACHE", str(request.getfixturevalue("project").root / "cache"))


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of what trainings on a target's answers begin with."""
    from tiny_training import write_places

    root = tmp_path_factory.mktemp("places")
    write_places(root)
    return root


@pytest.fixture
def training_rows(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets are those of `places`."""
    monkeypatch.setenv("REPRO_DATA", str(places / "data"))
