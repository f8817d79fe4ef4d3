"""Run a Python program that nobody has read: no network, nothing to write to, limits on time and memory.

Owns the isolation, which needs Linux and util-linux: a user namespace with a network, process and mount
namespace below it. All folders are read-only, the program's own is a small file system in memory, /dev, /proc
and /sys are empty, and no capability is left. It guards against accidents; a program can still read what the
user can read. Must not know what the program is.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from typing import IO

from repro.core.errors import InputError

TOOLS = ("unshare", "setpriv")
NAMESPACES = ("--user", "--map-root-user", "--net", "--pid", "--ipc", "--mount", "--fork", "--kill-child")

SETUP = """
import ctypes, os, resource, sys

folder, seconds, memory, output = sys.argv[1], *map(int, sys.argv[2:5])
libc = ctypes.CDLL(None, use_errno=True)


def must(failed, what):
    if failed:
        sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")


# mount_setattr(AT_FDCWD, "/", AT_RECURSIVE, {attr_set: MOUNT_ATTR_RDONLY}); glibc 2.36 has the first wrapper
must(libc.syscall(442, -100, b"/", 0x8000, (ctypes.c_uint64 * 4)(1, 0, 0, 0), 32), "mount_setattr")
for place in (folder, "/dev", "/proc", "/sys"):
    must(libc.mount(b"tmpfs", place.encode(), b"tmpfs", 6, b"size=16m"), "mount")  # 6: no setuid, no devices
os.chdir(folder)
limits = {"CPU": seconds, "AS": memory, "FSIZE": output, "CORE": 0, "NPROC": 0}
for name, most in limits.items():
    resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
program = "import sys; exec(compile(sys.stdin.read(), 'answer', 'exec'), {'__name__': '__main__'})"
dropped = ["--no-new-privs", "--securebits=+noroot,+noroot_locked", "--inh-caps=-all", "--bounding-set=-all"]
os.execvp("setpriv", ["setpriv", *dropped, sys.executable, "-I", "-S", "-c", program])
"""
"""What runs within the namespaces, as their root, before the program."""


@dataclass(frozen=True)
class ProgramLimits:
    """What a program may use: seconds of CPU and on the clock, bytes of memory and of each file."""

    cpu_seconds: int = 5
    wall_seconds: float = 15.0
    memory: int = 1 << 30
    output: int = 1 << 20


@dataclass(frozen=True)
class Finished:
    """How a program ended: whether it reached its end within the limits, and its last words if not."""

    whole: bool
    said: str = ""


def run(program: str, limits: ProgramLimits = ProgramLimits()) -> Finished:
    """Run a program in an isolated process; InputError if this machine cannot isolate it."""
    if reason := unable():
        raise InputError(reason)
    return _run(program, limits)


@cache
def unable() -> str:
    """The reason why this machine cannot isolate a program, in a sentence; "" if it can."""
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if sys.platform != "linux" or lacking:
        return f"generated code runs on Linux with util-linux only; this is {sys.platform}" + (
            f" without {' and '.join(lacking)}" if lacking else ""
        )
    found = _run("pass", ProgramLimits())
    if found.whole:
        return ""
    who = "root" if os.geteuid() == 0 else "this user"
    return (
        f"generated code is not run here: the kernel gives {who} no user and network namespace of its own "
        f"({found.said or 'without a reason'})"
    )


def _run(program: str, limits: ProgramLimits) -> Finished:
    # A program that leaves early with status 0 has not run its tests: only the last line tells that it did.
    token = secrets.token_hex(16)
    text = f"{program}\nimport sys as _sys\n_sys.stdout.write('\\n{token}')\n"
    numbers = (limits.cpu_seconds, limits.memory, limits.output)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as out:
        inner = [sys.executable, "-I", "-S", "-c", SETUP, folder, *map(str, numbers)]
        process = subprocess.Popen(
            ["unshare", *NAMESPACES, *inner],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.PIPE,
            cwd="/",
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": folder, "LC_ALL": "C.UTF-8"},
            start_new_session=True,
        )
        try:
            _, err = process.communicate(text.encode("utf-8", "replace"), limits.wall_seconds)
        except subprocess.TimeoutExpired:
            return Finished(False, f"took more than {limits.wall_seconds:g} s")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        ended = process.returncode == 0 and _tail(out, len(token)) == token
        return Finished(ended, "" if ended else _last_line(err))


def _tail(file: IO[bytes], count: int) -> str:
    """The last characters of a file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - count))
    return file.read().decode("utf-8", "replace")


def _last_line(said: bytes) -> str:
    lines = said[-2000:].decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""
