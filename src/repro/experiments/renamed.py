"""Renamed settings, for error messages that give the new name.

Owns the list, which docs/changes.md explains. Must not know Hydra.
"""

from __future__ import annotations

from collections.abc import Iterable

from repro.core.errors import InputError

RENAMED = {
    "ablation": "method_preset",
    "calibration": "calibration_prompts",
    "match": "calibrate_draft_to",
    "native": "draft_calibration",
    "workload": "setup",
}
"""New names of settings and config groups, by old name."""


def renamed(name: str) -> str | None:
    """The error message for a renamed setting; None for any other."""
    if name not in RENAMED:
        return None
    return f"the setting {name!r} is called {RENAMED[name]!r} now; docs/changes.md lists what was renamed"


def check_overrides(overrides: Iterable[str]) -> None:
    """InputError for a command-line override that uses an old name."""
    for override in overrides:
        name = override.lstrip("+~").partition("=")[0].partition("@")[0].partition(".")[0]
        if "=" in override and (sentence := renamed(name)):
            raise InputError(sentence)
