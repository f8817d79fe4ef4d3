"""Who waits for a lock says for whom."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from pathlib import Path

import pytest
from filelock import SoftFileLock

from repro.records import locks
from repro.records.locks import Lock


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "SAY_AFTER_S", 0.05)


def test_one_that_waits_names_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (tmp_path / "x.lock").open("w", encoding="utf-8") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        timer = threading.Timer(0.3, lambda: fcntl.flock(held, fcntl.LOCK_UN))
        timer.start()
        with Lock(tmp_path / "x.lock"):
            assert f"waiting for {tmp_path / 'x.lock'}, which another process has locked" in caplog.text
        timer.join()


def test_a_disk_without_flock_is_waited_for_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    held = SoftFileLock(tmp_path / "x.lock", thread_local=False)  # another thread releases it
    held.acquire()

    def release_when_said() -> None:
        end = time.monotonic() + 30
        while "waiting for" not in caplog.text and time.monotonic() < end:
            time.sleep(0.01)
        held.release()

    releasing = threading.Thread(target=release_when_said)
    releasing.start()
    monkeypatch.setattr("fcntl.flock", absent)
    try:
        with Lock(tmp_path / "x.lock"):
            assert f"waiting for {tmp_path / 'x.lock'}, which process {os.getpid()} of" in caplog.text
    finally:
        releasing.join()
