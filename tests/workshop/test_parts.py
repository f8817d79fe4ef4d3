"""The workshop says what it has, and nothing names what it no longer has."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from repro.core.paths import project_root

pytestmark = pytest.mark.quick

ROOT = project_root()
PARTS = sorted(path.parent.name for path in ROOT.glob("workshop/*/__init__.py"))
PAGES = ("*.md", "docs/*.md", "conf/**/*.yaml", "src/**/*.py", "scripts/*", "workshop/**/*.md")
NAMED = re.compile(r"\bworkshop(?:/\w+)+(?:\.\w+)?|\bworkshop(?:\.[a-z]\w*)+")


def test_its_command_lists_every_part() -> None:
    listing = subprocess.check_output([sys.executable, "-m", "workshop"], cwd=ROOT, encoding="utf-8")
    assert re.findall(r"^workshop\.(\w+)", listing, re.MULTILINE) == PARTS
    assert len(PARTS) == 6
    page = (ROOT / "workshop" / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[(\w+)\]\(\1\)", page, re.MULTILINE)) == PARTS


def test_no_page_names_a_file_or_a_module_that_is_gone() -> None:
    texts = {
        path: path.read_text(encoding="utf-8")
        for pattern in PAGES
        for path in ROOT.glob(pattern)
        if path.is_file()
    }
    named = {(name, path) for path, text in texts.items() for name in NAMED.findall(text)}
    gone = [f"{path.relative_to(ROOT)}: {name}" for name, path in named if not is_there(name)]
    assert sorted(gone) == []
    assert len(named) > 50


def is_there(name: str) -> bool:
    """Whether a path, or a module or a name of a module by its dots, is in the checkout."""
    if "/" in name:
        return (ROOT / name).exists()
    place = ROOT / name.replace(".", "/")
    return place.is_dir() or any(p.with_suffix(".py").is_file() for p in (place, place.parent))
