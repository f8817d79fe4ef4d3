"""Which system answers first, by a comparison's committed figures and all that may move them.

Owns the sentences below the tables of `compare/`, and README's short table. The figure that decides is the
seconds of the whole answer. Two systems are open where their seconds cross by one of four things: which
prompts were asked, which assumed numbers of the machine were drawn, the paper's own engine in place of public
ones, and how often the draft agrees; or by all together. Must not know how cells are computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

from repro.core.reading import csv_reader
from repro.records.record import Record, Round
from repro.records.results import Results, open_results
from repro.reports.formats.layout import fixed_point, signs
from repro.reports.tables.bands import BANDS_PATH, read_draws
from repro.reports.tables.table import MARKS

OWN_ENGINE_SUFFIX, FLASH_SUFFIX = "_own", "_streamed"
"""Ends of the ids of rows: a paper's own engine, and a target that is streamed from flash."""

PLAIN_PREFIX = "std_"
"""Begins the ids of plain decoding on one processor, of which the row `std` is the best."""

PROMPTS, MACHINE, ENGINE, AGREEMENT = "the prompts", "assumed numbers", "the engine", "the draft's agreement"
MOVER_KINDS = (PROMPTS, ENGINE, AGREEMENT)
"""What may move a figure; `MOVER_KINDS` one system alone, and `MACHINE` all systems on it."""

PROMPT_LENGTHS = ("64", "1024")
README_COLUMNS = {
    "answer_64": "answer, 64 (s)",
    "answer_1024": "answer, 1,024 (s)",
    "answer_joules_64": "energy, 64 (J)",
    "answer_joules_1024": "energy, 1,024 (J)",
    "memory": "GB",
    "needs": "needs beside the model",
}
COLUMN_DIGITS = {"memory": 1}

Ends = tuple[float, float]


@dataclass(frozen=True)
class SystemAnswer:
    """A row of a comparison at one length of prompts.

    Attributes:
        id: the row's id; name: as the table prints it.
        seconds: of the whole answer.
        joules: of the whole answer; `None` if unknown.
        ends: the range of its seconds by what moves them, `MACHINE` left out.
        draws: its seconds on each drawn machine; empty without bands.
        shortened: whether a smaller model answers a shorter prompt, so that it is first at another task.
    """

    id: str
    name: str
    seconds: float
    joules: float | None
    ends: dict[str, Ends]
    draws: tuple[float, ...]
    shortened: bool = False


def what_reorders(leader: SystemAnswer, follower: SystemAnswer) -> list[str]:
    """What may turn the order of a row and of one that answers later; nothing if their order is certain.

    One thing at a time; then all that move one of them, together on each drawn machine.
    """
    kinds = [kind for kind in MOVER_KINDS if kind in leader.ends or kind in follower.ends]
    movers = [kind for kind in kinds if _ends_by(leader, kind)[1] >= _ends_by(follower, kind)[0]]
    draw_pairs = list(zip(leader.draws, follower.draws, strict=False))
    if any(a >= b for a, b in draw_pairs):
        movers.append(MACHINE)
    if not movers:
        latest = max(_ends_by(leader, kind)[1] for kind in ("", *kinds)) / leader.seconds
        earliest = min(_ends_by(follower, kind)[0] for kind in ("", *kinds)) / follower.seconds
        if any(a * latest >= b * earliest for a, b in [(leader.seconds, follower.seconds), *draw_pairs]):
            return [" and ".join([*kinds, *([MACHINE] if draw_pairs else [])])]
    return movers


def _ends_by(answer: SystemAnswer, kind: str) -> Ends:
    return answer.ends.get(kind, (answer.seconds, answer.seconds))


@dataclass(frozen=True)
class SystemTable:
    """A committed table of `compare/`, as its files have it."""

    root: Path
    table: str

    @cached_property
    def lines(self) -> dict[tuple[str, str], dict[str, str]]:
        """The lines of its CSV file by row and column."""
        with csv_reader(self.root / self.table / "table.csv") as reader:
            return {(line["id"], line["column"]): line for line in reader if line["column"] != "aside"}

    @cached_property
    def names(self) -> dict[str, str]:
        """The rows that have a cell, with their names."""
        return {row: line["row"] for (row, column), line in self.lines.items() if line["ours"]}

    def rows(self, length: str, is_streamed: bool) -> list[SystemAnswer]:
        """The rows at a length of prompts, in memory or streamed, the earliest answer first.

        A paper's own engine is no row, but an end of its system's; of plain decoding the best one is a row.
        """
        draws_by_figure = read_draws(self.root)
        answers = []
        for row, name in self.names.items():
            if (
                OWN_ENGINE_SUFFIX in row
                or row.startswith(PLAIN_PREFIX)
                or (FLASH_SUFFIX in row) != is_streamed
            ):
                continue
            line = self.lines[row, f"answer_{length}"]
            if not line["ours"]:
                continue
            seconds, joules = float(line["ours"]), self.lines[row, f"answer_joules_{length}"]["ours"]
            draws = draws_by_figure.get((self.table, row, f"answer_{length}"), ())
            ends = dict(self._ends(row, length, seconds))
            long_answer = self.lines[row, f"answer_{PROMPT_LENGTHS[-1]}"][
                "ours"
            ]  # the length that acceptance is of
            shortened = bool(long_answer) and not self.lines[row, "acceptance"]["ours"]
            answers.append(
                SystemAnswer(row, name, seconds, float(joules) if joules else None, ends, draws, shortened)
            )
        return sorted(answers, key=lambda row: row.seconds)

    def _ends(self, row: str, length: str, seconds: float) -> Iterator[tuple[str, Ends]]:
        line = self.lines[row, f"answer_{length}"]
        if line["low"]:
            yield PROMPTS, (float(line["low"]), float(line["high"]))
        engine_rows = [name for name in self.names if name.startswith(row + OWN_ENGINE_SUFFIX)]
        figures = [self.lines[name, f"answer_{length}"]["ours"] for name in engine_rows]
        engine_seconds = [float(figure) for figure in figures if figure]
        if engine_seconds:
            yield ENGINE, (min(seconds, *engine_seconds), max(seconds, *engine_seconds))
        if agreement_ends := self._agreement_ends(line["cell"]):
            yield AGREEMENT, agreement_ends

    def _agreement_ends(self, cell: str) -> Ends | None:
        """The ends by agreement of the cell whose key begins so."""
        for member in self._results.members(self.table) if cell else ():
            if member.key.startswith(cell):
                (record,) = self._results.records([member])
                return answers_by_agreement(record, self._results.rounds(record.key))
        return None

    @cached_property
    def _results(self) -> Results:
        return open_results(self.root)

    @property
    def numbers(self) -> tuple[int, int]:
        """How many of the machine's numbers were drawn for the bands, and how many it has."""
        with csv_reader(self.root / BANDS_PATH) as reader:
            for line in reader:
                if line["table"] == self.table:
                    return int(line["assumed"]), int(line["numbers"])
        return 0, 0


def answers_by_agreement(record: Record, rounds: Sequence[Round]) -> Ends | None:
    """Seconds of the whole answer were no drafted token wrong, and were all; `None` without drafting.

    Prompts and the time of a round stay. A round then emits the branch that came furthest and a token, or one
    token.
    """
    reaches = [float(line["reach"] or 0) for line in rounds if line.get("rows")]
    values = {name: float(v) for name, v in record.values.items() if isinstance(v, (int, float))}
    if not any(reaches) or "prefill_seconds" not in values:
        return None
    prefill_s, decode_s = (values[name] / values["prompts"] for name in ("prefill_seconds", "decode_seconds"))
    plain_seconds = decode_s * values["acceptance_length"]
    return prefill_s + plain_seconds / (1 + fmean(reaches)), prefill_s + plain_seconds


def sentences(systems: SystemTable) -> list[str]:
    """The advice of a comparison, one sentence for each place of the target and length of prompts."""
    orders = [
        f"{storage}, behind {int(length):,} tokens: {_order(rows)}"
        for is_streamed, storage in ((False, "In memory"), (True, "From flash"))
        for length in PROMPT_LENGTHS
        if (rows := systems.rows(length, is_streamed))
    ]
    return [*orders, *_bands(systems)]


def _order(rows: Sequence[SystemAnswer]) -> str:
    """Who answers first, against whom that is open and by what, and who takes least energy."""
    leader, *followers = [row for row in rows if not row.shortened]
    movers = [(row, what_reorders(leader, row)) for row in followers]
    sentence = f"{leader.name} answers first, after {_seconds(leader.seconds)} s"
    if leader.ends.get(ENGINE):
        worst_seconds = max(leader.ends[ENGINE])
        sentence += (
            f" ({_seconds(worst_seconds)} on its own engine)" if worst_seconds > leader.seconds else ""
        )
    open_systems = [
        f"{row.name} ({_seconds(row.seconds)} s; by {_join(kinds)})" for row, kinds in movers if kinds
    ]
    sentence += f"; **open** against {_join(open_systems)}" if open_systems else ""
    slower_systems = [f"{row.name} ({_seconds(row.seconds)} s)" for row, kinds in movers if not kinds]
    sentence += f"; behind it in any case: {_join(slower_systems)}" if slower_systems else ""
    small_names = [f"{row.name} ({_seconds(row.seconds)} s)" for row in rows if row.shortened]
    sentence += f"; on a smaller model and a shorter prompt: {_join(small_names)}" if small_names else ""
    energies = [(row.joules, row.name) for row in (leader, *followers) if row.joules is not None]
    joules, name = min(energies)
    return f"{sentence}. Least energy: {name}, {_seconds(joules)} J."


def _bands(systems: SystemTable) -> Iterator[str]:
    rows = [row for is_streamed in (False, True) for row in systems.rows("1024", is_streamed)]
    if not any(row.draws for row in rows):
        yield "No assumed number of the machine was drawn: what these move is not in the ranges."
        return
    assumed, total = systems.numbers
    stable = [row.name for row in rows if row.draws and max(row.draws) - min(row.draws) < 1e-3 * row.seconds]
    yield (
        f"Of the machine's {total} numbers the {assumed} assumed ones were drawn, within 30%, none that is "
        "fitted or printed" + (f". No draw moves the seconds of {_join(stable)}." if stable else ".")
    )


def short_table(systems: SystemTable) -> list[str]:
    """README's table of the rows in memory on public engines, and the legend of its marks.

    Marks of a whole row stand after its name.
    """
    rows = [row for row in systems.names if FLASH_SUFFIX not in row and OWN_ENGINE_SUFFIX not in row]
    lines = [["", *README_COLUMNS.values()], ["---"] * (1 + len(README_COLUMNS))]
    used_marks = set[str]()
    for row in rows:
        figures = {name: systems.lines[row, name] for name in README_COLUMNS}
        mark_lists = [line["marks"].split() for line in figures.values() if line["ours"]]
        shared_marks = [mark for mark in MARKS if all(mark in marks for marks in mark_lists)]
        used_marks |= {mark for marks in mark_lists for mark in marks}
        name = systems.names[row] + signs(shared_marks, ())
        lines.append([name, *(_cell_text(line, column, shared_marks) for column, line in figures.items())])
    legend = " ".join(f"{sign}: {meaning}." for mark, (sign, meaning) in MARKS.items() if mark in used_marks)
    return [*(f"| {' | '.join(line)} |" for line in lines), "", legend]


def _cell_text(line: dict[str, str], column: str, shared_marks: Sequence[str]) -> str:
    text = line["ours"]
    try:
        text = fixed_point(float(text), COLUMN_DIGITS.get(column, 1 if float(text) >= 10 else 2))
    except ValueError:
        text = text or "—"
    return text + signs(line["marks"].split(), shared_marks)


def _seconds(number: float) -> str:
    return fixed_point(number, 1 if number >= 10 else 2)


def _join(phrases: Sequence[str]) -> str:
    return ", ".join([*phrases[:-2], " and ".join(phrases[-2:])])


def readme_block(root: Path) -> str:
    """README's table of the phone."""
    return "\n".join(short_table(SystemTable(root, "compare/phone")))


def compare_block(root: Path) -> str:
    """What docs/compare.md says of both tables."""
    lines = []
    for table, machine in (("compare/phone", "On the phone"), ("compare/board", "On the board")):
        lines += [f"{machine}:", "", *(f"- {line}" for line in sentences(SystemTable(root, table))), ""]
    return "\n".join(lines).strip()
