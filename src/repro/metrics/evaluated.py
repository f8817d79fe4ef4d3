"""Metrics of `evaluate` by name: `evaluate:bleu` of the hub, `evaluate:FOLDER` of a folder with its module.

Their code runs, so a run must name them itself. Owns how they are loaded and what they are given. Must not
know datasets or records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.libraries import absent

PREFIX = "evaluate:"


def is_evaluated(name: str) -> bool:
    """Whether a metric's name is one of these."""
    return name.startswith(PREFIX)


def require_registered(names: Iterable[str], subject: str) -> None:
    """InputError for one of these metrics where only registered ones may stand: another's record."""
    if modules := [name for name in names if is_evaluated(name)]:
        raise InputError(
            f"{subject} is scored by {modules[0]}, whose code would run; compute it by a command of your own"
        )


def stem_of(name: str) -> str:
    """The name of the metric's figures: `evaluate_bleu`."""
    return f"evaluate_{Path(name.removeprefix(PREFIX)).stem}".lower()


def code_digest(name: str) -> str:
    """A hash of the code of a metric's folder; of one of the hub its name."""
    folder = Path(name.removeprefix(PREFIX)).expanduser()
    if not folder.is_dir():
        return name
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@cache
def load_module(name: str) -> Any:
    """The module; InputError if it cannot be loaded, or does not score texts with references."""
    path = Path(name.removeprefix(PREFIX)).expanduser()
    try:
        with absent("transformers"):
            import evaluate

            module = evaluate.load(str(path), keep_in_memory=True)
    except Exception as wrong:
        reason = " ".join(str(wrong).split())
        raise InputError(f"{name} cannot be loaded ({type(wrong).__name__}: {reason})") from wrong
    if not any({"predictions", "references"} <= {*form} for form in _forms(module)):
        raise InputError(
            f"{name} scores {', '.join(_forms(module)[0])}; it must score predictions and references"
        )
    return module


def figures(name: str, texts: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """The numbers that a metric gives for answers, named after it; the metric's own scale.

    Raises:
        InputError: it cannot be loaded, or does not score these texts.
    """
    module, stem = load_module(name), stem_of(name)
    has_lists = any(type(form["references"]).__name__ != "Value" for form in _forms(module))
    expected = [list(group) if has_lists else group[0] for group in references]
    try:
        results = module.compute(predictions=list(texts), references=expected) or {}
    except Exception as wrong:  # whatever a user's module raises
        reason = " ".join(str(wrong).split())
        raise InputError(f"{name} failed on the answers ({type(wrong).__name__}: {reason})") from wrong
    numbers = {
        str(key): float(v) for key, v in results.items() if isinstance(v, (int, float)) or hasattr(v, "item")
    }
    return {stem if len(numbers) == 1 else f"{stem}_{key}".lower(): value for key, value in numbers.items()}


def _forms(module: Any) -> list[dict[str, Any]]:
    """What a module takes: one form of inputs or several."""
    return list(module.features) if isinstance(module.features, list) else [module.features]
