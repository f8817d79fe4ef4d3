"""Finds the commands that pages, YAML files and messages tell users to write.

A command is a line of a page's `bash` block, or what begins like one in code between backticks, in a comment
of a YAML file or in a string of the code. Settings alone (`device=local_cpu`) count too.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from repro.core.paths import project_root

ROOT = project_root()
FURTHER = (ROOT / "results" / "errata.md", *ROOT.glob("workshop/**/README.md"))
"""Pages beside those at the top and in docs/."""
FENCED = re.compile(r"```bash\n(.*?)```", re.DOTALL)
CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
STARTS = (
    r"(?:python -m (?:repro|workshop\.\w+|pytest)\b|python \w+/\w+\.py|bash scripts/|pip install|repro -"
    r"|repro (?:table|fetch|device|calibrate|errors|list|show|compare|check)\b|repro \w+=)"
)
COMMAND = re.compile(STARTS)
WRITTEN = re.compile(rf"{STARTS}(?:[^\n`\\]|\\+\n)*")
"""A command in running text: to the end of its line, code or string, or to what explains it."""
SETTING = r"[+~]?[a-z]\w*(?:/\w+)*(?:@\w+(?:\.\w+)*)?(?:\.\w+)*=(?:'[^']*'|\[[^\]]*\]|[^\s`,;)}\]\"']+)"
SETTING = rf"(?:{SETTING}|'[+~]?[a-z][\w./@ ]*(?:=[^'`]*|\.\.\.)'|~[a-z][\w./@]*)"
"""Also quoted as a whole, as a shell takes one with blanks, and one that deletes."""
SETTINGS = re.compile(rf"(?<![\w./@=-])({SETTING}(?: {SETTING})*)")


@dataclass(frozen=True)
class Written:
    """A command as it is written, and the file that says it."""

    text: str
    path: Path

    @property
    def words(self) -> list[str]:
        """Its words, with those of parts that may be left out (`[--out FOLDER]`)."""
        text = re.sub(r"(?<= )\[((?:--|[A-Z])[^\]]*)\]+", r"\1", self.text)
        text = re.sub("<[a-z -]+>", "FOLDER", text)
        return shlex.split(text.replace("\\\n", " "), comments=True)

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}: {self.text}"


def written_commands() -> list[Written]:
    """All commands, each once a file."""
    found = []
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *FURTHER):
        found += [Written(text, path) for text in _of_page(path.read_text(encoding="utf-8"))]
    for path in ROOT.glob("conf/**/*.yaml"):
        comments = re.findall(r"(?:^|\s)# ?(.*)", path.read_text(encoding="utf-8"))
        found += [Written(text, path) for text in _of_text("\n".join(comments))]
    for folder in ("src", "scripts", "workshop"):
        for path in ROOT.glob(f"{folder}/**/*.py"):
            texts = (text for text in _strings(path) if " " in text)
            found += [Written(each, path) for text in texts for each in _of_text(text, folder == "src")]
    return [*dict.fromkeys(found)]


def _of_page(text: str) -> Iterator[str]:
    for block in FENCED.findall(text):
        yield from (line for line in block.replace("\\\n", " ").splitlines() if line.strip())
    for code in CODE.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        code = " ".join(code.split())
        if COMMAND.match(code) or SETTINGS.fullmatch(code):
            yield code


def _of_text(text: str, settings: bool = True) -> Iterator[str]:
    for match in WRITTEN.finditer(text):
        yield re.split(r"(?<=\S) {2,}|, or ", match[0])[0].rstrip(" .:,").removesuffix(')"')
    if settings:
        yield from (match[1].rstrip(".:") for match in SETTINGS.finditer(WRITTEN.sub("", text)))


def _strings(path: Path) -> Iterator[str]:
    """The texts of a module; what an f-string fills in is `NAME`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    inside = {id(part) for node in joined for part in ast.walk(node)}
    for node in joined:
        text = "".join(str(v.value) if isinstance(v, ast.Constant) else "NAME" for v in node.values)
        yield re.sub("(NAME)+", "NAME", text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value
