"""Where a file lies that several processes of one host write to: never on a network file system.

SQLite shares memory and locks between the processes of one host; on a disk that several hosts write to it
loses entries, or the file.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path

from repro.core.errors import InputError, warn

SCRATCH_VARIABLE = "REPRO_SCRATCH"

NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "ceph", "beegfs", "afs", "coda", "ncpfs"}
    | {"glusterfs", "orangefs", "pvfs2", "ocfs2", "gfs2", "panfs", "wekafs", "9p", "virtiofs"}
)
"""File systems that several hosts may write to; so may all of FUSE but `LOCAL_FUSE`."""

LOCAL_FUSE = frozenset({"fuseblk", "fuse.fuse-overlayfs", "fuse.ntfs-3g", "fuse.exfat", "fuse.encfs"})

MOUNTS = Path("/proc/self/mountinfo")


def local_place(path: Path) -> Path:
    """A file's path, or one on this host's own disk if the path is on a network file system.

    That is in $REPRO_SCRATCH, else in the folder of temporary files; a warning says so once.

    Raises:
        InputError: $REPRO_SCRATCH is set and is on a network file system itself.
    """
    kind = network_type(path.parent)
    if not kind:
        return path
    scratch = os.environ.get(SCRATCH_VARIABLE)
    folder = Path(scratch or Path(tempfile.gettempdir()) / f"repro-{os.getuid()}").absolute()
    if scratch and (own := network_type(folder)):
        raise InputError(
            f"{SCRATCH_VARIABLE} is {scratch}, on a network file system ({own}), where computed entries can "
            "be lost; set it to a folder on this host's own disk"
        )
    _say(path.parent, kind, folder)
    return folder / hashlib.sha256(str(path.parent.absolute()).encode()).hexdigest()[:12] / path.name


@cache
def _say(place: Path, kind: str, folder: Path) -> None:
    """Warn, once for each place."""
    warn(
        f"{place} is on a network file system ({kind}), so computed entries are kept in {folder}, on this "
        f"host; {SCRATCH_VARIABLE} names another folder"
    )


def network_type(folder: Path) -> str:
    """The type of the network file system that a folder is on, or will be; "" if it is on a local one."""
    place = os.path.realpath(folder)
    kind = max((mount for mount in _mounts() if _is_below(place, mount[0])), default=("", ""))[1]
    is_foreign = kind in NETWORK or (kind.startswith("fuse") and kind not in LOCAL_FUSE)
    return kind if is_foreign else ""


def _is_below(place: str, mount: str) -> bool:
    return place == mount or place.startswith(mount.rstrip("/") + "/")


def _mounts() -> list[tuple[str, str]]:
    """The mounted file systems: the folder and the type of each; none where the system does not say."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [_mount(line) for line in lines if " - " in line]


def _mount(line: str) -> tuple[str, str]:
    before, _, after = line.partition(" - ")
    folder = before.split(" ")[4]
    for code, sign in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        folder = folder.replace(code, sign)
    return folder, after.split(" ")[0]
