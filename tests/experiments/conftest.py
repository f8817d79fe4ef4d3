"""What tests of commands share: tiny models and rows, and results of a test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_project import Project, write_project


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Models, rows and what the models said, which tests only add to."""
    return write_project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def project(shared: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The same with results and outputs of the test's own."""
    monkeypatch.setenv("REPRO_CACHE", str(shared.root / "cache"))
    return shared.apart(tmp_path)
