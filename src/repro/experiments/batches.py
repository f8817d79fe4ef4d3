"""Batches of a sweep's cells for an engine that runs them elsewhere: what goes out, and what comes back.

Cells of a batch have one target, draft and dataset, so that a worker loads them once; a batch takes one to
five minutes by the timings. Must not know which engine runs them.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from repro.experiments.computing import Computed

BATCH_S = 120.0
"""Seconds that a batch takes by the timings; one cell at least."""

MOST = 100
"""Cells of a batch at most."""

WINDOW = 400
"""Cells that are planned and wait for a batch of their kind, at most."""

LOSSES = 3
"""Workers that may die in a cell before it is given up."""

Kind = tuple[str, ...]


@dataclass(frozen=True)
class WaitingCell:
    """A cell that is to be run.

    Attributes:
        number: its place in the sweep.
        config: its resolved configuration.
        kind: what it has in common with cells of its batch.
        on_real_device: whether nothing else may run on a real device meanwhile.
    """

    number: int
    config: Mapping[str, Any]
    kind: Kind
    on_real_device: bool = False


@dataclass(frozen=True)
class CellBatch:
    """Cells that go out together. `number` counts batches."""

    number: int
    cells: Sequence[WaitingCell]


@dataclass(frozen=True)
class Began:
    """A worker begins a cell of a batch."""

    cell: int


@dataclass(frozen=True)
class Doing:
    """What a cell is doing: the stage of its work, and the steps done of all."""

    cell: int
    stage: str
    done: int
    total: int


@dataclass(frozen=True)
class Ended:
    """What came of a cell, or the sentence why nothing did."""

    cell: int
    outcome: Computed | str


@dataclass(frozen=True)
class Gone:
    """A batch is over: a worker has run it, or died; then `lost` says so."""

    batch: int
    lost: bool = False


Event = Began | Doing | Ended | Gone


class CellEngine(Protocol):
    """Runs batches somewhere."""

    def run(self, next_batch: Callable[[int], CellBatch | None]) -> Iterator[Event]:
        """Run batches until there are none.

        A batch may be lost, and its cells then come in another one; so there may be another batch after
        `None`, until all that went out is gone.

        Args:
            next_batch: gives the next batch, for so many workers; `None` if there is none now.
        """
        ...


@dataclass
class Batches:
    """The cells that wait, those that are out, and what is known of lost ones.

    Attributes:
        cells: all cells in their order; it is read as far as needed.
        cells_left: how many of the sweep have not ended.
        expected: how many seconds the cell of a number takes, as far as is known now.
    """

    cells: Iterator[WaitingCell]
    cells_left: Callable[[], int]
    expected: Callable[[int], float | None]
    _waiting: dict[Kind, deque[WaitingCell]] = field(default_factory=dict)
    _out: dict[int, CellBatch] = field(default_factory=dict)
    _ended: set[int] = field(default_factory=set)
    _running: dict[int, None] = field(default_factory=dict)
    _losses: Counter[int] = field(default_factory=Counter)
    _count: int = 0
    _all_read: bool = False

    def next_batch(self, workers: int) -> CellBatch | None:
        """The next batch for so many workers; `None` if no cell waits, or those that do have to."""
        cells: list[WaitingCell] = []
        while not cells:
            kind = self._next_kind(workers)
            if kind is None:
                return None
            waiting = self._waiting[kind]
            count = min(len(waiting), self._size(waiting[0], workers))
            taken = [waiting.popleft() for _ in range(count)]
            cells = [cell for cell in taken if cell.number not in self._ended]  # one may come back late
            if not waiting:
                del self._waiting[kind]
        self._count += 1
        batch = CellBatch(self._count, cells)
        self._out[batch.number] = batch
        return batch

    def see(self, event: Event) -> dict[int, bool]:
        """Take an event into account.

        Returns the cells that ran on a worker that died, and whether they are given up.
        """
        if isinstance(event, Began):
            self._running[event.cell] = None
        elif isinstance(event, Ended):
            self._running.pop(event.cell, None)
            self._ended.add(event.cell)
        elif isinstance(event, Gone) and event.batch in self._out:
            return self._plan_again(self._out.pop(event.batch), event.lost)
        return {}

    def _plan_again(self, batch: CellBatch, lost: bool) -> dict[int, bool]:
        """Let the cells wait again that have not come back, and blame the one that ran."""
        ran: dict[int, bool] = {}
        for cell in batch.cells:
            if cell.number in self._ended:
                continue
            if cell.number in self._running:
                del self._running[cell.number]
                self._losses[cell.number] += lost
                ran[cell.number] = self._losses[cell.number] >= LOSSES
            if ran.get(cell.number):
                self._ended.add(cell.number)
            else:
                self._waiting.setdefault(cell.kind, deque()).append(cell)
        return ran

    def _next_kind(self, workers: int) -> Kind | None:
        """The kind of the next batch: one of which a whole batch waits, else the one that waits longest."""
        while True:
            kinds = [kind for kind, waiting in self._waiting.items() if self._may_start(waiting[0])]
            for kind in kinds:
                if len(self._waiting[kind]) >= self._size(self._waiting[kind][0], workers):
                    return kind
            if self._all_read or sum(map(len, self._waiting.values())) >= WINDOW:
                return kinds[0] if kinds else None
            cell = next(self.cells, None)
            if cell is None:
                self._all_read = True
            else:
                self._waiting.setdefault(cell.kind, deque()).append(cell)

    def _may_start(self, cell: WaitingCell) -> bool:
        """Whether nothing runs on a real device, if the cell does."""
        return not cell.on_real_device or not any(
            batch.cells[0].on_real_device for batch in self._out.values()
        )

    def _size(self, cell: WaitingCell, workers: int) -> int:
        """Cells of a batch of this kind: by the timings, and so that all workers have some."""
        seconds = self.expected(cell.number)
        if self._losses[cell.number] or seconds is None:
            return 1
        by_time = math.floor(BATCH_S / max(seconds, 1e-3))
        share = math.ceil(self.cells_left() / (2 * workers))
        return max(1, min(by_time, share, MOST))
