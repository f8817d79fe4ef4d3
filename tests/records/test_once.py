"""What is made once is found whole or not at all, whoever is killed and however many make it at once."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from repro.core.errors import InputError
from repro.records.build_cache import build_once, cache_root, require_space


def run(code: str, *arguments: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)])


def write_half(scratch: Path) -> Path:
    (scratch / "half").write_text("half", encoding="utf-8")
    return scratch / "half"


def test_the_cache_is_where_the_caller_then_the_variable_then_the_home_says(monkeypatch, tmp_path):
    monkeypatch.setenv("REPRO_CACHE", str(tmp_path / "b"))
    assert cache_root(tmp_path / "a") == tmp_path / "a"
    assert cache_root() == tmp_path / "b"
    monkeypatch.delenv("REPRO_CACHE")
    assert cache_root() == Path.home() / ".cache" / "repro"


def test_what_is_not_whole_is_built_again(tmp_path):
    target = tmp_path / "thing"
    target.mkdir()
    (target / "old").write_text("cut", encoding="utf-8")
    assert build_once(target, write_half, is_whole=Path.is_file).read_text(encoding="utf-8") == "half"


def test_a_build_that_fails_leaves_nothing(tmp_path):
    def build(scratch: Path) -> Path:
        write_half(scratch)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once(tmp_path / "thing", build)
    assert [path.name for path in tmp_path.iterdir()] == ["thing.lock"]


def test_a_killed_build_leaves_nothing_under_the_name_and_the_next_one_succeeds(tmp_path):
    code = """
import sys, time
from pathlib import Path
from repro.records.build_cache import build_once
def build(scratch):
    (scratch / "half").write_text("cut")
    (Path(sys.argv[1]) / "started").touch()
    time.sleep(60)
build_once(Path(sys.argv[1]) / "thing", build)
"""
    process = run(code, tmp_path)
    while not (tmp_path / "started").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (tmp_path / "thing.partial" / "half").exists()
    assert not (tmp_path / "thing").exists()
    assert build_once(tmp_path / "thing", write_half).read_text(encoding="utf-8") == "half"
    assert not (tmp_path / "thing.partial").exists()


def test_two_processes_at_once_build_it_once(tmp_path):
    code = """
import os, sys, time
from pathlib import Path
from repro.records.build_cache import build_once
home = Path(sys.argv[1])
def build(scratch):
    (home / f"built-by-{os.getpid()}").touch()
    (scratch / "whole").write_text("a")
    time.sleep(0.5)
    (scratch / "whole").write_text("ab")
    return scratch / "whole"
(home / f"ready-{os.getpid()}").touch()
while len(list(home.glob("ready-*"))) < 2:
    time.sleep(0.01)
assert build_once(home / "thing", build).read_text() == "ab"
"""
    processes = [run(code, tmp_path) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert len(list(tmp_path.glob("built-by-*"))) == 1


def test_too_full_a_disk_is_an_error_before_the_build(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(InputError, match=r"disk too full for .*thing.*REPRO_CACHE"):
        build_once(
            tmp_path / "thing", lambda scratch: pytest.fail("must not be built"), needed_bytes=free * 2
        )
    require_space(tmp_path / "not" / "there", 1, "a byte")


@pytest.mark.parametrize(("code", "says"), [(errno.ENOSPC, "disk full"), (errno.EROFS, "cannot write")])
def test_what_the_disk_refuses_meanwhile_is_an_input_error(tmp_path, code, says):
    def build(scratch: Path) -> Path:
        raise OSError(code, os.strerror(code))

    with pytest.raises(InputError, match=says):
        build_once(tmp_path / "thing", build)
    assert not (tmp_path / "thing").exists()


def test_a_cache_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write .*REPRO_CACHE"):
        build_once(tmp_path / "file" / "thing", write_half)
