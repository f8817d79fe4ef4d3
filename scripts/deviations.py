"""Where the code departs from its papers, by its comments `Deviation: ...`, a list for each page of docs/.

Owns which page lists whose comments. What they say follows from the code alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from repro.core.errors import InputError

METHODS, MODELS, TRAINING = "src/repro/methods", "src/repro/models", "workshop/training"
SPECULATIVE = f"{METHODS}/speculative"
PAGES = {
    "docs/edgellm.md": (
        *(f"{METHODS}/edgellm/", f"{METHODS}/sti/", f"{SPECULATIVE}/bld.py", f"{SPECULATIVE}/specinfer.py"),
        *(f"{MODELS}/quantization/dictionary_rounding.py", f"{MODELS}/tokens/", f"{MODELS}/forward/"),
    ),
    "docs/lever.md": (
        *(f"{METHODS}/lever/", f"{SPECULATIVE}/opt_tree.py", f"{TRAINING}/train_predictor.py"),
        *(f"{TRAINING}/phases.py", f"{TRAINING}/answers.py"),
    ),
    "docs/mllm_npu.md": (f"{METHODS}/mllm_npu/", f"{MODELS}/quantization/w8a8.py"),
    "docs/elastilm.md": (
        *(f"{METHODS}/elastilm/", f"{METHODS}/serving/", f"{METHODS}/compression/pruning/"),
        *("src/repro/data/traces.py", f"{TRAINING}/score_head.py", f"{TRAINING}/decision_head.py"),
        f"{TRAINING}/train_tlm.py",
    ),
    "docs/ghidorah.md": (f"{METHODS}/ghidorah/", f"{SPECULATIVE}/drafting/"),
    "docs/compare.md": (
        *(f"{METHODS}/compression/fp16.py", f"{METHODS}/compression/quantization/"),
        *(f"{MODELS}/transformer/quantize.py", "conf/dataset/"),
    ),
}
"""The folders and files whose deviations a page lists."""

COMMENT = re.compile(
    r"^(?P<indent> *)(?P<hash># )?(?P<attribute>\w+: )?.*?Deviation:(?P<text>.*)$", re.MULTILINE
)
"""The line on which a deviation begins: of a comment, of an attribute's meaning or of other text."""


def deviations(text: str) -> Iterator[str]:
    """The deviations of a file's docstrings and comments, each on one line, to the end of its paragraph."""
    for match in COMMENT.finditer(text):
        attribute = match["attribute"] or ""
        indent = match["indent"] + "    " * bool(attribute) + (match["hash"] or "")
        lines = [match["text"]]
        for line in text[match.end() + 1 :].splitlines():
            rest = line.removeprefix(indent)
            ends = '"""' in lines[-1] or rest.startswith(('"""', "Deviation:"))
            if ends or not rest or not line.startswith(indent):
                break
            lines.append(rest)
        sentences = " ".join(" ".join(lines).partition('"""')[0].split())
        yield f"`{attribute[:-2]}`: {sentences}" if attribute else f"{sentences[0].upper()}{sentences[1:]}"


def deviations_by_page(root: Path) -> dict[str, str]:
    """The list of each page.

    Raises:
        InputError: a file has a deviation and belongs to no page.
    """
    lists: dict[str, list[str]] = {page: [] for page in PAGES}
    for pattern in ("src/**/*.py", "workshop/**/*.py", "conf/**/*.yaml"):
        for path in sorted(root.glob(pattern)):
            name = path.relative_to(root).as_posix()
            for text in deviations(path.read_text(encoding="utf-8")):
                page = next((page for page, parts in PAGES.items() if name.startswith(parts)), None)
                if page is None:
                    raise InputError(
                        f"{name} has a deviation, and PAGES of scripts/deviations.py no page for it"
                    )
                lists[page].append(f"- {text} (`{name.removeprefix('src/repro/')}`)")
    return {page: "\n".join(lines) for page, lines in lists.items()}
