"""What a command says and none of its cells reads.

Compares the words of a command with what each cell's scenario looks at. Must not know Hydra.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from repro.core.errors import InputError
from repro.scenarios.registry import made
from repro.scenarios.sections import ANSWER_SETTINGS, SECTION_OPTIONS

CONFIG_ERRORS = (InputError, KeyError, TypeError, ValueError)
"""What an invalid configuration raises; the cell itself will say it."""

MODEL_PATTERN = re.compile(r"target|draft\d*")

UNREAD_BY_PAGES = dict.fromkeys(
    (
        *SECTION_OPTIONS,
        *ANSWER_SETTINGS,
        "corpus",
        "prompts",
        "skip",
        "seed",
        "host",
        "memo",
        "format",
        "setup",
    ),
    "this page is made of other tables and files, and has no cells",
)
"""What a page of claims, facts or drawings does not read."""


class UnreadWords:
    """The overrides of a command that no cell seen so far reads, with the reason."""

    def __init__(self, overrides: Iterable[str]) -> None:
        self._reasons = dict.fromkeys(overrides, "")
        self._has_cells = False

    def see(self, config: Mapping[str, Any]) -> None:
        """Look at a cell; one whose configuration is invalid may read everything."""
        if not self._reasons:
            return
        try:
            unread_reasons = made(config).unread
        except CONFIG_ERRORS:
            unread_reasons = {}
        self.see_unread(unread_reasons)

    def see_unread(self, unread_reasons: Mapping[str, str]) -> None:
        """Look at a cell, or a page without cells, that does not read these settings."""
        reasons = {override: _reason(override, unread_reasons) for override in self._reasons}
        self._reasons = {override: reason for override, reason in reasons.items() if reason}
        self._has_cells = True

    def require_none(self) -> None:
        """InputError for an override that no cell reads."""
        for override, reason in self._reasons.items() if self._has_cells else ():
            raise InputError(f"{override} would change nothing: {reason}; leave it out")


def _reason(override: str, unread_reasons: Mapping[str, str]) -> str:
    """Why an override is not read; "" if it is, names a model (commands for a pair have both) or deletes."""
    setting = override.lstrip("+~").partition("=")[0].rpartition("@")[2]
    keys = setting.split(".")
    if override.startswith("~") or MODEL_PATTERN.fullmatch(keys[0]):
        return ""
    settings_above = (".".join(keys[:depth]) for depth in range(1, len(keys) + 1))
    return next((unread_reasons[name] for name in settings_above if name in unread_reasons), "")
