"""A folder of results: loose records of running sweeps, and records packed in the folders of their tables.

Owns where a record is stored and how it moves. Must not know what a table shows. The layout and its rules are
described in docs/results.md.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from repro.core.digits import in_ten_digits
from repro.core.errors import InputError
from repro.core.paths import from_home
from repro.core.reading import require_no_link
from repro.records.blocks import write_blocks
from repro.records.locks import Lock
from repro.records.packed import (
    CELLS,
    LOOSE,
    PROVENANCE,
    Cells,
    Line,
    Member,
    all_blocks,
    folders,
    links,
    packed_line,
    read_cells,
    read_details,
    write_cells,
    write_details,
)
from repro.records.record import Record, Round, Scalar, canonical, remove_left
from repro.records.store import DETAILS, Store

OLDER = ".jsonl.gz"
"""How the names of details end in the older layout."""

Details = dict[str, dict[str, list[dict[str, Scalar]]]]
"""Detail lines by kind and key."""

log = logging.getLogger(__name__)


class Results:
    """The records of a folder of results, wherever they are stored.

    A loose record is newer than a packed one of the same key, and is preferred. `open_results` also checks
    the folder's layout.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self.loose = Store(self.root / LOOSE)

    # --- reading --------------------------------------------------------------------------------------------

    def tables(self) -> list[str]:
        """Names of all tables with cells, sorted."""
        return folders(self.root)

    def get(self, key: str) -> Record | None:
        """The record of a cell; `None` if there is none.

        Raises:
            InputError: it is corrupt; or it is not found and lines are damaged, of which one might be it.
        """
        record = self.loose.get(key) or self._packed(key)
        if record is None and (damaged := self._damaged()):
            raise InputError(damaged[0])
        return record

    def finished(self) -> frozenset[str]:
        """The keys of all finished records; what is damaged is left out."""
        packed = (key for key, (_, line) in self._lines().items() if line.content.get("status") == "done")
        return frozenset((*packed, *self.loose.finished()))

    def all(self, experiment: str | None = None) -> list[Record]:
        """All records, optionally of one experiment, sorted by key. What cannot be read is logged."""
        for sentence in [*self._damaged(), *self._outside()]:
            log.warning("%s", sentence)
        found: dict[str, Record] = {}
        for key, (_, line) in self._lines().items():
            try:
                found[key] = line.record(all_blocks(self.root))
            except InputError as wrong:
                log.warning("%s", wrong)
        found |= {record.key: record for record in self.loose.all()}
        return [found[k] for k in sorted(found) if experiment in (None, found[k].experiment)]

    def labelled(self, labels: Mapping[str, str]) -> list[Record]:
        """The records that have these labels among theirs, or among those that a table gives them."""
        blocks = all_blocks(self.root)
        lines = [line for _, line in self._lines().values() if labels.items() <= line.member.labels.items()]
        loose = [record for record in self.loose.all() if labels.items() <= record.labels.items()]
        return [*(line.record(blocks) for line in lines), *loose]

    def rounds(self, key: str) -> list[dict[str, Scalar]]:
        """The rounds of a cell; empty if there are none."""
        return self.details(key, "rounds")

    def answers(self, key: str) -> list[dict[str, Scalar]]:
        """The answers of a cell, one line for each prompt; empty if there are none."""
        return self.details(key, "answers")

    def details(self, key: str, kind: str) -> list[dict[str, Scalar]]:
        """The detail lines of a cell, of a kind in `DETAILS`; empty if there are none."""
        table, _ = self._lines().get(key, ("", None))
        if self.loose.has(key) or not table:
            return self.loose.details(key, kind)
        return read_details(self.root / table, kind).get(key, [])

    def place(self, key: str) -> Path:
        """The file that holds a cell's record: its own, or that of its first table."""
        table, _ = self._lines().get(key, ("", None))
        if table and not self.loose.get(key):
            return self.root / table / CELLS
        return self.loose.folder / f"{key}.json"

    def members(self, table: str) -> list[Member]:
        """The cells of a table; empty if it has none.

        Raises:
            InputError: a line is damaged.
        """
        return [line.member for line in self._whole(table).lines]

    def records(self, members: Iterable[Member]) -> list[Record]:
        """The records of a table's cells, with their labels in it; a cell without a record is left out."""
        return self._records(members, {key: line for key, (_, line) in self._lines().items()})

    def read(self, table: str) -> list[Record]:
        """The records of a table as last written, with its labels."""
        return self._records(self.members(table), read_cells(self.root / table).by_key)

    def _records(self, members: Iterable[Member], packed: Mapping[str, Line]) -> list[Record]:
        """`records` of cells of which some are packed."""
        blocks = all_blocks(self.root)
        found: dict[str, Record | None] = {}
        labelled = []
        for member in members:
            key = member.key
            if key not in found:
                line = packed.get(key)
                found[key] = self.loose.get(key) or (line.record(blocks) if line else None)
            if record := found[key]:
                same = record.labels == member.labels
                labelled.append(record if same else replace(record, labels=dict(member.labels)))
        return list({(r.key, canonical(r.labels)): r for r in labelled}.values())

    def problems(self) -> list[str]:
        """One sentence for each file or line that is damaged, foreign, or left behind by a killed writer."""
        said = [*self.loose.problems(), *self._damaged(), *self._outside()]
        for _, line in self._lines().values():
            try:
                line.record(all_blocks(self.root))
            except InputError as wrong:
                said.append(str(wrong))
        return said

    # --- writing --------------------------------------------------------------------------------------------

    def check_writable(self, min_bytes: int = 0) -> None:
        """Check before the run that its results can be stored; InputError otherwise."""
        self.loose.check_writable(min_bytes)

    def alone(self, key: str) -> AbstractContextManager[None]:
        """Hold the lock of a cell: other processes that compute it wait here until the block ends."""
        return self.loose.alone(key)

    def begin(self, key: str) -> None:
        """Note that a cell begins to be computed, until its record comes."""
        self.loose.begin(key)

    def has_begun(self, key: str) -> bool:
        """Whether a cell began to be computed and was interrupted or lost."""
        return self.loose.has_begun(key)

    def locked(self) -> Lock:
        """The lock of all tables, for who reads, changes and writes one; a process may hold it twice."""
        self.root.mkdir(parents=True, exist_ok=True)
        return Lock(require_no_link(self.root, self.root / ".lock"), is_singleton=True)

    def put(self, record: Record, rounds: Sequence[Round] = (), answers: Sequence[Round] = ()) -> None:
        """Store a record durably, loose until its sweep ends. A record that it replaces is kept.

        A failed record never replaces a finished one.

        Raises:
            OSError: the disk is full or read-only; earlier records are unchanged.
        """
        packed = None if record.done else self._packed(record.key)
        if packed and packed.done:
            self.loose.remember(record, {"rounds": rounds, "answers": answers})
        else:
            self.loose.put(record, rounds, answers)

    def put_answers(self, key: str, answers: Sequence[Round]) -> None:
        """Store the answers of a cell beside its record, which stays as it is and may be in another folder.

        Raises:
            OSError: the disk is full or read-only.
        """
        with self.locked():
            tables = [name for name in self.tables() if key in read_cells(self.root / name).by_key]
            if self.loose.get(key) or not tables:
                self.loose.put_answers(key, answers)
                return
            folder = self.root / min(tables)  # where details lie
            write_details(folder, "answers", {**read_details(folder, "answers"), key: answers})

    def pack(self, table: str, members: Sequence[Member]) -> None:
        """Make these cells the table's cells: move their loose records into its folder.

        Cells that the table had before and that no other table has become loose; a packed record that is
        replaced goes to its cell's history. Other tables with the same cells get the same records. Loose
        files are removed only after everything else is on the disk, so a kill at any moment loses nothing;
        what writers left that were killed is removed before.

        Raises:
            InputError: a member has no record, a line of a table is damaged, or its folder is a link.
            OSError: the disk is full or read-only.
        """
        require_no_link(self.root, self.root / table)
        with self.locked():
            for folder in (self.root, self.root / table):
                remove_left(folder)
            self.loose.remove_left()
            if not self._is_packed(table, members):
                _Packing(self, table, members).run()

    def _is_packed(self, table: str, members: Sequence[Member]) -> bool:
        """Whether a table has these cells already, and none of them a newer record."""
        before = {(m.key, canonical(m.labels), m.overrides) for m in self.members(table)}
        same = bool(before) and before == {(m.key, canonical(m.labels), m.overrides) for m in members}
        for kind in DETAILS if same else ():
            iter(read_details(self.root / table, kind))  # it says what is damaged
        return same and not any(self.loose.has(m.key) for m in members) and not self._outside()

    # --- details --------------------------------------------------------------------------------------------

    def _lines(self) -> Mapping[str, tuple[str, Line]]:
        """Each packed cell's first table and its line there."""
        tables = self.tables()
        cells = tuple(read_cells(os.path.join(self.root, table)) for table in tables)
        return _first_lines(tuple(tables), cells)

    def _packed(self, key: str) -> Record | None:
        for table in self.tables():
            if line := read_cells(self.root / table).by_key.get(key):
                return line.record(all_blocks(self.root))
        return None

    def _damaged(self) -> list[str]:
        return [s for table in self.tables() for s in read_cells(self.root / table).damaged]

    def _outside(self) -> list[str]:
        """A sentence for what is damaged beside the lines of tables, and for links."""
        return [*all_blocks(self.root).damaged, *links(self.root)]

    def _whole(self, table: str) -> Cells:
        cells = read_cells(self.root / table)
        if cells.damaged:
            raise InputError(cells.damaged[0])
        return cells


def open_results(root: Path | str) -> Results:
    """The results in a folder, which need not exist yet.

    Raises:
        InputError: the folder has the older layout.
    """
    if found := older_details(root):
        raise InputError(
            f"{root} has the older layout, with {found[0].name} beside a table; convert it once with "
            f"`repro table --convert {shlex.quote(str(root))}`"
        )
    return Results(from_home(str(root)))


def older_details(root: Path | str) -> list[Path]:
    """The files of the older layout in a folder of results."""
    return [path for kind in DETAILS for path in sorted(Path(root).glob(f"*/**/{kind}{OLDER}"))]


class _Packing:
    """One packing of a table's cells, under the lock of the results."""

    def __init__(self, results: Results, table: str, members: Sequence[Member]) -> None:
        self.results = results
        self.table = table
        self.members = members
        self.root = results.root
        others = [name for name in results.tables() if name != table]
        self.before = {name: results._whole(name) for name in (table, *others)}
        self.blocks = all_blocks(self.root)
        if self.blocks.damaged:
            raise InputError(self.blocks.damaged[0])
        self.tables = _by_key({name: list(cells.by_key) for name, cells in self.before.items()})
        self.records: dict[str, Record] = {}
        self.details: Details = {kind: {} for kind in DETAILS}
        for key in dict.fromkeys(member.key for member in members):
            self._find(key)

    def _find(self, key: str) -> None:
        """Read a cell's record and detail lines, from its loose files or from the first table that has it."""
        loose = self.results.loose
        record = loose.get(key)
        if record:
            found = {kind: loose.details(key, kind) for kind in DETAILS}
        elif key in self.tables:
            record, found = self._old(self.before[self.tables[key]].by_key[key]), self._details(key)
        else:
            raise InputError(f"table {self.table!r} cannot have the cell {key[:12]}: it has no record")
        self.records[key] = record
        for kind in DETAILS:
            self.details[kind][key] = in_ten_digits(found[kind])

    def run(self) -> None:
        written: dict[str, str] = {}
        contents: dict[str, list[Mapping[str, Any]]] = {
            self.table: [packed_line(m, self.records[m.key], written) for m in self.members]
        }
        for name, cells in self.before.items():
            if name != self.table and (self._changed(cells) or not cells.by_key):
                contents[name] = [self._content(line, written) for line in cells.lines]
        homes = self._homes()
        self._keep_replaced()
        self._write_blocks(written)
        self._write_details(homes)
        for name, lines in contents.items():
            write_cells(self.root / name, lines)
        self._verify(homes)
        self._drop_details(homes)
        self.results.loose.forget(self.records.values())

    def _changed(self, cells: Cells) -> list[Line]:
        """Lines of other tables whose cells have a newer record now."""
        own = [line for line in cells.lines if line.key in self.records]
        return [line for line in own if self._old(line) != self.records[line.key]]

    def _content(self, line: Line, written: dict[str, str]) -> Mapping[str, Any]:
        record = self.records.get(line.key)
        return packed_line(line.member, record, written) if record else line.content

    def _old(self, line: Line) -> Record:
        return line.record(self.blocks)

    def _keep_replaced(self) -> None:
        """Store what leaves the table: dropped cells as loose records, replaced records in the history."""
        elsewhere = {k for name, cells in self.before.items() if name != self.table for k in cells.by_key}
        loose = self.results.loose
        for name, cells in self.before.items():
            for key, line in cells.by_key.items():
                newer = self.records.get(key)
                if newer is None and name == self.table and key not in elsewhere:
                    if loose.get(key) is None:
                        loose.put(self._old(line), **self._details(key))
                    elif loose.get(key) != self._old(line):
                        loose.remember(self._old(line), self._details(key))
                elif newer is not None and self._old(line) != newer:
                    loose.remember(self._old(line), self._details(key))

    def _verify(self, homes: Mapping[str, str]) -> None:
        """Read everything back before loose files are removed; RuntimeError if anything differs."""
        folder, blocks = self.root / self.table, all_blocks(self.root)
        lines = read_cells(folder).by_key
        for key, record in self.records.items():
            read = {kind: read_details(self.root / homes[key], kind).get(key, []) for kind in DETAILS}
            wanted = {kind: self.details[kind][key] for kind in DETAILS}
            if lines[key].record(blocks) != record or read != wanted:
                raise RuntimeError(f"{folder} does not give back the cell {key}; its loose files are kept")

    def _details(self, key: str) -> dict[str, list[dict[str, Scalar]]]:
        """The details of a packed cell as they were."""
        folder = self.root / self.tables[key]
        return {kind: read_details(folder, kind).get(key, []) for kind in DETAILS}

    def _write_blocks(self, written: Mapping[str, str]) -> None:
        """Write the blocks of all cells, before and after; what nothing refers to is left out."""
        reached = self.blocks.reach(line.block for cells in self.before.values() for line in cells.lines)
        kept = {**reached, **written}
        if self.blocks.texts != kept:
            write_blocks(self.root / PROVENANCE, kept)

    def _homes(self) -> dict[str, str]:
        """The table beside which details lie afterwards, by cell that this table has or had."""
        keys = {name: list(cells.by_key) for name, cells in self.before.items()} | {
            self.table: list(self.records)
        }
        concerned = {*self.records, *self.before[self.table].by_key}
        return {key: name for key, name in _by_key(keys).items() if key in concerned}

    def _write_details(self, homes: Mapping[str, str]) -> None:
        """Write details before the cells that make them count."""
        for name in sorted(set(homes.values())):
            folder, own = self.root / name, [key for key, home in homes.items() if home == name]
            for kind in DETAILS:
                more = {
                    k: self.details[kind][k] if k in self.records else self._details(k)[kind] for k in own
                }
                write_details(folder, kind, {**read_details(folder, kind), **more})

    def _drop_details(self, homes: Mapping[str, str]) -> None:
        """Remove details of cells that a table lost, or that lie beside another table."""
        for name in {name for name, cells in self.before.items() if cells.by_key.keys() & homes.keys()} | {
            self.table
        }:
            for kind in DETAILS:
                before = read_details(self.root / name, kind)
                lost = self.before[name].by_key.keys() - homes.keys() if name == self.table else ()
                kept = [key for key in before if homes.get(key, name) == name and key not in lost]
                if len(kept) < len(before):
                    write_details(self.root / name, kind, {key: before[key] for key in kept})


@lru_cache(maxsize=4)
def _first_lines(tables: tuple[str, ...], cells: tuple[Cells, ...]) -> Mapping[str, tuple[str, Line]]:
    """Each cell's first table and its line there; of cells read once, since those that changed are others."""
    found: dict[str, tuple[str, Line]] = {}
    for table, read in zip(reversed(tables), reversed(cells), strict=True):
        found |= {key: (table, line) for key, line in read.by_key.items()}
    return found


def _by_key(tables: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """The first table of each cell."""
    return {key: name for name in sorted(tables, reverse=True) for key in tables[name]}
