"""Settings that had another name once, so that who asks for the old one is told the new one.

Owns that list, which docs/changes.md explains. Must not know Hydra.
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
"""New names of settings and of groups of options, by their old ones."""


def renamed(name: str) -> str | None:
    """The sentence for a setting that has a new name; None for any other."""
    if name not in RENAMED:
        return None
    return f"the setting {name!r} is called {RENAMED[name]!r} now; docs/changes.md lists what was renamed"


def check_overrides(overrides: Iterable[str]) -> None:
    """InputError for an override of the command line that has an old name."""
    for override in overrides:
        name = override.lstrip("+~").partition("=")[0].partition("@")[0].partition(".")[0]
        if "=" in override and (sentence := renamed(name)):
            raise InputError(sentence)
