"""What a configuration has at its top: the settings of every run, and the sections that choices fill.

Owns what can be said before a component is known: names, types, bounds and meanings. `repro list settings`
and `--help` read them here. Must not know components or Hydra.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

from annotated_types import Interval

from repro.core.bounds import AgreedShare, Count, Share, Text, Tokens
from repro.core.errors import InputError
from repro.core.paths import conf_folders
from repro.core.registry import require_choice, unknown
from repro.core.typed import require

Times = Annotated[int, Interval(ge=1, le=100_000)]


@dataclass(frozen=True)
class RunSettings:
    """The settings of every run; conf/config.yaml has their defaults.

    Attributes:
        name: the experiment's name in records and tables.
        labels: more labels of the cell for tables, such as {alpha: "${method.alpha}"}.
        prompts: the first rows of the dataset.
        prompt_tokens: keep only so many last tokens of a prompt; without a checkpoint, a prompt of so many
            blanks.
        skip: rows to skip first; settings are searched on rows that no table evaluates.
        max_tokens: tokens of an answer, at most.
        sampling: how tokens are drawn.
        calibrate_draft_to: agreement to calibrate the draft to; a published one's id (reference/cells.csv),
            or 0.8.
        draft_calibration: whether a draft is calibrated, even if a setup asks; `weights` makes it of the
            target's, `choices` leaves it its own confidences.
        calibration_prompts: prompts used for that calibration; those after the evaluated ones, for `weights`
            the last.
        resident: share of the target's layers in memory, for any method; null is the method's own (some
            stream).
        seed: seed of draws.
        corpus: calibration data of a compression; short texts are joined, long ones cut.
        metrics: registered metrics in addition to the default ones.
        format: of models whose files name none, such as q4_0 or fp16; null is the engine's or the method's.
        host: where an emulated run's tensors are computed, cpu or cuda.
        memo: cache logits across runs and devices (greedy, emulated).
        repeats: repetitions of all prompts, on real devices.
        cooldown: seconds between them.
        sweep: run what is not done, list, retry what failed or was lost, force all.
        results: folder of records and tables.
        outputs: folder of timelines and wandb runs.
        data_dir: folder of datasets, $REPRO_DATA.
        wandb: where wandb's runs go.
        grid: an experiment's cells (docs/tables.md).
        table: an experiment's table (docs/tables.md).
    """

    name: Text
    labels: Mapping[str, Any] | None
    prompts: Count
    prompt_tokens: Tokens | None
    skip: Annotated[int, Interval(ge=0, le=1_000_000_000)]
    max_tokens: Tokens
    sampling: Mapping[str, Any]
    calibrate_draft_to: AgreedShare | str | tuple[str, ...] | None
    draft_calibration: bool | Literal["weights", "choices"]
    calibration_prompts: Times
    resident: Share | None
    seed: Annotated[int, Interval(ge=0, le=2**62)]
    corpus: Mapping[str, Any]
    metrics: tuple[str, ...]
    format: str | None
    host: Literal["cpu", "cuda"]
    memo: bool
    repeats: Times
    cooldown: Annotated[float, Interval(ge=0, le=86_400)]
    sweep: Literal["run", "list", "retry", "force"]
    results: Text
    outputs: Text
    data_dir: str | None
    wandb: Mapping[str, Any]
    grid: Mapping[str, Any] | None
    table: Mapping[str, Any] | None


@cache
def settings_by_name() -> dict[str, Any]:
    """The types of the settings of every run."""
    return get_type_hints(RunSettings, include_extras=True)


def check_settings(config: Mapping[str, Any]) -> None:
    """InputError for a setting of the run that is not what `RunSettings` says.

    What reads `calibrate_draft_to` says more of a wrong one: of a share its bounds, of an id which there are.
    """
    for name, kind in settings_by_name().items():
        if name in config and name != "calibrate_draft_to":
            require(kind, config[name], name)


SECTION_OPTIONS = {
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

OPTIONAL_SECTIONS = ("compression", "probe", "service")
"""Sections whose component makes a cell another scenario; null in other cells."""

EXAMPLES = {
    "sampling": "{temperature: 0}",
    "corpus": "{dataset: ..., texts: 32, tokens: 256}",
    "wandb": "{mode: disabled}",
}
"""Sections of settings, with an example."""

FOLDER_SETTINGS = ("results", "outputs")
"""Settings that name the folders to which a run writes."""

OTHER_ENTRIES = ("draft", "setup", "experiment", "app", "weights")
"""What else a configuration has: a draft, if there is one, and what was chosen to make it."""

NO_SECTIONS = ("hydra", "grid", "table", "labels")
"""Mappings of a configuration whose entries are no settings of a cell."""

ANSWER_SETTINGS = (
    *("method", "draft", "sampling", "prompt_tokens", "max_tokens", "calibrate_draft_to"),
    *("draft_calibration", "calibration_prompts", "resident", "repeats", "cooldown", "metrics"),
)
"""Settings of cells in which a method answers prompts."""

WEIGHTS, STAND_IN, OWN_WEIGHTS = "weights", "stand_in", "own"
"""The setting that says what computes; stand-ins and the billed models' own checkpoints among its choices."""

DRAFT_ROLE = re.compile(r"draft_\d+")
"""Roles of further drafts."""

NAME_PATTERN = re.compile(r"[\w+,=@-][\w.+,=@ -]*(/[\w+,=@-][\w.+,=@ -]*)*")
"""An experiment's name: parts joined by "/", none of which begins with a dot."""

LONGEST_NAME = 120


def check_known(config: Mapping[str, Any]) -> None:
    """InputError for a setting that nothing reads, such as a misspelt one, or weights of no known choice."""
    settings = (*SECTION_OPTIONS, *settings_by_name(), *OTHER_ENTRIES)
    for name in config:
        if name not in settings and not DRAFT_ROLE.fullmatch(str(name)):
            elsewhere = deeper_paths(str(name), config)
            raise InputError(unknown("setting", str(name), settings, elsewhere=elsewhere))
    weights = config.get(WEIGHTS, STAND_IN)
    if weights not in (STAND_IN, OWN_WEIGHTS):
        files = [path for folder in conf_folders() for path in (folder / WEIGHTS).glob("*.yaml")]
        require_choice("choice of weights", weights, [path.stem for path in files])


def deeper_paths(name: str, settings: Mapping[str, Any], section: str = "") -> list[str]:
    """Where sections within some settings have one of this name: at most three paths, short ones first."""
    paths = [f"{section}.{path}".lstrip(".") for path in _paths_within(name, settings)]
    return sorted(paths, key=lambda path: path.count("."))[:3]


def _paths_within(name: str, settings: Mapping[str, Any]) -> Iterator[str]:
    for key, content in settings.items():
        if key in NO_SECTIONS or not isinstance(content, Mapping):
            continue
        if name in content:
            setting = content[name]
            if not isinstance(setting, Mapping):
                yield f"{key}.{name}"
            elif "value" in setting:  # a device's number, beside its source
                yield f"{key}.{name}.value"
        yield from (f"{key}.{path}" for path in _paths_within(name, content))


def require_no_names(content: Mapping[str, Any], path: str) -> None:
    """InputError for a name where a file about the whole configuration has a section (`method: std`)."""
    for name, value in content.items():
        if name in (*SECTION_OPTIONS, "draft") and isinstance(value, str) and not value.startswith("${"):
            raise InputError(
                f"{path} has {name}: {value}, and {name} is a section of settings; a file chooses one in its "
                f"defaults list, as in `- override /{SECTION_OPTIONS.get(name, f'model@{name}')}: {value}`"
            )


def check_sections(config: Mapping[str, Any], group: str) -> None:
    """InputError unless the sections that a cell needs are mappings, and the chosen ones have a name.

    Args:
        config: a resolved configuration.
        group: the group of the cell's component.
    """
    drafts = [str(name) for name in config if str(name) == "draft" or DRAFT_ROLE.fullmatch(str(name))]
    for name in ("device", "dataset", "target", group, *(d for d in drafts if config[d] is not None)):
        section = config.get(name)
        if not isinstance(section, Mapping):
            option = SECTION_OPTIONS.get(name, f"model@{name}")
            raise InputError(f"{name} is {section!r}; choose one with {option}=NAME")
        if not isinstance(section.get("name"), str) or not section["name"]:
            raise InputError(f"{name}.name is {section.get('name')!r}; it must be a text")
    for name in (*OPTIONAL_SECTIONS, "trace", "engine"):
        if config.get(name) is not None and not (isinstance(config[name], Mapping) and config[name]):
            raise InputError(
                f"{name} is {config[name]!r}; choose one with {SECTION_OPTIONS[name]}=NAME, or null for none"
            )
    for name in ("sampling", "corpus"):
        _require_mapping(config, name)


def check_places(config: Mapping[str, Any]) -> None:
    """Check what decides where a run writes, before anything is written.

    Raises:
        InputError: `name` leaves the folders of results and outputs, or a folder has no name.
    """
    name = config.get("name")
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name) or len(name) > LONGEST_NAME:
        raise InputError(
            f"name is {name!r}; it must be at most {LONGEST_NAME} letters, digits, - or _, with / between "
            "parts, none of which begins with a dot: results and timelines are stored under it"
        )
    for setting in FOLDER_SETTINGS:
        folder = config.get(setting)
        if not isinstance(folder, str) or not folder.strip() or not folder.isprintable():
            raise InputError(f"{setting} is {folder!r}; it must be the path of a folder")
    if not isinstance(config.get("data_dir"), str | None):
        raise InputError(f"data_dir is {config['data_dir']!r}; it must be the path of a folder, or null")
    _require_mapping(config, "wandb")


def _require_mapping(config: Mapping[str, Any], name: str) -> None:
    if not isinstance(config.get(name), Mapping):
        section = config.get(name)
        raise InputError(f"{name} is {section!r}; it must be a mapping, such as {EXAMPLES[name]}")
