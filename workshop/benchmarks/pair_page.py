"""Writes the page of measured answers: a README, a CSV, a picture, and the runs themselves.

Owns the words, and where predictions are kept. Must not know how figures are computed.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from repro.core.digits import csv_text, in_ten_digits
from repro.core.errors import InputError
from repro.records.record import content_hash, write_atomically
from repro.reports.comparison.comparison import Compared as Comparison
from repro.reports.comparison.comparison import Figure
from repro.reports.comparison.published import in_unit
from repro.reports.figures.paint import GREY, OURS, PAPER, canvas, exported, tidy
from repro.reports.reference.reference import PublishedCell, find, load_cells
from workshop.benchmarks.pair_emulated import EmulatedMachine, Predicted, predicted, target_texts, verdict
from workshop.benchmarks.pair_parts import PARTS, Plan, Stored
from workshop.benchmarks.pair_report import Row, judged, order, over_datasets, row
from workshop.benchmarks.pair_run import NULL, Answer, cell_of
from workshop.benchmarks.paired import Interval, ends
from workshop.validation.this_machine.page import errors, framed
from workshop.validation.this_machine.predicting import predictions

PACE = 1e9
"""Bytes a second that reads are held to (conf/device/local_cpu.yaml)."""
APART = 0.1
VERDICTS = ("equal", "tie", "differs")


def say(stage: str, done: int, total: int) -> None:
    """Print progress to stderr."""
    print(f"\r{stage} {done} of {total}", end="" if done < total else "\n", file=sys.stderr, flush=True)


class Compared:
    """Stored answers of a plan beside what the emulator says of them."""

    def __init__(self, plan: Plan, known: Stored, kept: Path) -> None:
        """Read answers; predictions are kept in the file `kept`, which an earlier page may have written.

        Raises:
            InputError: no answer of the plan is stored.
        """
        asked = set(plan.units())
        self.plan, self.known = plan, known
        self.answers = [answer for answer in known.answers if answer.unit in asked]
        if not self.answers:
            raise InputError("nothing of what is asked for is stored; run the command without --report first")
        self.parts = [part for part in PARTS if any(a.unit.part == part for a in self.answers)]
        self._kept = kept
        self._predicted: dict[str, Any] = json.loads(kept.read_text("utf-8")) if kept.is_file() else {}

    @cached_property
    def machine(self) -> EmulatedMachine | None:
        """The emulated machine; None without a calibration."""
        return EmulatedMachine(self.known.probes, PACE) if self.known.probes else None

    @cached_property
    def rows(self) -> list[Row]:
        """A row for each part, dataset and arm, the arms in the order of the part."""
        found = []
        for part in self.parts:
            for dataset in self.plan.datasets:
                by_arm: dict[str, list[Answer]] = {arm: [] for arm in PARTS[part].arms}
                for answer in self.answers:
                    if (answer.unit.part, answer.unit.dataset) == (part, dataset):
                        by_arm.setdefault(answer.unit.arm, []).append(answer)
                found += [made for made in self._rows(part, dataset, by_arm) if made]
        return found

    @cached_property
    def bases(self) -> dict[tuple[str, str], Row]:
        """The base's row of each part and dataset."""
        return {(r.part, r.dataset): r for r in self.rows if r.arm == PARTS[r.part].arms[0]}

    def _rows(self, part: str, dataset: str, by_arm: Mapping[str, list[Answer]]) -> Iterator[Row | None]:
        base = by_arm[PARTS[part].arms[0]]
        cell, _ = cell_of(PARTS[part].arms[0], dataset, self.plan.settings(part))
        texts = target_texts(cell, say)
        cost = cell.target.model_cost
        pass_bytes = cost.shape.layers * cost.layer_bytes + cost.head(1)[1]
        for own in by_arm.values():
            if own:
                judged_as = Counter(verdict(a, cell, texts[a.unit.prompt]) for a in own)
                floors = [self._floor(a, pass_bytes) for a in own]
                yield row(own, base, floors, self._emulated(own[0], dataset), judged_as)

    def _floor(self, answer: Answer, pass_bytes: float) -> float | None:
        """Seconds that reading takes: from the disk at its pace, else of all weights once a pass."""
        if PARTS[answer.unit.part].streamed:
            return answer.read_bytes / PACE
        return answer.passes * pass_bytes / self.machine.bandwidth if self.machine else None

    def _emulated(self, answer: Answer, dataset: str) -> list[Predicted] | None:
        if self.machine is None:
            return None
        unit, part = answer.unit, PARTS[answer.unit.part]
        arm = unit.arm.removesuffix(NULL)
        machine = self.machine.sections(part.streamed, part.budget)
        settings = [*self.plan.settings(unit.part), f"max_tokens={unit.asked}"]
        key = content_hash([arm, dataset, settings, machine])
        if key not in self._predicted:
            print(f"emulating {unit.part} {dataset} {arm}", file=sys.stderr, flush=True)
            self._predicted[key] = predicted(arm, dataset, settings, machine, say)
            write_atomically(self._kept, json.dumps(self._predicted))
        return [Predicted(*each) for each in self._predicted[key]]


TABLE = (
    *("dataset", "arm", "n", "tokens/s", "tokens a pass", "times the base", "of the floor"),
    *("emulated: tokens/s", "error", "times the base", "equal, tie, differs"),
)


def cells(r: Row, base: Row | None) -> list[str]:
    """A row as the page shows it."""
    emulated = r.predicted / base.predicted if r.predicted and base and base.predicted else None
    return [
        r.dataset,
        f"`{r.arm}`",
        f"{r.prompts} x {r.rounds}",
        with_ends(r.tokens_per_s, r.speed_interval),
        f"{r.acceptance:.2f}",
        "1" if base and base.arm == r.arm else with_ends(r.ratio, r.ratio_interval),
        number(r.floor, ".0%"),
        number(r.predicted, ".3g"),
        number(r.error, "+.0%"),
        number(emulated, ".2f"),
        ", ".join(str(r.verdicts.get(name, 0)) for name in VERDICTS),
    ]


def with_ends(value: float | None, interval: Interval | None) -> str:
    """A number with its interval, if there is one."""
    return number(value, ".3g") + (f" ({ends(interval)})" if interval else "")


def number(value: float | None, form: str) -> str:
    """A number in words; `-` if there is none."""
    return "-" if value is None else format(value, form)


def table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    made = ["| " + " | ".join(words) + " |" for words in (headings, *lines)]
    return [made[0], "|" + "---|" * len(headings), *made[1:], ""]


def ratio_lines(compared: Compared) -> Iterator[list[str]]:
    """Each arm over its part's base, over all datasets."""
    for part in compared.parts:
        base, *arms = PARTS[part].arms
        for arm in arms:
            if found := over_datasets(compared.answers, part, arm, base):
                yield [part, f"`{arm}`", f"`{base}`", with_ends(*found)]


CLAIMS = (
    *(
        (("lever", other), f"lever.fig10.geomean_speedup.{other}")
        for other in ("flash_ar", "chain_sd", "edgellm")
    ),
    (("edgellm", "flash_ar"), "edgellm.text.iv_c.speedup_spl"),
    (("edgellm", "chain_sd"), "edgellm.text.iv_c.speedup_sp.phone"),
)
"""A method over another one, and the printed ratio: EdgeLLM's SPL reads ahead, its SP drafts a chain."""


def claim_lines(compared: Compared) -> Iterator[list[str]]:
    """What the papers claim of streamed targets, our ratio with its verdict, and the GB that both held."""
    published = load_cells()
    prompts, held = Counter[tuple[str, str]](), dict[tuple[str, str], float]()
    for r in compared.rows:
        prompts[r.part, r.arm] += r.prompts
        held[r.part, r.arm] = max(r.held_gb, held.get((r.part, r.arm), 0.0))
    for part in (name for name in compared.parts if PARTS[name].streamed):
        arms = {arm.split(":")[0]: arm for arm in reversed(PARTS[part].arms) if not arm.endswith(NULL)}
        for (method, other), cell in CLAIMS:
            if found := over_datasets(compared.answers, part, arms[method], arms[other]):
                printed = find(published, cell)
                values = dict.fromkeys(f"{end:g}" for end in (printed.value_low, printed.value_high) if end)
                yield [
                    part,
                    f"{method} over {other}",
                    " to ".join(values),
                    with_ends(*found),
                    claim_verdict(printed, *found, prompts[part, arms[method]]),
                    f"{held[part, arms[method]]:.2f}; {held[part, arms[other]]:.2f}",
                ]


def claim_verdict(printed: PublishedCell, ratio: float, interval: Interval | None, prompts: int) -> str:
    """The project's verdict (docs/evidence.md) on a printed ratio by one over so many prompts."""
    figure, value = Figure(ratio, interval), in_unit(printed, "x", printed.id)
    return str(Comparison(printed, value, "x", (figure,), prompts).verdict)


def null_lines(compared: Compared) -> Iterator[str]:
    """What the arms that repeat the base say of noise."""
    for part in compared.parts:
        base, null, *_ = PARTS[part].arms
        if found := over_datasets(compared.answers, part, null, base):
            mean, interval = found
            words = f"- {part}: {mean:.3f}"
            if interval:
                low, high = interval
                words += f" ({low:.3f} to {high:.3f}, 1 {'within' if low <= 1 <= high else 'outside'})"
            yield words


def error_lines(rows: Sequence[Row], compared: Compared) -> Iterator[list[str]]:
    """The emulator's errors by method and by part."""
    measured = [r for r in rows if not r.arm.endswith(NULL)]
    sets: dict[str, list[Row]] = {"all": measured}
    for r in measured:
        sets.setdefault(r.part, []).append(r)
    for r in sorted(measured, key=lambda r: r.arm):
        sets.setdefault(f"`{r.arm.split(':')[0]}`", []).append(r)
    for name, own in sets.items():
        if found := judged(own, compared.bases):
            (right, pairs), (clear, apart) = order(own), order(own, APART)
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


ERRORS = (
    *("cells", "n", "median error", "median size", "worst", "of the ratio, median size"),
    *("pairs in the right order", f"of those over {APART:.0%} apart"),
)


def page(compared: Compared) -> list[str]:
    """The lines of the README."""
    known, plan = compared.known, compared.plan
    head = known.head
    busiest = max(a.others for a in compared.answers)
    kinds = Counter(name for r in compared.rows for name, n in r.verdicts.items() for _ in range(n))
    text = f"""\
# The methods on this machine, by wall clock

Made by `python -m workshop.benchmarks.pairs` and its `--report` ({head["processor"]},
{head["threads"]} threads, torch {head["torch"]}). All models compute with their own weights and are what is
timed: SmolLM2-135M in fp32 with its EAGLE-3 head (`ghidorah`: its Medusa heads), Qwen2.5-Coder-1.5B with
the 0.5B in bf16.
`streamed`: the target's layers are read from the disk in each pass, at 1 GB/s.

{len(compared.answers)} answers of up to {plan.tokens} tokens (a streamed base: 8); prompts of a dataset: at
most {max(r.prompts for r in compared.rows)}, rounds: {max(r.rounds for r in compared.rows)}.
{len(known.thrown)} more were thrown away and measured again, because others took part of the processor; in
those that count they took at most {busiest:.0%} of a core.
{kinds["equal"]} answers are the target's own greedy text, {kinds["tie"]} leave it at a tie of logits,
{kinds["differs"]} differ.

Speeds are of decoding, which starts when all models have read the prompt: totals over totals of medians over
rounds. A ratio is paired by prompt and round: the median over rounds, then the geometric mean over prompts.
Intervals: 95%, bootstrap over prompts; none of a single prompt. `n`: prompts and rounds. `of the floor`: the
share of decoding that reading alone takes, of the disk at its pace or of the target's weights once a pass at
memory's measured speed. `rows.csv` has more: shares of hidden drafting and of time in which neither processor
nor disk worked, and the memory that models held. `runs.jsonl.gz` has every answer.

![Times the base, measured and emulated](figure.png)
"""
    lines = [*text.splitlines(), ""]
    for part in compared.parts:
        own = [r for r in compared.rows if r.part == part]
        lines += [f"## {part}", ""]
        lines += table(TABLE, [cells(r, compared.bases.get((r.part, r.dataset))) for r in own])
        if notes := [f"- `{arm}`: {note}" for arm, note in remarks(compared, part)]:
            lines += [*notes, ""]
    lines += ["## Over all datasets", ""]
    lines += table(("part", "arm", "base", "times faster"), list(ratio_lines(compared)))
    lines += [
        "The null arm is the base a second time: a ratio that is as near to 1 as this one is noise.",
        "",
    ]
    lines += [*null_lines(compared), ""]
    if claims := list(claim_lines(compared)):
        lines += [
            "## What the papers claim",
            "",
            "Of streamed targets, with the papers' own models on phones; verdicts by docs/evidence.md. The",
            "last column is the memory that either held at most: EdgeLLM reads ahead into nine tenths of",
            "a budget, the others a layer.",
            "",
        ]
        lines += table(("part", "claim", "printed", "here", "verdict", "GB held"), claims)
    lines += [
        "Ghidorah divides a model between two kinds of processors that share memory. This machine has one",
        "kind, so its undivided form is all that runs here: a searched tree and width.",
        "",
    ]
    return [*lines, *emulator_lines(compared)]


def remarks(compared: Compared, part: str) -> list[tuple[str, str]]:
    """Remarks of a part's arms, each once."""
    return list(
        dict.fromkeys((a.unit.arm, note) for a in compared.answers if a.unit.part == part for note in a.notes)
    )


def emulator_lines(compared: Compared) -> list[str]:
    """What the page says of the emulator."""
    lines = ["## What the emulator says of the same cells", ""]
    if compared.machine is None:
        return [*lines, "Nothing: the calibration has not run."]
    passes = errors(framed([*predictions(compared.machine.measured, PACE, every=False)]))
    median, p90, again = (f"{passes[name]:.1f}%" for name in ("median", "p90", "null_median"))
    return [
        *lines,
        "Probes of invented shapes were timed in the same run",
        "(`python -m workshop.validation this_machine`), costs fitted to them, and the same cells emulated:",
        "the same methods, models, prompts and lengths.",
        "No answer was fitted. Single passes of the targets, timed beside the probes, are predicted within",
        f"{median} (median; 90th percentile {p90}; the same passes again differ by",
        f"{again}). An error is predicted over measured tokens a second, less 1; that of a",
        "ratio likewise.",
        "",
        *table(ERRORS, list(error_lines(compared.rows, compared))),
        "A streamed cell's draft is billed with the kernels of streamed layers, although its weights are in",
        "memory.",
        "",
    ]


def draw(compared: Compared) -> bytes:
    """Times the base, measured with its interval, and emulated: a panel a part, as PNG."""
    picture = canvas(3.4 * len(compared.parts), 3.6)
    panels = picture.subplots(1, len(compared.parts), squeeze=False)[0]
    for panel, part in zip(panels, compared.parts, strict=True):
        own = [r for r in compared.rows if r.part == part and r.ratio is not None]
        for at, r in enumerate(reversed(own)):
            assert r.ratio is not None
            panel.barh(at, r.ratio, color=OURS, height=0.6)
            if r.ratio_interval:
                panel.hlines(at, *r.ratio_interval, color=GREY, linewidth=1.2)
            base = compared.bases.get((r.part, r.dataset))
            if r.predicted and base and base.predicted:
                panel.plot(r.predicted / base.predicted, at, "D", color=PAPER, markersize=4)
        panel.axvline(1.0, color=GREY, linewidth=0.8)
        panel.set_yticks(range(len(own)), [f"{r.arm}, {r.dataset}" for r in reversed(own)], fontsize=6)
        panel.set_title(part, fontsize=9)
        panel.set_xlabel("times the base", fontsize=8)
        tidy(panel, "x")
    picture.suptitle("Bars and lines: measured, with 95% intervals. Diamonds: emulated", fontsize=8.5)
    return exported(picture)


def write_page(folder: Path, plan: Plan, known: Stored, kept: Path) -> None:
    """Write the page, `rows.csv`, `figure.png` and `runs.jsonl.gz`."""
    compared = Compared(plan, known, kept)
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(page(compared)).rstrip() + "\n"
    write_atomically(folder / "README.md", text)
    write_atomically(folder / "rows.csv", csv_text([Row._fields, *map(values, compared.rows)]))
    write_atomically(folder / "figure.png", draw(compared))
    runs: list[Mapping[str, Any]] = [{"head": known.head}, *(answer.fields() for answer in compared.answers)]
    runs += [{"probe": probe} for probe in known.probes] + list(known.thrown)
    packed = "".join(json.dumps(in_ten_digits(each), separators=(",", ":")) + "\n" for each in runs)
    write_atomically(folder / "runs.jsonl.gz", gzip.compress(packed.encode(), mtime=0))


def values(r: Row) -> list[object]:
    """A row of the CSV."""
    named = r._asdict() | {"verdicts": " ".join(f"{k}={v}" for k, v in sorted(r.verdicts.items()))}
    return [" ".join(f"{end:.6g}" for end in v) if isinstance(v, tuple) else v for v in named.values()]
