"""Dataset configurations: sources, required columns, prompt and scoring.

Owns the schema of `conf/dataset/*.yaml` and the errors for invalid files. Must not know any dataset, nor how
examples are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Interval

from repro.core.bounds import Count, Text
from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.reading import read_mapping
from repro.core.registry import lookup, require_choice, unknown
from repro.core.registry import names as registry_names
from repro.core.remembered import remember
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
        split: the split.
        revision: a commit, tag or branch; None for the newest.
        data_files: a pattern for the split's files, for a branch of plain files without configurations.
        streaming: read only the examples in use, without a cached copy (for datasets of gigabytes).
    """

    id: Text
    config: Text | None = None
    split: Text = "test"
    revision: Text | None = None
    data_files: Text | None = None
    streaming: bool = False


@dataclass(frozen=True)
class Shots:
    """Few-shot examples that precede a question, from a separate split.

    Attributes:
        file: their file in a local data folder.
        count: number of examples in each prompt.
        match: use examples with the question's value in this column (`subject`); None for the first ones.
        hub: the source if no local folder has them.
        wheel: a package that contains them, tried last.
    """

    file: str
    count: Annotated[int, Interval(ge=0, le=1000)]
    match: str | None = None
    hub: HubSource | None = None
    wheel: Wheel | None = None


@dataclass(frozen=True)
class DatasetConfig:
    """One dataset: `conf/dataset/<name>.yaml`.

    Attributes:
        name: its short name, as given on the command line.
        file: its file in a local data folder.
        columns: the columns that prompts and scoring read; every example must have them.
        prompt: `builder` (registered as `prompt`) and its fields.
        scoring: `kind` (registered as `scoring`) and its fields.
        version: raised when the prompt, the scoring or the selection of examples changes.
        licence: licence of the data, for the reader; the data are not part of this project.
        chat: send the prompt as one user message in the target's chat template, if it has one.
        where: keep only examples with these values in these columns (`app: clock`).
        min_words: keep only examples with at least this many words at these paths; of a list all texts count.
        max_words: truncate these columns to this many words, after the selection.
        spread: take one example of each value of this column in turn, so that the first N examples are spread
            evenly over its values; None for the source's order.
        shots: few-shot examples before each prompt.
        hub: the source if no local folder has the file.
        wheel: a package that contains the file (`.jsonl`, `.jsonl.gz`), if the hub fails too.
    """

    name: Text
    file: Text
    columns: tuple[Text, ...]
    prompt: dict[str, Any]
    scoring: dict[str, Any]
    version: Count
    licence: Text
    chat: bool = False
    where: dict[str, str] = field(default_factory=dict)
    min_words: dict[str, Annotated[int, Interval(ge=0)]] = field(default_factory=dict)
    max_words: dict[str, Count] = field(default_factory=dict)
    spread: str | None = None
    shots: Shots | None = None
    hub: HubSource | None = None
    wheel: Wheel | None = None


@remember(64)
def parse(mapping: Mapping[str, Any]) -> DatasetConfig:
    """Parse the content of a dataset's YAML file.

    Raises:
        InputError: a field is unknown, missing or of the wrong type; the builder or kind of scoring is
            unknown; a template uses a column that `columns` lacks, or none at all; a count is out of range; a
            chat prompt has scored continuations.
    """
    config = typed(DatasetConfig, mapping, f"dataset {mapping.get('name', '(without a name)')!r}")
    builder, scoring = builder_of(config), scoring_of(config)
    inserted_names = set().union(*map(names, builder.templates()))
    if not inserted_names:
        raise InputError(
            f"dataset {config.name!r}: its prompt's template has no {{column}} for a row's values, so that "
            "all prompts were alike"
        )
    needed_columns = inserted_names - set(builder.adds)
    needed_columns |= scoring.columns() | {*config.where, *config.max_words}
    needed_columns |= {path.split(".")[0] for path in config.min_words}
    needed_columns |= {config.spread} if config.spread else set()
    if missing_columns := sorted(needed_columns - set(config.columns)):
        raise InputError(
            f"dataset {config.name!r} uses {', '.join(missing_columns)}, "
            f"which is not among its columns {', '.join(config.columns)}"
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
        InputError: there is no such dataset (with near misses), or its file is invalid.
    """
    folder = conf_dir() / "dataset"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        raise InputError(unknown("dataset", name, [file.stem for file in folder.glob("*.yaml")]))
    return parse(read_mapping(path))


def builder_of(config: DatasetConfig) -> TemplateText:
    """The dataset's prompt builder."""
    builder: TemplateText = _component("prompt", "builder", config.prompt, config.name)
    return builder


def scoring_of(config: DatasetConfig) -> Scoring:
    """The dataset's scoring."""
    scoring: Scoring = _component("scoring", "kind", config.scoring, config.name)
    return scoring


def readers(config: DatasetConfig) -> dict[str, type]:
    """The classes that make a dataset's prompts and score their answers, as far as it names any."""
    sections = (("prompt", "builder", config.prompt), ("scoring", "kind", config.scoring))
    return {group: lookup(group, str(part[key])) for group, key, part in sections if part and key in part}


def _component(group: str, key: str, fields: Mapping[str, Any], dataset: str) -> Any:
    if key not in fields:
        raise InputError(
            f"dataset {dataset!r}: its {group} has no {key!r}, only {', '.join(fields) or 'nothing'}"
        )
    require_choice(f"{group} {key}", fields[key], registry_names(group))
    settings = {name: value for name, value in fields.items() if name != key}
    return typed(lookup(group, fields[key]), settings, f"dataset {dataset!r}, {group} {fields[key]!r}")
