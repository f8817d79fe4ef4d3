"""Completion by Tab of names in groups, where Hydra's own knows only the top of a folder.

Owns the matches of `experiment=lever/` and `model@target=`. Must not know shells; Hydra has their scripts.
"""

from __future__ import annotations

from repro.experiments.guide.choices import option_names

KEEP_AT = "COMP_WORDBREAKS=${COMP_WORDBREAKS//@}"
"""A line for bash, which would else complete only what stands after the `@` of `model@target=`."""


def completed(line: str) -> list[str] | None:
    """The words that complete the last one of a command line; `None` if it chooses from no group of ours."""
    word = line.rpartition(" ")[2]
    key, equals, begun = word.partition("=")
    group, at, _ = key.partition("@")
    known = option_names(group.lstrip("+"))
    if not (equals and known) or (group == "model" and not at):
        return None
    before, comma, last = begun.rpartition(",")
    return [f"{key}={before}{comma}{name}" for name in known if name.startswith(last)]
