"""The version of this code: its release, its commit, and whether code or `conf/` differ from that commit.

Owns these facts: git says them in a checkout, and elsewhere what the build wrote (`hatch_build.py`, which
runs this file by itself) or `git archive` filled in (`.gitattributes`). Must not know who cites them.
"""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

RELEASE = "0.1.0"
"""The number of the release; its tag is `v` and this number."""

BUILT_FILE = "built_from.json"
"""The file of the package in which a build notes the commit; a checkout has none."""

ARCHIVED_COMMIT = "$Format:%H$"
"""The commit of an archive (a forge's zip), which git fills in; elsewhere it stays as it is."""

CODE_PATHS = ("src", "conf", "scripts", "pyproject.toml")


class Version(NamedTuple):
    """A version of this code; `commit` and `dirty` are `None` where nobody knows them, and `why` says why."""

    release: str
    commit: str | None
    dirty: bool | None
    why: str = ""

    def __str__(self) -> str:
        """The version for a reader, such as `v0.1.0, commit 42674def0f, changed`."""
        phrases = [
            f"v{self.release}",
            f"commit {self.commit[:10]}" if self.commit else f"commit unknown ({self.why})",
        ]
        return ", ".join([*phrases, "changed"] if self.dirty else phrases)


@cache
def version() -> Version:
    """The version of the code that runs."""
    package = Path(__file__).resolve().parents[1]
    built_path = package / BUILT_FILE
    if built_path.is_file():
        return Version(RELEASE, **json.loads(built_path.read_text(encoding="utf-8")))
    commit, dirty = git_state(package.parents[1])
    return Version(RELEASE, commit, dirty, "" if commit else _refusal(package.parents[1]))


def git_state(checkout: Path) -> tuple[str | None, bool | None]:
    """Commit of a checkout of this project, and whether code or configuration differ from it.

    Generated files (`results/`) are ignored. `(None, None)` if the folder is neither the top of a checkout
    nor an unpacked archive of one, or git is missing or refuses. An archive does not know whether it was
    changed, so of it the second is None.
    """
    top_folder = _git(checkout, "rev-parse", "--show-toplevel")
    if top_folder is None or Path(top_folder).resolve() != checkout.resolve():
        return (None if ARCHIVED_COMMIT.startswith("$") else ARCHIVED_COMMIT), None
    commit = _git(checkout, "rev-parse", "HEAD")
    changes = _git(checkout, "status", "--porcelain", "--", *CODE_PATHS)
    return commit, None if changes is None else bool(changes)


def _refusal(folder: Path) -> str:
    """Why git says no commit of a folder."""
    try:
        message = os.fsdecode(_run_git(folder, "rev-parse", "HEAD").stderr).strip()
    except OSError as wrong:
        return f"git: {wrong.strerror}"
    return message.partition("\n")[0] or f"{folder} is below the top of another checkout"


def _git(folder: Path, *arguments: str) -> str | None:
    """Output of a git command; `None` if it fails or git is not installed."""
    try:
        process = _run_git(folder, *arguments)
    except OSError:
        return None
    return os.fsdecode(process.stdout).strip() if process.returncode == 0 else None


def _run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, check=False, timeout=60)
