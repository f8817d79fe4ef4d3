"""What processes of one host share lies on its own disk."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from repro.core.errors import InputError, warn
from repro.records import row_file
from repro.records.row_file import RowFile, local_place, network_type

LINE = "36 35 98:0 / {folder} rw,noatime - {kind} server:/export rw"


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A network disk, and a local one within it."""
    shared = tmp_path / "shared disk"
    table = tmp_path / "mountinfo"
    lines = [
        LINE.format(folder="/", kind="ext4"),
        LINE.format(folder=str(shared).replace(" ", "\\040"), kind="nfs4"),
        LINE.format(folder=str(shared / "own").replace(" ", "\\040"), kind="xfs"),
    ]
    table.write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setattr(row_file, "MOUNTS_PATH", table)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "node"))
    monkeypatch.delenv("REPRO_SCRATCH", raising=False)
    warn.cache_clear()
    return shared


@pytest.mark.parametrize(("kind", "network"), [("fuse.sshfs", True), ("fuse.new", True), ("fuseblk", False)])
def test_an_unknown_fuse_is_a_network_s(mounts: Path, kind: str, network: bool) -> None:
    row_file.MOUNTS_PATH.write_text(LINE.format(folder="/", kind=kind), encoding="utf-8")
    assert bool(network_type(mounts)) is network


def test_entries_of_a_network_disk_are_kept_on_the_host_and_it_is_said_once(
    mounts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        with closing(RowFile(mounts / "cache" / "rows.sqlite", ("a",))) as file:
            file.put("a", [(b"k", b"1")])
            assert file.get("a", b"k") == b"1"
            assert file.path.is_relative_to(tmp_path / "node")
    assert not mounts.exists()
    assert capsys.readouterr().err.count("nfs4") == 1
    assert local_place(mounts / "cache" / "a") != local_place(mounts / "other" / "a")


def test_a_folder_that_is_set_is_used_or_refused(mounts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRO_SCRATCH", str(mounts / "own"))
    assert local_place(mounts / "rows").is_relative_to(mounts / "own")
    monkeypatch.setenv("REPRO_SCRATCH", str(mounts / "scratch"))
    with pytest.raises(InputError, match=r"REPRO_SCRATCH is .*nfs4"):
        local_place(mounts / "rows")
    assert local_place(mounts / "own" / "rows") == mounts / "own" / "rows"
