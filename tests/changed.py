"""What of the project differs from the commit before, for tests of many files that look at a sample else.

Before is the newest commit that the branch `main` has too, and on `main` itself the one before the last.
Without git or such a commit, as in an archive or a clone of the last commit alone, nothing differs.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

from repro.core.paths import conf_dir, project_root

KEY = re.compile(r"\b[0-9a-f]{64}\b")
OF_A_CELL = re.compile(r'"(?:cell|key)": "([0-9a-f]{64})"')
OF_ALL = "config"
"""The file of `conf/` whose choices every command has; samples hold it."""
OF_TABLES = ("experiment", "reference")
"""Folders of `conf/` that no cell reads by a file's name."""


def _git(*arguments: str) -> str | None:
    """What git prints of the project; `None` if it fails."""
    command = ["git", "-C", str(project_root()), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=True, encoding="utf-8", errors="replace")
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


@cache
def _before() -> str | None:
    """The commit to compare with."""
    head = _git("rev-parse", "HEAD")
    common = _git("merge-base", "HEAD", "origin/main") or _git("merge-base", "HEAD", "main")
    before = common if common and common != head else _git("rev-parse", "--verify", "--quiet", "HEAD^1")
    return before.strip() if before else None


def _difference(*arguments: str) -> str:
    before = _before()
    return (before and _git("diff", "--no-renames", *arguments[:1], before, *arguments[1:])) or ""


@cache
def changed_files() -> frozenset[str]:
    """The files that differ, from the project's root; also those that git does not have yet."""
    added = _git("ls-files", "--others", "--exclude-standard", "--full-name") if _before() else None
    return frozenset([*_difference("--name-only").splitlines(), *(added or "").splitlines()])


@cache
def new_keys() -> frozenset[str]:
    """The keys that committed results name and named nowhere before."""
    lines = _difference("--unified=0", "--", "results").splitlines()
    named = {key for line in lines if line.startswith("+") for key in OF_A_CELL.findall(line)}
    return frozenset(named.difference(*(KEY.findall(line) for line in lines if line.startswith("-"))))


@cache
def changed_options() -> frozenset[str]:
    """The names of changed files of `conf/`, and of those that name them, one through another."""
    files = {Path(name) for name in changed_files() if name.startswith("conf/") and name.endswith(".yaml")}
    names = {path.stem for path in files if path.parts[1] not in OF_TABLES} - {OF_ALL}
    words = {
        path.stem: {*re.findall(r"\w+", path.read_text(encoding="utf-8"))}
        for path in conf_dir().rglob("*.yaml")
        if path.relative_to(conf_dir()).parts[0] not in OF_TABLES
    }
    while more := {stem for stem, said in words.items() if said & names} - names - {OF_ALL}:
        names |= more
    return frozenset(names)


def is_changed(table: str, overrides: str = "") -> bool:
    """Whether a table's experiment or page differs, or an option that the experiment or overrides name."""
    experiment = Path("experiment", f"{table}.yaml")
    files = {f"conf/{experiment}", *(f"results/{table}/table.{kind}" for kind in ("md", "csv"))}
    path = conf_dir() / experiment
    text = overrides + (path.read_text(encoding="utf-8") if path.is_file() else "")
    return bool(files & changed_files() or {*re.findall(r"\w+", text)} & changed_options())
