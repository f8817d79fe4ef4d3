"""The sections of a configuration: which there are, what each is, and where a run may write.

Owns what can be said before a component is known. Must not know components, numbers or Hydra.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from repro.core.errors import InputError
from repro.core.paths import conf_folders
from repro.core.registry import require_choice, unknown

CHOSEN = {
    "method": "method",
    "device": "device",
    "engine": "engine",
    "dataset": "dataset",
    "target": "model@target",
    "compression": "compression",
    "probe": "probe",
    "service": "service",
    "trace": "trace",
}
"""Sections that a choice fills, and the option that chooses it; drafts may be absent."""

OPTIONAL = ("compression", "probe", "service")
"""Sections whose component makes a cell another scenario; null in other cells."""

EXAMPLES = {
    "sampling": "{temperature: 0}",
    "corpus": "{dataset: ..., texts: 32, tokens: 256}",
    "wandb": "{mode: disabled}",
}
"""Sections of settings, with an example."""

FOLDERS = ("results", "outputs")
"""Settings that name the folders to which a run writes."""

OTHERS = (
    *("name", "labels", "prompts", "prompt_tokens", "skip", "max_tokens", "calibrate_draft_to"),
    *("draft_calibration", "calibration_prompts", "seed", "metrics", "host", "memo", "repeats", "cooldown"),
    *("sweep", "data_dir", "resident", "draft", "setup", "experiment", "app", "format", "weights"),
)
OF_ANSWERS = (
    *(
        "method",
        "draft",
        "sampling",
        "prompt_tokens",
        "max_tokens",
        "calibrate_draft_to",
        "draft_calibration",
    ),
    *("calibration_prompts", "resident", "repeats", "cooldown", "metrics"),
)
"""Settings of cells in which a method answers prompts."""

WEIGHTS, STAND_IN, OWN_WEIGHTS = "weights", "stand_in", "own"
"""The setting that says what computes; stand-ins and the billed models' own checkpoints among its choices."""

DRAFTS = re.compile(r"draft_\d+")
"""Roles of further drafts."""

NAME = re.compile(r"[\w+,=@-][\w.+,=@ -]*(/[\w+,=@-][\w.+,=@ -]*)*")
"""An experiment's name: parts joined by "/", none of which begins with a dot."""

LONGEST_NAME = 120


def check_known(config: Mapping[str, Any]) -> None:
    """InputError for a setting that nothing reads, such as a misspelt one, or weights of no known choice."""
    known = (*CHOSEN, *EXAMPLES, *FOLDERS, *OTHERS)
    for name in config:
        if name not in known and not DRAFTS.fullmatch(str(name)):
            raise InputError(unknown("setting", str(name), known))
    chosen = config.get(WEIGHTS, STAND_IN)
    if chosen not in (STAND_IN, OWN_WEIGHTS):
        files = [path for folder in conf_folders() for path in (folder / WEIGHTS).glob("*.yaml")]
        require_choice("choice of weights", chosen, [path.stem for path in files])


def require_no_names(content: Mapping[str, Any], path: str) -> None:
    """InputError for a name where a file about the whole configuration has a section (`method: std`)."""
    for name, value in content.items():
        if name in (*CHOSEN, "draft") and isinstance(value, str) and not value.startswith("${"):
            raise InputError(
                f"{path} has {name}: {value}, and {name} is a section of settings; a file chooses one in its "
                f"defaults list, as in `- override /{CHOSEN.get(name, f'model@{name}')}: {value}`"
            )


def check_sections(config: Mapping[str, Any], group: str) -> None:
    """InputError unless the sections that a cell needs are mappings, and the chosen ones have a name.

    Args:
        config: a resolved configuration.
        group: the group of the cell's component.
    """
    drafts = [str(name) for name in config if str(name) == "draft" or DRAFTS.fullmatch(str(name))]
    for name in ("device", "dataset", "target", group, *(one for one in drafts if config[one] is not None)):
        section = config.get(name)
        if not isinstance(section, Mapping):
            option = CHOSEN.get(name, f"model@{name}")
            raise InputError(f"{name} is {section!r}; choose one with {option}=NAME")
        if not isinstance(section.get("name"), str) or not section["name"]:
            raise InputError(f"{name}.name is {section.get('name')!r}; it must be a text")
    for name in (*OPTIONAL, "trace", "engine"):
        if config.get(name) is not None and not (isinstance(config[name], Mapping) and config[name]):
            raise InputError(
                f"{name} is {config[name]!r}; choose one with {CHOSEN[name]}=NAME, or null for none"
            )
    for name in ("sampling", "corpus"):
        _require_mapping(config, name)


def check_places(config: Mapping[str, Any]) -> None:
    """Check what decides where a run writes, before anything is written.

    Raises:
        InputError: `name` leaves the folders of results and outputs, or a folder has no name.
    """
    name = config.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        raise InputError(
            f"name is {name!r}; it must be at most {LONGEST_NAME} letters, digits, - or _, with / between "
            "parts, none of which begins with a dot: results and timelines are stored under it"
        )
    for setting in FOLDERS:
        folder = config.get(setting)
        if not isinstance(folder, str) or not folder.strip() or not folder.isprintable():
            raise InputError(f"{setting} is {folder!r}; it must be the path of a folder")
    if not isinstance(config.get("data_dir"), str | None):
        raise InputError(f"data_dir is {config['data_dir']!r}; it must be the path of a folder, or null")
    _require_mapping(config, "wandb")


def _require_mapping(config: Mapping[str, Any], name: str) -> None:
    if not isinstance(config.get(name), Mapping):
        given = config.get(name)
        raise InputError(f"{name} is {given!r}; it must be a mapping, such as {EXAMPLES[name]}")
