"""Run a Python program that nobody has read: no network, no files, limits on processes, time and memory.

Owns the isolation, which needs Linux and util-linux: a network, process, IPC and mount namespace, for users
other than root within a user namespace. The program's root folder is a file system in memory that holds
Python's and the system's libraries, read-only, and an empty folder to work in: no socket, no /proc and no
file of the user can be reached. No capability is left, and root's programs run as a user without rights. Must
not know what the program is.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import IO

from repro.core.errors import InputError

NAMESPACES = ("--net", "--pid", "--ipc", "--mount", "--fork", "--kill-child")
OF_USERS = ("--user", "--map-root-user", *NAMESPACES)
NOBODY = 65534
"""The user that root's programs run as: the kernel does not limit root's processes."""

REACHED = 100
"""Exit status of a program that reached its end; Python itself has no such status."""

SETUP = """
import ctypes, os, resource, sys

folder, *numbers = sys.argv[1:]
user, reader, writer, seconds, memory, output, reached = map(int, numbers)
libc = ctypes.CDLL(None, use_errno=True)


def must(failed, what):
    if failed:
        sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(source, target, kind, flags, data=None):
    os.makedirs(target, exist_ok=True)
    must(libc.mount(source.encode(), target.encode(), kind, flags, data), f"mount {target}")


mount("tmpfs", folder, b"tmpfs", 6, b"size=16m,nr_inodes=2k,mode=755")  # 6: no setuid, no devices
python = os.path.dirname(os.path.dirname(os.__file__))
libraries = [python, *sys.path, "/lib", "/lib64", "/usr/lib", "/usr/lib64"]
shown = []
for library in filter(os.path.isdir, libraries):
    if not any(library == other or library.startswith(other + "/") for other in shown):
        mount(library, folder + library, None, 0x5000)  # MS_BIND, MS_REC
        shown.append(library)
os.mkdir(folder + "/tmp")
# mount_setattr(AT_FDCWD, folder, AT_RECURSIVE, {attr_set: RDONLY, NOSUID, NODEV}); glibc 2.36 has a wrapper
must(libc.syscall(442, -100, folder.encode(), 0x8000, (ctypes.c_uint64 * 4)(7, 0, 0, 0), 32), "mount_setattr")
mount("tmpfs", folder + "/tmp", b"tmpfs", 6, b"size=16m,nr_inodes=2k,mode=1777")
os.chroot(folder)
os.chdir("/tmp")
if child := os.fork():  # the first process of a namespace takes all others with it
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255)
if user:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
limits = {"CPU": seconds, "AS": memory, "FSIZE": output, "CORE": 0, "NPROC": 0, "NOFILE": 64, "MSGQUEUE": 0}
for name, most in limits.items():
    resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
must(libc.prctl(38, 1, 0, 0, 0), "no_new_privs")
must(libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()), "capset")
sys.argv[1:] = [str(reader), str(writer)]
exec(compile(sys.stdin.read(), "program", "exec"), {"__name__": "__main__"})
sys.stdout.flush()
os._exit(reached)
"""
"""What runs within the namespaces, with their capabilities, before the program."""

Way = tuple[tuple[str, ...], int]
"""Options of `unshare`, and the user to become; 0 for who is there."""

WAYS: tuple[Way, ...] = ((NAMESPACES, NOBODY), (OF_USERS, 0))
"""The ways of root, and the last is everybody's."""

PROBE = """
import ctypes, decimal, hashlib, os

try:
    os.fork()
except OSError:
    pass
else:
    os._exit(1)
"""
"""It reaches its end if the libraries are there and the limit on processes holds."""


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


def run(program: str | tuple[str, str], limits: ProgramLimits = ProgramLimits()) -> Finished:
    """Run a program in an isolated process; InputError if this machine cannot isolate it.

    Of two programs each has a process of its own, and both can write to each other: their arguments are the
    numbers of the files to read from and to write to. How the first ends counts, and the second ends with it.
    """
    if reason := unable():
        raise InputError(reason)
    return _run(program, limits, _way()[0])


def unable() -> str:
    """The reason why this machine cannot isolate a program, in a sentence; "" if it can."""
    return _way()[1]


@cache
def _way() -> tuple[Way, str]:
    """The first way that keeps a program from what `PROBE` tries, and why there is none."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        tool = "" if shutil.which("unshare") else " without unshare"
        return WAYS[-1], f"generated code runs on Linux with util-linux only; this is {sys.platform}{tool}"
    root = os.geteuid() == 0
    for way in WAYS if root else WAYS[1:]:
        probed = _run(PROBE, ProgramLimits(), way)
        if probed.whole:
            return way, ""
    return way, (
        f"generated code is not run here: the kernel gives {'root' if root else 'this user'} no namespaces "
        f"of its own, or does not limit processes in them ({probed.said or 'without a reason'})"
    )


def _run(program: str | tuple[str, str], limits: ProgramLimits, way: Way) -> Finished:
    first, *others = (program,) if isinstance(program, str) else program
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        log = stack.enter_context(tempfile.TemporaryFile())
        pipes = [os.pipe(), os.pipe()] if others else []
        (reader, answered), (asked, writer) = pipes or [(-1, -1), (-1, -1)]
        try:
            process = stack.enter_context(_started(first, (reader, writer), log, folder, limits, way))
            for other in others:
                own = stack.enter_context(tempfile.TemporaryFile())
                stack.enter_context(_started(other, (asked, answered), own, folder, limits, way))
        finally:
            for end in itertools.chain(*pipes):
                os.close(end)
        try:
            status = process.wait(limits.wall_seconds)
        except subprocess.TimeoutExpired:
            return Finished(False, f"took more than {limits.wall_seconds:g} s")
        return Finished(status == REACHED, "" if status == REACHED else _last_line(log))


@contextmanager
def _started(
    program: str, channel: tuple[int, int], log: IO[bytes], folder: str, limits: ProgramLimits, way: Way
) -> Iterator[subprocess.Popen[bytes]]:
    """A running program, which is ended in the end; what it says is bounded as any file of its."""
    namespaces, user = way
    numbers = (user, *channel, limits.cpu_seconds, limits.memory, limits.output, REACHED)
    with tempfile.TemporaryFile() as source:
        source.write(program.encode("utf-8", "replace"))
        source.seek(0)
        process = subprocess.Popen(
            ["unshare", *namespaces, sys.executable, "-I", "-S", "-c", SETUP, folder, *map(str, numbers)],
            stdin=source,
            stdout=log,
            stderr=log,
            cwd="/",
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": "/tmp", "LC_ALL": "C.UTF-8"},
            start_new_session=True,
            pass_fds=[end for end in channel if end >= 0],
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _last_line(log: IO[bytes]) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - 2000))
    lines = log.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""
