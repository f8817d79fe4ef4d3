"""What a run asked of its experiment, and the table of its cells.

Owns which overrides matter, where their results go and what a table says about them. Must not know Hydra, nor
how cells are computed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from repro.core.errors import InputError
from repro.core.foreign import require_recorded
from repro.core.paths import conf_dir
from repro.device.engines.engine_file import device_in_use, fitted_cells, with_explanations
from repro.experiments.composing import load_components
from repro.records.identity import portable_override
from repro.records.members import Member
from repro.records.record import Record
from repro.records.results import Results
from repro.reports.fidelity.index import write_index
from repro.reports.files import ALTERED_MARK
from repro.reports.intervals.samples import Samples
from repro.reports.reference.names import ANY_PAPER, load_names
from repro.reports.reference.reference import load_cells
from repro.reports.spec.beside import beside, label
from repro.reports.spec.spec import SEPARATOR, ColumnSpec, TableSpec
from repro.reports.tables import members as membership
from repro.reports.tables.bands import draw_counts, read_bands
from repro.reports.tables.build import build
from repro.reports.tables.how_made import BILLED_COMPONENT
from repro.reports.tables.table import Table
from repro.scenarios.generation.ranges import outside_ranges
from repro.scenarios.registry import is_current
from repro.scenarios.sections import STAND_IN, WEIGHTS

NAME_KEYS = ("experiment", "name")
"""Overrides that name an experiment."""

HARMLESS_SETTINGS = ("results", "outputs", "data_dir", "sweep", "wandb", "hydra", "memo")
"""Settings that change no outcome: where things lie and what is done with them."""

LONGEST_SUFFIX = 60
"""Characters of a folder's suffix; a longer one is cut and ends in a hash."""


@dataclass(frozen=True)
class Asked:
    """An experiment and the overrides of the command that ran it.

    Attributes:
        name: the experiment's name, which is that of its table.
        overrides: those that can change an outcome, sorted.
        axes: the settings that the experiment's own sweep varies.
    """

    name: str
    overrides: tuple[str, ...] = ()
    axes: frozenset[str] = frozenset()

    @cached_property
    def settings(self) -> tuple[str, ...]:
        """Overrides of settings that the sweep does not vary: with these it is another experiment."""
        return tuple(
            override for override in self.overrides if _key(override) not in {*self.axes, *NAME_KEYS}
        )

    @property
    def whole(self) -> bool:
        """Whether the experiment's whole sweep was asked for."""
        return not any(_key(override) in self.axes for override in self.overrides)

    @property
    def folder(self) -> str:
        """The folder of the table: the experiment's name, with the changed settings if there are any."""
        if not self.settings:
            return self.name
        suffix = re.sub(r"[^\w.=,+-]+", "_", ",".join(setting.lstrip("+") for setting in self.settings))
        if len(suffix) > LONGEST_SUFFIX:
            digest = hashlib.sha256(" ".join(self.settings).encode()).hexdigest()[:8]
            suffix = f"{suffix[: LONGEST_SUFFIX - 9]}-{digest}"
        return f"{self.name}{ALTERED_MARK}{suffix}"

    def require_rows(self, spec: TableSpec) -> None:
        """InputError for a setting of one component (`chain_sd.length`) whose cells no row would show."""
        for setting in self.settings:
            key, _, values = setting.partition("=")
            owner = beside(key)
            if owner and owner.group not in spec.rows.by:
                raise InputError(
                    f"{setting} would change no figure: {self.name} has no row for each {owner.group}, so "
                    f"none for its cells; {owner.choice} {owner.override}={values} changes those of "
                    f"{owner.component}"
                )

    def spec(self, table: TableSpec) -> TableSpec:
        """The experiment's table in the command's folder; with changed settings its title names them.

        If they are settings of what the rows are named after (`method.length`), rows have their labels'
        names instead of fixed ones, which may state another setting.
        """
        columns = _of_weights(table.columns, self.overrides)
        spec = replace(table, experiment=self.folder, columns=columns)
        if not self.settings:
            return spec
        groups = {re.split(r"[.@]", _key(setting))[0] for setting in self.settings}
        rows = spec.rows
        if groups & set(rows.by):
            rows = replace(rows, names={row: rows.printed_names(row, self.name) for row in rows.names})
        rows = replace(rows, names=_with_beside(rows.names, self.settings))
        return replace(spec, title=f"{spec.title} (with {', '.join(self.settings)})", rows=rows)


def _with_beside(names: Mapping[str, str], settings: Sequence[str]) -> dict[str, str]:
    """The rows' names, with cells of other settings of a component behind that component's row."""
    rows = {}
    for row, name in names.items():
        rows[row] = name
        row_names = row.split(SEPARATOR)
        for setting in settings:
            key, _, values = setting.partition("=")
            owner = beside(key)
            if owner is None or owner.component not in row_names:
                continue
            for value in values.split(","):
                if not owner.is_default(value):
                    row_label, row_heading = (label([(owner, value)], in_words) for in_words in (False, True))
                    new_row = SEPARATOR.join(
                        row_label if part == owner.component else part for part in row_names
                    )
                    rows[new_row] = new_row.replace(row_label, row_heading)
    return rows


def _of_weights(columns: Sequence[ColumnSpec], overrides: Iterable[str]) -> tuple[ColumnSpec, ...]:
    """The columns by what computes in their cells.

    Without a choice of weights on the command line, columns that name none are of stand-ins, if others name
    one. With one choice no column names any; with several, each column stands once for each. Cells of
    stand-ins have no label `weights`.
    """
    choices = [override.partition("=")[2].split(",") for override in overrides if _key(override) == WEIGHTS]
    neutral = tuple(column for column in columns if WEIGHTS not in column.where)
    if not choices:
        is_mixed = len(neutral) < len(columns)
        return tuple(
            _column_of(column, STAND_IN) if is_mixed and column in neutral else column for column in columns
        )
    if len(choices[-1]) == 1:
        return neutral
    return tuple(
        replace(
            _column_of(column, weights),
            heading=f"{column.heading}, {load_names().find(ANY_PAPER, WEIGHTS, weights).name}",
        )
        for column in neutral
        for weights in choices[-1]
    )


def _column_of(column: ColumnSpec, weights: str) -> ColumnSpec:
    """The column of the cells in which these weights compute."""
    label, suffix = ("", "") if weights == STAND_IN else (weights, f"_{weights}")
    return replace(column, key=f"{column.key}{suffix}", where={**column.where, WEIGHTS: label})


def matter(name: str, overrides: Iterable[str]) -> tuple[str, ...]:
    """The overrides of an experiment's command that can change an outcome, or its name, sorted.

    Folders are named by their last part, as in records.
    """
    decisive = (text for text in overrides if re.split(r"[./]", _key(text))[0] not in HARMLESS_SETTINGS)
    return tuple(sorted(portable_override(text) for text in decisive if text != f"experiment={name}"))


def made_table(
    asked: Asked,
    spec: TableSpec,
    members: Sequence[Member],
    records: Sequence[Record],
    older_record_keys: Collection[str] | None = None,
    samples: Samples | None = None,
    root: Path | None = None,
) -> Table:
    """The table of an experiment from its cells and their records.

    `spec` is what `Asked.spec` says. `samples` resample figures over prompts, and their rounds say which
    cells leave their engine's ranges; `root` is the folder of results, which may have machines' bands.
    `older` are keys of cells that an older version of a component made; `None` to find out.
    """
    older_record_keys = older_keys(records) if older_record_keys is None else older_record_keys
    records = [with_current_conf(record) for record in records]
    bands = read_bands(root) if root else {}
    keys = {record.key for record in records}
    phases_by_key = {record.key: _outside_phases(record, samples) for record in records} if samples else {}
    table = build(spec, records, load_cells(), keys, older_record_keys, samples, bands, phases_by_key)
    if root and any(entry.band for entry in table.entries):
        table = replace(table, draw_count=draw_counts(root).get(table.experiment, 0))
    return table if table.commands else replace(table, commands=membership.commands(asked.name, members))


def with_current_conf(record: Record) -> Record:
    """The record with what today's files say of the numbers of its machine, and the cells of their fits."""
    provenance = record.provenance
    if provenance.clock == "wall" or BILLED_COMPONENT not in provenance.versions:
        return record
    config = with_explanations(provenance.config)
    fitted = fitted_cells(device_in_use(config)).union(provenance.fitted)
    return replace(record, provenance=replace(provenance, config=config, fitted=tuple(sorted(fitted))))


def older_keys(records: Iterable[Record]) -> set[str]:
    """Keys of the records that an older version of a component made."""
    load_components()  # a component that is not registered has no version
    return {record.key for record in records if not _is_current(record)}


_IS_CURRENT: dict[tuple[object, ...], bool] = {}
_OUTSIDE_PHASES: dict[tuple[object, ...], tuple[str, ...]] = {}
"""What this process has found out of records, which tables share: by `_made_as`."""


def _made_as(record: Record) -> tuple[object, ...]:
    """What a record is, when it was made and by which versions."""
    return record.key, record.provenance.finished, *sorted(record.provenance.versions.items())


def _is_current(record: Record) -> bool:
    key = _made_as(record)
    if key not in _IS_CURRENT:
        _IS_CURRENT[key] = is_current(record)
    return _IS_CURRENT[key]


def _outside_phases(record: Record, samples: Samples) -> tuple[str, ...]:
    """What of a cell lies outside of its engine's ranges, as `outside_ranges` says."""
    key = _made_as(record)
    if key not in _OUTSIDE_PHASES:
        samples.totals(record)  # so that its lines are read once
        _OUTSIDE_PHASES[key] = outside_ranges(record, samples.rounds)
    return _OUTSIDE_PHASES[key]


def fitted_ids(records: Iterable[Record]) -> set[str]:
    """Ids of the published values that the records' devices and engines were fitted to."""
    return {name for record in records for name in with_current_conf(record).provenance.fitted}


def update_index(results: Results) -> None:
    """Write the README of a folder of results again."""
    with results.lock():
        write_index(results, load_cells(), conf_dir() / "reference" / "artifacts.csv")


def overrides_of(folder: str, members: Sequence[Member]) -> list[str]:
    """The overrides that compose the experiment of a table's folder, as its cells have them.

    Raises:
        InputError: one is no setting; the results may be another's.
    """
    shared_overrides = require_recorded(membership.shared_overrides(members))
    overrides = [
        override for override in shared_overrides if ALTERED_MARK in folder or _key(override) in NAME_KEYS
    ]
    has_name = any(_key(override) == "experiment" for override in overrides)
    return overrides if has_name else [f"experiment={folder.partition(ALTERED_MARK)[0]}", *overrides]


def asked_of(folder: str, members: Sequence[Member], axes: Collection[str]) -> Asked:
    """What the cells in a table's folder were asked: the settings that they share."""
    shared_overrides = membership.shared_overrides(members) if ALTERED_MARK in folder else ()
    return Asked(folder.partition(ALTERED_MARK)[0], shared_overrides, frozenset(axes))


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]
