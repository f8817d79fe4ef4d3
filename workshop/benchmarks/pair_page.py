"""Writes the page of measured answers: a README, a CSV, a picture, and the runs themselves.

Owns how figures are shown; the words are in pair_page.md.j2. Must not know how figures are computed.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from repro.core.digits import csv_text, in_ten_digits
from repro.core.errors import InputError
from repro.records.record import write_atomically
from repro.reports.comparison.comparison import Comparison, Figure, in_unit
from repro.reports.figures.paint import GREY, OUR_COLOUR, PAPER_COLOUR, canvas, export, tidy
from repro.reports.reference.reference import PublishedCell, find, load_cells
from workshop.benchmarks.alternating import Interval, ends
from workshop.benchmarks.pair_emulated import PACE, EmulatedMachine, Predictions, target_texts, verdict
from workshop.benchmarks.pair_figures import CELL, COLUMNS, frame, is_null, judged, order, over_datasets, rows
from workshop.benchmarks.pair_parts import PARTS, Plan, Stored
from workshop.benchmarks.pair_run import NULL, Answer, cell_of
from workshop.validation.this_machine.page import errors, framed
from workshop.validation.this_machine.predicting import predictions

APART = 0.1
VERDICTS = ("equal", "tie", "differs")
BASES = {name: part.arms[0] for name, part in PARTS.items()}
HEADINGS = (
    *("dataset", "arm", "n", "tokens/s", "tokens a pass", "times the base", "of the floor"),
    *("emulated: tokens/s", "error", "times the base", "equal, tie, differs"),
)
ERRORS = (
    *("cells", "n", "median error", "median size", "worst", "of the ratio, median size"),
    *("pairs in the right order", f"of those over {APART:.0%} apart"),
)
CLAIMS = (
    *(
        (("lever", other), f"lever.fig10.geomean_speedup.{other}")
        for other in ("flash_ar", "chain_sd", "edgellm")
    ),
    (("edgellm", "flash_ar"), "edgellm.text.iv_c.speedup_spl"),
    (("edgellm", "chain_sd"), "edgellm.text.iv_c.speedup_sp.phone"),
)
"""A method over another one, and the printed ratio: EdgeLLM's SPL reads ahead, its SP drafts a chain."""


def say(stage: str, done: int, total: int) -> None:
    """Print progress to stderr."""
    print(f"\r{stage} {done} of {total}", end="" if done < total else "\n", file=sys.stderr, flush=True)


def answers_of(plan: Plan, known: Stored) -> list[Answer]:
    """The stored answers of a plan; InputError if there is none."""
    asked = set(plan.units())
    answers = [answer for answer in known.answers if answer.unit in asked]
    if not answers:
        raise InputError("nothing of what is asked for is stored; run the command without --report first")
    return answers


def by_arm(plan: Plan, answers: list[Answer]) -> list[Answer]:
    """Answers by part, dataset and arm, in the order of the part; arms that it lacks come last."""
    arms = {name: [*part.arms, *(answer.unit.arm for answer in answers)] for name, part in PARTS.items()}

    def place(answer: Answer) -> tuple[int, int, int]:
        unit = answer.unit
        return [*PARTS].index(unit.part), plan.datasets.index(unit.dataset), arms[unit.part].index(unit.arm)

    return sorted(answers, key=place)


def compared(
    plan: Plan, answers: list[Answer], machine: EmulatedMachine | None, kept: Path
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """All answers, each judged by the target's own text; and the figures of each part, dataset and arm."""
    floors: list[float | None] = []
    verdicts, cells = list[str](), dict[tuple[str, str], Any]()
    for answer in answers:
        part, dataset = place = answer.unit.part, answer.unit.dataset
        if place not in cells:
            cell, _ = cell_of(BASES[part], dataset, plan.settings(part))
            cost = cell.target.model_cost
            pass_bytes = cost.shape.layers * cost.layer_bytes + cost.head(1)[1]
            cells[place] = cell, target_texts(cell, say), pass_bytes
        cell, texts, pass_bytes = cells[place]
        verdicts.append(verdict(answer, cell, texts[answer.unit.prompt]))
        if PARTS[part].streamed:
            floors.append(answer.read_bytes / PACE)
        else:
            floors.append(answer.passes * pass_bytes / machine.bandwidth if machine else None)
    emulated = Predictions(machine, plan, kept, say) if machine else None
    units = {(a.unit.part, a.unit.dataset, a.unit.arm): a.unit for a in reversed(answers)}
    predicted = {place: emulated.of(unit) if emulated else None for place, unit in units.items()}
    whole = frame(answers, floors, verdicts)
    return whole, rows(whole, BASES, predicted)


def number(value: float | None, form: str) -> str:
    """A number in words; `-` if there is none."""
    return "-" if value is None or pd.isna(value) else format(value, form)


def with_ends(value: float | None, interval: Interval | None) -> str:
    """A number with its interval, if there is one."""
    return number(value, ".3g") + (f" ({ends(interval)})" if interval else "")


def cells(r: Any) -> list[str]:
    """A row as the page shows it."""
    return [
        r.dataset,
        f"`{r.arm}`",
        f"{r.prompts} x {r.rounds}",
        with_ends(r.tokens_per_s, r.speed_interval),
        f"{r.acceptance:.2f}",
        "1" if r.is_base else with_ends(r.ratio, r.ratio_interval),
        number(r.floor, ".0%"),
        number(r.predicted, ".3g"),
        number(r.error, "+.0%"),
        number(r.emulated_ratio, ".2f"),
        ", ".join(str(r.verdicts.get(name, 0)) for name in VERDICTS),
    ]


def ratio_lines(answers: pd.DataFrame) -> Iterator[list[str]]:
    """Each arm over its part's base, over all datasets."""
    for part in answers["part"].unique():
        base, *arms = PARTS[part].arms
        for arm in arms:
            if ratio := over_datasets(answers, part, arm, base):
                yield [part, f"`{arm}`", f"`{base}`", with_ends(*ratio)]


def claim_lines(answers: pd.DataFrame, figures: pd.DataFrame) -> Iterator[list[str]]:
    """What the papers claim of streamed targets, our ratio with its verdict, and the GB that both held."""
    published = load_cells()
    by_arm = figures.groupby(["part", "arm"])
    prompts, held = by_arm["prompts"].sum(), by_arm["held_gb"].max()
    for part in (name for name in answers["part"].unique() if PARTS[name].streamed):
        arms = {arm.split(":")[0]: arm for arm in reversed(PARTS[part].arms) if not arm.endswith(NULL)}
        for (method, other), cell in CLAIMS:
            if ratio := over_datasets(answers, part, arms[method], arms[other]):
                printed = find(published, cell)
                values = dict.fromkeys(f"{end:g}" for end in (printed.value_low, printed.value_high) if end)
                yield [
                    part,
                    f"{method} over {other}",
                    " to ".join(values),
                    with_ends(*ratio),
                    claim_verdict(printed, *ratio, int(prompts[part, arms[method]])),
                    f"{held[part, arms[method]]:.2f}; {held[part, arms[other]]:.2f}",
                ]


def claim_verdict(printed: PublishedCell, ratio: float, interval: Interval | None, prompts: int) -> str:
    """The project's verdict (docs/evidence.md) on a printed ratio by one over so many prompts."""
    figure, value = Figure(ratio, interval), in_unit(printed, "x", printed.id)
    return str(Comparison(printed, value, "x", (figure,), prompts).verdict)


def null_lines(answers: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """What the arms that repeat the base say of noise."""
    for part in answers["part"].unique():
        base, null, *_ = PARTS[part].arms
        if ratio := over_datasets(answers, part, null, base):
            mean, interval = ratio
            words = f"{mean:.3f}"
            if interval:
                low, high = interval
                words += f" ({low:.3f} to {high:.3f}, 1 {'within' if low <= 1 <= high else 'outside'})"
            yield part, words


def error_lines(figures: pd.DataFrame) -> Iterator[list[str]]:
    """The emulator's errors by part and by method."""
    measured = figures[~is_null(figures)]
    method = "`" + measured["arm"].str.partition(":")[0] + "`"
    groups = [("all", measured), *measured.groupby("part", sort=False), *measured.groupby(method)]
    for name, group in groups:
        if found := judged(group):
            (right, pairs), (clear, apart) = order(group), order(group, APART)
            yield [
                name,
                str(found.cells),
                f"{found.signed:+.0%}",
                f"{found.absolute:.0%}",
                f"{found.worst:.0%}",
                number(found.ratio, ".0%"),
                f"{right} of {pairs}" if pairs else "-",
                f"{clear} of {apart}" if apart else "-",
            ]


def page(
    plan: Plan,
    known: Stored,
    machine: EmulatedMachine | None,
    answers: pd.DataFrame,
    figures: pd.DataFrame,
) -> str:
    """The README."""
    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=folder, undefined=StrictUndefined, keep_trailing_newline=True)
    remarks = {
        part: list(dict.fromkeys((a.arm, note) for a in group.itertuples() for note in a.notes))
        for part, group in answers.groupby("part")
    }
    passes = None
    if machine:
        of_passes = errors(framed([*predictions(machine.measured, PACE)]))
        named = {"median": "median", "p90": "p90", "null": "null_median"}
        passes = {name: f"{of_passes[error]:.1f}%" for name, error in named.items()}
    return environment.get_template("pair_page.md.j2").render(
        head=known.head,
        answers=len(answers),
        tokens=plan.tokens,
        prompts=figures["prompts"].max(),
        rounds=figures["rounds"].max(),
        thrown=len(known.thrown),
        busiest=f"{answers['others'].max():.0%}",
        verdicts=Counter(answers["verdict"]),
        headings=HEADINGS,
        parts=[
            (part, [cells(r) for r in group.itertuples()], remarks[part])
            for part, group in figures.groupby("part", sort=False)
        ],
        ratios=list(ratio_lines(answers)),
        nulls=list(null_lines(answers)),
        claims=list(claim_lines(answers, figures)),
        passes=passes,
        error_headings=ERRORS,
        errors=list(error_lines(figures)),
    )


def draw(figures: pd.DataFrame) -> bytes:
    """Times the base, measured with its interval, and emulated: a panel a part, as PNG."""
    parts = list(figures["part"].unique())
    picture = canvas(3.4 * len(parts), 3.6)
    panels = picture.subplots(1, len(parts), squeeze=False)[0]
    for panel, part in zip(panels, parts, strict=True):
        shown = figures[(figures["part"] == part) & figures["ratio"].notna()][::-1]
        for at, r in enumerate(shown.itertuples()):
            panel.barh(at, r.ratio, color=OUR_COLOUR, height=0.6)
            if r.ratio_interval:
                panel.hlines(at, *r.ratio_interval, color=GREY, linewidth=1.2)
            if pd.notna(r.emulated_ratio):
                panel.plot(r.emulated_ratio, at, "D", color=PAPER_COLOUR, markersize=4)
        panel.axvline(1.0, color=GREY, linewidth=0.8)
        panel.set_yticks(range(len(shown)), list(shown["arm"] + ", " + shown["dataset"]), fontsize=6)
        panel.set_title(part, fontsize=9)
        panel.set_xlabel("times the base", fontsize=8)
        tidy(panel, "x")
    picture.suptitle("Bars and lines: measured, with 95% intervals. Diamonds: emulated", fontsize=8.5)
    return export(picture)


def write_page(folder: Path, plan: Plan, known: Stored, kept: Path) -> None:
    """Write the page, `rows.csv`, `figure.png` and `runs.jsonl.gz`; predictions are kept in a file.

    Raises:
        InputError: no answer of the plan is stored.
    """
    stored = answers_of(plan, known)
    machine = EmulatedMachine(known.probes) if known.probes else None
    answers, figures = compared(plan, by_arm(plan, stored), machine, kept)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "README.md", page(plan, known, machine, answers, figures))
    lines = [[value(cell) for cell in r] for r in figures[[*CELL, *COLUMNS]].itertuples(index=False)]
    write_atomically(folder / "rows.csv", csv_text([[*CELL, *COLUMNS], *lines]))
    write_atomically(folder / "figure.png", draw(figures))
    runs: list[Mapping[str, Any]] = [{"head": known.head}, *(answer.fields() for answer in stored)]
    runs += [{"probe": probe} for probe in known.probes] + list(known.thrown)
    packed = "".join(json.dumps(in_ten_digits(each), separators=(",", ":")) + "\n" for each in runs)
    write_atomically(folder / "runs.jsonl.gz", gzip.compress(packed.encode(), mtime=0))


def value(cell: Any) -> object:
    """A cell of the CSV."""
    if isinstance(cell, dict):
        return " ".join(f"{name}={count}" for name, count in sorted(cell.items()))
    if isinstance(cell, tuple):
        return " ".join(f"{end:.6g}" for end in cell)
    return None if pd.isna(cell) else cell
