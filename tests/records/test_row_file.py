"""What is damaged is named with its path, left out and made again; what is whole is kept."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from repro.records.row_file import RowFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "rows.sqlite"


def garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 80)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [garbage, cut])
def test_a_damaged_file_is_named_and_made_again(
    path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    with closing(RowFile(path, ("a",))) as file:
        file.put("a", [(bytes([i, j]), bytes(100)) for i in range(40) for j in range(40)])
    damage(path)
    with closing(RowFile(path, ("a",))) as file:
        found = [file.get("a", bytes([i, 3])) for i in range(40)]
        assert None in found
        file.put("a", [(b"new", b"x")])
        assert file.get("a", b"new") == b"x"
    assert str(path) in caplog.text
    assert path.with_name("rows.sqlite.damaged").exists()


def test_exchanged_entries_are_found(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(RowFile(path, ("a",))) as file:
        file.put("a", [(b"k", b"1"), (b"l", b"2"), (b"m", b"3")])
    with closing(sqlite3.connect(path)) as raw, raw:
        (stored,) = raw.execute("select value from a where key = ?", (b"k",)).fetchone()
        raw.execute("update a set value = ? where key = ?", (stored, b"l"))
    with closing(RowFile(path, ("a",))) as file:
        assert dict(file.each("a")) == {b"k": b"1", b"m": b"3"}
        assert file.get("a", b"l") is None
        assert str(path) in caplog.text
        file.put("a", [(b"l", b"2")])
        assert file.get("a", b"l") == b"2"


def test_without_a_file_entries_are_kept_until_it_is_closed(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path.mkdir(parents=True)
    with closing(RowFile(path, ("a",))) as file:
        file.put("a", [(b"k", b"1")])
        assert file.get("a", b"k") == b"1"
    said = capsys.readouterr().err
    assert said.startswith(f"warning: cannot use the cache {path} (unable to open database file)")
    assert "set REPRO_CACHE to a writable folder with free space" in said
