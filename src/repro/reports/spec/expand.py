"""Writes an experiment's short `table:` section out: rows, columns, published values, footnotes.

Owns the short form, which docs/tables.md describes. The result is a section that `TableSpec` reads. Must not
know records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from repro.core.errors import InputError
from repro.core.paths import conf_folders
from repro.core.registry import unknown
from repro.reports.reference.bibliography import load_bibliography
from repro.reports.reference.names import DisplayNames, footnotes, load_names, load_notes
from repro.reports.reference.reference import PublishedCell, find, load_cells
from repro.reports.spec.columns import Column, columns_of
from repro.reports.spec.experiment import experiment_file, experiments, grid_of
from repro.reports.spec.join import Publication, coordinates, match
from repro.reports.spec.labels import Labels, defaults_of, labels_of
from repro.reports.spec.metric import MetricSpecs, load_metrics
from repro.reports.spec.spec import SEPARATOR

COMMA = ", "
TEXTS = ("cite", "notes", "footnotes")
"""Entries of a section that are lists of texts."""


def with_notes(section: Mapping[str, Any], where: str = "table") -> dict[str, Any]:
    """A section whose `notes` became `footnotes`: shared ones by name, others as they are.

    Raises:
        InputError: they are no list of texts, or a shared one is unknown.
    """
    written = dict(section)
    for name in TEXTS:
        _require_list(written, name, where, str)
    if notes := written.pop("notes", None):
        written["footnotes"] = [
            *written.get("footnotes", []),
            *footnotes(list(map(str, notes)), load_notes()),
        ]
    return written


def inherited(section: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A section with what it takes from the table of the experiment `like`; null leaves a part out.

    Raises:
        InputError: there is no such experiment, or its table takes from another one too.
    """
    given = dict(section)
    like = given.pop("like", None)
    if like is None:
        return given
    if like not in experiments():
        raise InputError(f"{where}, like: {unknown('experiment', str(like), experiments())}")
    base = experiment_file(str(like)).get("table") or {}
    if "like" in base:
        raise InputError(f"{where}, like: the table of {like!r} is like another one; name that one")
    return {name: value for name, value in {**base, **given}.items() if value is not None}


def expand(experiment: str, section: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """A section as `TableSpec.parse` reads it.

    Args:
        experiment: its name.
        section: the `table:` section.
        content: the experiment's file: `grid`, `labels`, `defaults`.

    Raises:
        InputError: something in the section or the grid is unknown, or a published value is ambiguous.
    """
    own = inherited(section, f"table {experiment!r}")
    return _Expansion(experiment, with_notes(own, f"table {experiment!r}"), content).section()


class _Expansion:
    """One section, and what is known of its cells."""

    def __init__(self, experiment: str, given: Mapping[str, Any], content: Mapping[str, Any]) -> None:
        self.given = given
        self.where = f"table {experiment!r}"
        self.rows = _rows(given.get("rows"), self.where)
        self.metrics: MetricSpecs = load_metrics()
        self.names: DisplayNames = load_names()
        self.published: Mapping[str, PublishedCell] = load_cells()
        asked = given.get("paper") or {}
        if not isinstance(asked, Mapping):
            raise InputError(
                f"{self.where}, paper: {asked!r} must be a mapping, such as {{artifact: table4}}"
            )
        folder = experiment.rpartition("/")[0]
        self.papers = load_bibliography()
        publishers = {*self.papers, *(cell.paper for cell in self.published.values())}
        # A folder of one's own is no paper, unless published values or the bibliography say that it is.
        self.paper = str(asked.get("paper", folder if folder in publishers else ""))
        if asked and self.paper not in publishers:
            raise InputError(
                f"{self.where}, paper: {unknown('paper', asked.get('paper', folder), publishers)}"
            )
        self.asked = {"paper": self.paper, **asked} if asked else {}
        self._require_artifact(self.asked, f"{self.where}, paper")
        points = grid_of(content).points()
        self.cells = labels_of(points or [], defaults_of(content), content, conf_folders())
        self.known = _values(self.cells)

    def section(self) -> dict[str, Any]:
        given = {name: value for name, value in self.given.items() if name not in ("paper", "metric")}
        rows = self.rows
        row_labels = self._row_labels(rows)
        _require_list(given, "aside", self.where)
        columns = columns_of(
            self.given.get("columns"),
            self.given.get("metric"),
            self.metrics,
            self._name,
            self.known,
            self.where,
        )
        row_names = {SEPARATOR.join(labels.values()): self._row_name(rows, labels) for labels in row_labels}
        explicit = {i: n for i, n in rows["names"].items() if i not in self._all_values()}
        explicit |= {i: rows["names"].get(i, self._name(rows["by"][-1], i)) for i in rows["refused"]}
        written = {"by": rows["by"], "names": row_names | explicit, "apart": rows["apart"]}
        given["rows"] = written | {"refused": rows["refused"], "least": rows["least"]}
        if rows["least"]:
            self.metrics.find(rows["least"])
        given["columns"] = [self._column(column, row_labels) for column in columns]
        if row_labels:
            self._require_rows(given)
        given["cite"] = sorted({*given.get("cite", ()), *([self.paper] if self.paper else [])})
        if "aside" in given:
            given["aside"] = [
                one for aside in given["aside"] for one in self._asides(aside, row_labels, row_names, columns)
            ]
        if "figure" in given:
            given["figure"] = self._figure(given["figure"], rows, columns)
        self._require_papers(given)
        return given

    def _require_artifact(self, asked: Mapping[str, Any], where: str) -> None:
        """InputError for a table or figure of which no value was published."""
        artifacts = {cell.artifact for cell in self.published.values() if cell.paper == asked.get("paper")}
        for name in Publication.of(asked, where).texts.get("artifact", ()):
            if name not in artifacts:
                raise InputError(f"{where}: {unknown('artifact', name, artifacts)}")

    def _require_rows(self, section: Mapping[str, Any]) -> None:
        """InputError for a row or a label's value that a column or the figure names and the grid lacks."""
        rows = section["rows"]["names"]
        for name in (section.get("figure") or {}).get("without") or ():
            if name not in rows:
                raise InputError(f"{self.where}, figure, without: {unknown('row', str(name), rows)}")
        for column in section["columns"]:
            where = f"{self.where}, column {column['key']!r}"
            names = [name for name in (column.get("relative_to"), *column.get("reference", {})) if name]
            for name in names:
                if name not in rows:
                    raise InputError(f"{where}: {unknown('row', name, rows)}")
            for label, value in {**column.get("where", {}), **column.get("over", {})}.items():
                known = self.known.get(label, ())
                if known and value != "" and not _is_among(str(value), known):  # "" is none of that name
                    raise InputError(f"{where}: {unknown(label, str(value), self.known[label])}")

    def _require_papers(self, section: Mapping[str, Any]) -> None:
        """InputError if a paper that the table cites, or compares with, is not in the bibliography."""
        ids = [name for column in section["columns"] for name in column.get("reference", {}).values()]
        ids += [aside["id"] for aside in section.get("aside", ()) if isinstance(aside, Mapping)]
        for name in ids:
            find(self.published, name)
        compared = {self.published[name].paper for name in ids if name in self.published}
        for paper in sorted({*section["cite"], *compared}):
            if paper not in self.papers:
                raise InputError(
                    f"{self.where} cites {paper!r}: {unknown('BibTeX entry', paper, self.papers)}"
                )

    def _all_values(self) -> set[str]:
        return {value for values in self.known.values() for value in values}

    def _name(self, label: str, value: str) -> str:
        """The display name of a label's value; the table's own names come first."""
        return self.rows["names"].get(value) or self.names.find(self.paper, label, value).name

    def _row_labels(self, rows: Mapping[str, Any]) -> list[Labels]:
        """The labels of each row, in the order of the grid's values; empty if a label cannot be told."""
        by = rows["by"]
        if any(name not in cell for cell in self.cells for name in by):
            return []
        values_of = {name: [*self.known.get(name, ()), *rows["also"].get(name, ())] for name in by}
        ranks = {
            name: {value: rank for rank, value in enumerate(dict.fromkeys(values))}
            for name, values in values_of.items()
        }
        found = {tuple(cell[name] for name in by) for cell in self.cells}
        for name, values in rows["also"].items():
            at = by.index(name)
            found |= {(*row[:at], str(value), *row[at + 1 :]) for row in found for value in values}
        ranked = sorted(found, key=lambda row: [ranks[n][v] for n, v in zip(by, row, strict=True)])
        return [dict(zip(by, row, strict=True)) for row in ranked]

    def _row_name(self, rows: Mapping[str, Any], labels: Labels) -> str:
        row = SEPARATOR.join(labels.values())
        if row in rows["names"]:
            return str(rows["names"][row])
        each = {name: self._name(name, value) for name, value in labels.items()}
        try:
            return rows["name"].format(**each) if rows["name"] else COMMA.join(each.values())
        except (LookupError, ValueError, AttributeError) as wrong:
            raise InputError(
                f"{self.where}, rows.name: {rows['name']!r} may name {', '.join(each)} in braces ({wrong!r})"
            ) from wrong

    def _asides(
        self, aside: Any, rows: Sequence[Labels], names: Mapping[str, str], columns: Sequence[Column]
    ) -> list[Any]:
        """An aside as it is; one with `paper` and `columns` for every row and column that was published."""
        if not isinstance(aside, Mapping) or "paper" not in aside:
            return [aside]
        asked = Publication.of({**self.asked, **aside["paper"]}, f"{self.where}, aside, paper")
        wanted = [str(key) for key in aside.get("columns", ())]
        found = []
        for row in rows:
            for column in (column for column in columns if column.spec["key"] in wanted):
                place = SEPARATOR.join(row.values())
                cell = self._match(row, column, asked, None)
                if cell is not None:
                    label = f"{column.spec['heading']}, {names[place]}"
                    one = {"id": cell.id, "label": label, "row": place, "column": column.spec["key"]}
                    found.append({**one, "note": aside.get("note", "")})
        return found

    def _match(
        self, row: Labels, column: Column, asked: Publication, unit: str | None
    ) -> PublishedCell | None:
        """The published cell of an entry."""
        chosen = [cell for cell in self.cells if _agree(cell, row) and _agree(cell, column.spec["where"])]
        known = self._coordinates(column, {**_common(chosen), **row, **column.spec["where"]})
        place = f"{self.where}: {SEPARATOR.join(row.values())}, column {column.spec['key']!r},"
        return match(self.published.values(), known, asked.texts, unit, place)

    def _column(self, column: Column, rows: Sequence[Labels]) -> dict[str, Any]:
        if column.reference is not None:
            return {**column.spec, "reference": self._given(column.reference, rows)}
        asked = self._asked(column)
        if asked is None:
            return column.spec
        found: dict[str, str] = {}
        for row in rows:
            cell = self._match(row, column, asked, column.spec["unit"])
            if cell is not None:
                found[SEPARATOR.join(row.values())] = cell.id
        return {**column.spec, "reference": found}

    def _given(self, reference: Any, rows: Sequence[Labels]) -> Any:
        if isinstance(reference, str):
            return {SEPARATOR.join(row.values()): reference for row in rows}
        return reference

    def _coordinates(self, column: Column, labels: Labels) -> dict[str, tuple[str, ...]]:
        """What an entry's labels say of its published value.

        A ratio of times is a speedup of its baseline.
        """
        known = coordinates(self.names, self.paper, labels)
        if not column.spec["over"]:
            return known
        base = coordinates(self.names, self.paper, column.spec["over"]).get("system", ())
        own = known.get("system", ())
        if column.spec["compare"] == "ratio" and column.cost:
            own, base = base, own
        return {**known, **({"system": own} if own else {}), **({"relative_to": base} if base else {})}

    def _asked(self, column: Column) -> Publication | None:
        """What the published cell must be, beside the entry's own labels; None for a column without any."""
        where = f"{self.where}, column {column.spec['key']!r}, paper"
        if column.paper is None and (not self.asked or not column.published):
            return None
        if column.paper is False:
            return None
        own = {"metric": list(column.published)} if column.published else {}
        given = {**own, **self.asked, **(column.paper or {})}
        self._require_artifact(given, where)
        asked = Publication.of(given, where)
        if "metric" not in asked.texts or "artifact" not in asked.texts:
            raise InputError(f"{where}: say `artifact` and `metric` of the published values")
        return asked

    def _figure(self, figure: Any, rows: Mapping[str, Any], columns: Sequence[Column]) -> Any:
        if not isinstance(figure, Mapping):
            return figure
        for name in ("columns", "without"):
            _require_list(figure, name, f"{self.where}, figure")
        keys = [column.spec["key"] for column in columns]
        units = {column.spec["key"]: column.spec["unit"] for column in columns}
        wanted = figure.get("columns") or keys
        chosen = [key for pattern in wanted for key in _matching(str(pattern), keys)]
        written = {"title": self.given.get("title", ""), **figure, "columns": chosen}
        if written.get("kind", "bars") != "bars" and chosen and chosen[0] in units:
            written.setdefault("heading", units[chosen[0]])
        if written.get("kind") == "lines":
            own = {value: self._name(n, value) for n in rows["by"] for value in self.known.get(n, ())}
            own = {value: name for value, name in own.items() if value != name}
            written["names"] = own | dict(figure.get("names") or {})
            written.setdefault("x_heading", str(written.get("x", "")))
        if written.get("kind") == "curves":
            headings = {column.spec["key"]: column.spec["heading"] for column in columns}
            written.setdefault("x_heading", headings.get(written.get("x"), ""))
        return written


def _require_list(section: Mapping[str, Any], name: str, where: str, kind: type = object) -> None:
    """InputError for an entry that is there and no list, or a list with something of another kind."""
    values = section.get(name)
    if values is not None and not isinstance(values, list | tuple):
        raise InputError(f"{where}, {name}: {values!r} must be a list")
    for number, value in enumerate(values or ()):
        if not isinstance(value, kind):
            raise InputError(f"{where}, {name}.{number}: {value!r} must be a text")


def _matching(pattern: str, keys: Sequence[str]) -> list[str]:
    if "*" not in pattern:
        return [pattern]
    return [key for key in keys if fnmatchcase(key, pattern)]


def _rows(rows: Any, where: str) -> dict[str, Any]:
    """The `rows:` of a section, which may be a label, a list of labels, or a mapping."""
    if isinstance(rows, str):
        rows = {"by": [rows]}
    elif isinstance(rows, list):
        rows = {"by": rows}
    if not isinstance(rows, Mapping) or "by" not in rows:
        raise InputError(f"{where}, rows: {rows!r} must be a label, a list of labels, or a mapping with `by`")
    choices = ("by", "names", "name", "also", "apart", "refused", "least")
    for key in rows:
        if key not in choices:
            raise InputError(f"{where}, rows: {unknown('field', str(key), choices)}")
    by = [rows["by"]] if isinstance(rows["by"], str) else rows["by"]
    names, also, name = rows.get("names") or {}, rows.get("also") or {}, rows.get("name", "")
    refused = rows.get("refused") or {}
    for part, value in (("names", names), ("also", also), ("refused", refused)):
        if not isinstance(value, Mapping):
            raise InputError(f"{where}, rows.{part}: {value!r} must be a mapping")
    lists = [("by", by), *((f"also.{label}", values) for label, values in also.items())]
    for part, value in lists:
        if not isinstance(value, list) or not value or any(isinstance(one, (list, dict)) for one in value):
            raise InputError(f"{where}, rows.{part}: {value!r} must be a list of single values")
    texts = [*((f"names.{row}", name_of) for row, name_of in names.items()), ("name", name)]
    for part, value in (*texts, *((f"refused.{row}", why) for row, why in refused.items())):
        if isinstance(value, (list, dict)) or (part == "name" and not isinstance(value, str)):
            raise InputError(f"{where}, rows.{part}: {value!r} must be a text")
    by = list(map(str, by))
    names = {str(row): str(name_of) for row, name_of in names.items()}
    also = {str(label): list(map(str, values)) for label, values in also.items()}
    for label in also:
        if label not in by:
            raise InputError(f"{where}, rows.also: {unknown('label', label, by)}")
    return {
        "by": by,
        "names": names,
        "name": name,
        "also": also,
        "apart": rows.get("apart", False),
        "refused": {str(row): str(why) for row, why in refused.items()},
        "least": str(rows.get("least", "")),
    }


def _values(cells: Sequence[Labels]) -> dict[str, list[str]]:
    """The values of each label, in their order."""
    found: dict[str, dict[str, None]] = {}
    for cell in cells:
        for name, value in cell.items():
            found.setdefault(name, {}).setdefault(value)
    return {name: list(values) for name, values in found.items()}


def _agree(cell: Labels, wanted: Mapping[str, str]) -> bool:
    return all(cell.get(name) == value for name, value in wanted.items())


def _is_among(value: str, values: Collection[str]) -> bool:
    """Whether a label has this value, also if a number is spelt otherwise (4e9)."""
    try:
        return value in values or float(value) in map(float, values)
    except ValueError:
        return False


def _common(cells: Collection[Labels]) -> dict[str, str]:
    """The labels that all cells share."""
    first, *others = cells or [{}]
    return {n: v for n, v in first.items() if all(other.get(n) == v for other in others)}
