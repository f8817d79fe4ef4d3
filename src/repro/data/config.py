"""What a dataset is: its sources, the columns that are needed, its prompt and its scoring.

Owns the types that `conf/dataset/*.yaml` fills and the errors for files that do not fit. Must not know any
dataset, nor how rows are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.registry import lookup, unknown
from repro.core.typed import typed
from repro.data.builders import TemplateText
from repro.data.scoring import Scoring
from repro.data.template import names
from repro.models.checkpoints.wheels import Wheel


@dataclass(frozen=True)
class HubSource:
    """A dataset on the Hugging Face hub, or a local folder laid out as one.

    Attributes:
        id: `owner/name` on the hub, or a path.
        config: the dataset's configuration, if it has several.
        split: which split.
        revision: a commit, tag or branch; none is the newest.
        data_files: a pattern for the split's files, for a branch of plain files without configurations.
        streaming: read only the rows that are used, without a cached copy (for datasets of gigabytes).
    """

    id: str
    config: str | None = None
    split: str = "test"
    revision: str | None = None
    data_files: str | None = None
    streaming: bool = False


@dataclass(frozen=True)
class Shots:
    """Worked examples that precede a question, from a split of their own.

    Attributes:
        file: its name in a local data folder.
        count: examples in each prompt.
        match: a column that examples share with the question (`subject`); none takes the first ones.
        hub: where else they are found.
        wheel: and where else.
    """

    file: str
    count: int
    match: str | None = None
    hub: HubSource | None = None
    wheel: Wheel | None = None


@dataclass(frozen=True)
class DatasetConfig:
    """One dataset: `conf/dataset/<name>.yaml`.

    Attributes:
        name: its short name, the one that users type.
        file: the name of its file in a local data folder.
        columns: the columns that prompts and scoring read; every row must have them.
        prompt: `builder` (one registered as `prompt`) and its fields.
        scoring: `kind` (one registered as `scoring`) and its fields.
        version: raised whenever the prompt, the scoring or the selection of rows changes.
        licence: of the rows, for the reader; rows are not part of this project.
        chat: the prompt is one user message in the target's chat template, where it has one.
        where: only rows with these values in these columns count (`app: clock`).
        min_words: only rows with at least so many words in these columns count.
        max_words: the text of these columns is cut after so many words, once its row has counted.
        shots: worked examples before each prompt.
        hub: where the rows are found if no local folder has them.
        wheel: a package of the registry that carries them (`.jsonl`, `.jsonl.gz`), where there is no hub.
    """

    name: str
    file: str
    columns: tuple[str, ...]
    prompt: dict[str, Any]
    scoring: dict[str, Any]
    version: int
    licence: str
    chat: bool = False
    where: dict[str, str] = field(default_factory=dict)
    min_words: dict[str, int] = field(default_factory=dict)
    max_words: dict[str, int] = field(default_factory=dict)
    shots: Shots | None = None
    hub: HubSource | None = None
    wheel: Wheel | None = None


def parse(mapping: Mapping[str, Any]) -> DatasetConfig:
    """A typed dataset from the content of its YAML file.

    Raises:
        InputError: a field is unknown, missing or of the wrong type; no such builder or kind of scoring; a
            template names a column that `columns` lacks; texts are cut to nothing; a chat prompt has scored
            continuations.
    """
    config = typed(DatasetConfig, mapping, f"dataset {mapping.get('name', '(without a name)')!r}")
    builder, scoring = builder_of(config), scoring_of(config)
    needed = set().union(*map(names, builder.templates())) - set(builder.adds)
    needed |= scoring.columns() | {*config.where, *config.min_words, *config.max_words}
    if missing := sorted(needed - set(config.columns)):
        raise InputError(
            f"dataset {config.name!r} uses {', '.join(missing)}, "
            f"which is not among its columns {', '.join(config.columns)}"
        )
    for column, most in config.max_words.items():
        if most < 1:
            raise InputError(
                f"dataset {config.name!r}: max_words.{column} is {most}; a text keeps at least 1 word"
            )
    if config.chat and scoring.scores_continuations:
        raise InputError(
            f"dataset {config.name!r} scores continuations ({config.scoring['kind']}), "
            "which follow plain text; set chat: false"
        )
    return config


def read_config(name: str) -> DatasetConfig:
    """The dataset of `conf/dataset/<name>.yaml`.

    Raises:
        InputError: there is no such dataset (with near misses), or its file does not fit.
    """
    folder = conf_dir() / "dataset"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        raise InputError(unknown("dataset", name, [found.stem for found in folder.glob("*.yaml")]))
    return parse(yaml.safe_load(path.read_text(encoding="utf-8")))


def builder_of(config: DatasetConfig) -> TemplateText:
    """The object that turns a row into the prompt's text."""
    built: TemplateText = _component("prompt", "builder", config.prompt, config.name)
    return built


def scoring_of(config: DatasetConfig) -> Scoring:
    """The object that turns a row into what its answer is held against."""
    built: Scoring = _component("scoring", "kind", config.scoring, config.name)
    return built


def _component(group: str, key: str, fields: Mapping[str, Any], dataset: str) -> Any:
    if key not in fields:
        raise InputError(
            f"dataset {dataset!r}: its {group} has no {key!r}, only {', '.join(fields) or 'nothing'}"
        )
    rest = {name: value for name, value in fields.items() if name != key}
    return typed(lookup(group, fields[key]), rest, f"dataset {dataset!r}, {group} {fields[key]!r}")
