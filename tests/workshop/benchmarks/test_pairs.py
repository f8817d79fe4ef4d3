"""The benchmark of real pairs: what is measured and when, what is thrown away, and what is said of it."""

from __future__ import annotations

import csv
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from repro.core.overrides import override
from repro.core.paths import project_root
from repro.device.trace import Span, Trace
from repro.methods.base import Generation, Request
from repro.reports.reference.reference import find, load_cells
from tiny_project import write_project
from workshop.benchmarks import other_load, pair_figures, pair_page, pair_run, pairs
from workshop.benchmarks.alternating import interval, mean_ratio
from workshop.benchmarks.other_load import Load, OtherLoad
from workshop.benchmarks.pair_emulated import Predicted
from workshop.benchmarks.pair_parts import Plan, append, stored
from workshop.benchmarks.pair_run import Answer, OpenArm, PairCell, Unit

PART = "smollm2_memory"


def answer(
    arm: str = "std",
    prompt: int = 0,
    number: int = 0,
    decode_s: float = 1.0,
    tokens: int = 9,
    **fields: object,
) -> Answer:
    """An answer of `tokens` tokens, hence one less after the first."""
    measured = Answer(
        unit=Unit(PART, arm, "gsm8k", prompt, number, 48),
        tokens=list(range(tokens)),
        prefill_s=0.5,
        decode_s=decode_s,
        passes=4,
        drafted=16,
        target_s=0.6,
        draft_s=0.4,
        hidden_s=0.1,
        idle_s=0.2,
        read_bytes=3e8,
        held_bytes=2e9,
        threads=2,
        before=0,
    )
    return replace(measured, **fields)


def frame(answers: Sequence[Answer]) -> pd.DataFrame:
    return pair_figures.frame(answers, [0.25] * len(answers), ["equal"] * len(answers))


def row(
    answers: Sequence[Answer], base: Sequence[Answer], emulated: Sequence[Predicted] | None = None
) -> dict[str, Any]:
    made = pair_figures.row(frame(answers), frame(base), emulated)
    assert made is not None
    return made


def rows(emulated: Mapping[str, Sequence[Predicted]], *answers: Answer) -> pd.DataFrame:
    """The figures of arms, the first one being the base, beside their emulated answers."""
    units = [answer.unit for answer in answers]
    predicted = {(unit.part, unit.dataset, unit.arm): emulated[unit.arm] for unit in units}
    return pair_figures.rows(frame(answers), {PART: units[0].arm}, predicted)


# --- statistics


def test_a_speed_is_totals_over_totals_of_medians_over_rounds() -> None:
    """Prompts of 10 and 30 tokens at medians of 2 and 1 seconds a token: 40 tokens in 50 seconds."""
    slow = [answer(number=n, tokens=11, decode_s=10 * pace) for n, pace in enumerate((1.0, 2.0, 9.0))]
    figures = row([*slow, answer(prompt=1, tokens=31, decode_s=30.0)], slow)
    assert figures["tokens_per_s"] == pytest.approx(40 / 50)


def test_a_ratio_is_of_one_prompt_in_the_rounds_that_both_have() -> None:
    arm = frame([answer(number=n, decode_s=s) for n, s in ((0, 1.0), (1, 2.0), (3, 1.0))])
    base = frame([answer(number=n, decode_s=s) for n, s in ((0, 3.0), (1, 2.0), (2, 50.0))])
    assert pair_figures.ratios(arm, base) == [2.0], "the median of 3 and 1"
    assert pair_figures.ratios(arm, frame([answer(number=2)])) == []


def test_each_dataset_counts_alike_however_many_prompts_it_has() -> None:
    assert mean_ratio([[2.0, 8.0], [1.0, 1.0, 1.0]]) == pytest.approx(2.0)


def test_one_prompt_has_no_interval_and_equal_ones_have_none_of_width() -> None:
    assert interval([[1.5]], mean_ratio) is None
    assert interval([[1.5, 1.6], [1.5]], mean_ratio) is None
    assert interval([[1.5, 1.5]], mean_ratio) == pytest.approx((1.5, 1.5))


def test_an_interval_narrows_with_prompts_as_the_normal_one_does() -> None:
    """Of 400 ratios of e and 1/e in equal parts the mean's logarithm has a deviation of 1/20."""
    low, high = interval([[2.718281828, 1 / 2.718281828] * 200], mean_ratio) or (0, 0)
    assert (low, high) == pytest.approx((2.718281828 ** (-1.96 / 20), 2.718281828 ** (1.96 / 20)), rel=0.01)


# --- figures of answers


def test_a_row_has_shares_of_decoding_and_tokens_a_pass() -> None:
    base = [answer(prompt=p, decode_s=4.0) for p in (0, 1)]
    figures = row([answer("lever", prompt=p, decode_s=s) for p, s in ((0, 1.0), (1, 2.0))], base)
    assert figures["tokens_per_s"] == pytest.approx(16 / 3)
    assert figures["acceptance"] == 16 / 8
    assert figures["ratio"] == pytest.approx((4.0 * 2.0) ** 0.5)
    assert figures["ratio_interval"] == pytest.approx((2.0, 4.0))
    assert figures["floor"] == pytest.approx(0.5 / 3)
    assert figures["hidden"] == pytest.approx(0.25)
    assert figures["idle"] == pytest.approx(0.4 / 3)
    assert (figures["prompts"], figures["rounds"], figures["held_gb"]) == (2, 1, 2.0)
    assert figures["verdicts"] == {"equal": 2}


def test_rounds_are_no_prompts() -> None:
    """Three rounds of one prompt tell nothing of other prompts."""
    answers = [answer(number=n, decode_s=s) for n, s in enumerate((1.0, 2.0, 8.0))]
    figures = row(answers, answers)
    assert (figures["prompts"], figures["rounds"]) == (1, 3)
    assert figures["tokens_per_s"] == pytest.approx(8 / 2)
    assert figures["speed_interval"] is None
    assert figures["ratio_interval"] is None


def test_the_emulator_s_errors_are_signed_and_of_ratios_too() -> None:
    """The base decodes 2 tokens a second and the other arm 8; both are emulated at 4."""
    emulated = {arm: [Predicted(2.0, 8, 4)] for arm in ("std", "lever")}
    found = pair_figures.judged(rows(emulated, answer(decode_s=4.0), answer("lever")))
    assert found is not None
    assert (found.cells, found.signed, found.absolute, found.worst) == (2, 0.25, 0.75, 1.0)
    assert found.ratio == pytest.approx(0.75), "4 times faster, and said to be as fast"


def test_order_is_of_pairs_of_one_dataset() -> None:
    seconds = {"a": (1.0, 1.0), "b": (2.0, 3.0), "c": (1.05, 0.9), "d": (1.0, 9.0)}
    emulated = {arm: [Predicted(emulated_s, 8, 4)] for arm, (_, emulated_s) in seconds.items()}
    answers = [answer(arm, decode_s=decode_s) for arm, (decode_s, _) in seconds.items()]
    elsewhere = replace(answers[3], unit=replace(answers[3].unit, dataset="humaneval"))
    figures = rows(emulated, *answers[:3], elsewhere)
    assert pair_figures.order(figures) == (2, 3), "c is emulated as the fastest, and is 5% slower than a"
    assert pair_figures.order(figures, apart=0.1) == (2, 2)


@pytest.mark.parametrize(
    ("claim", "ratio", "interval", "verdict"),
    [
        ("lever.fig10.geomean_speedup.chain_sd", 1.15, (1.04, 1.25), "fails"),  # printed 1.5
        ("lever.fig10.geomean_speedup.edgellm", 1.28, (1.23, 1.34), "holds"),  # 1.27
        ("lever.fig10.geomean_speedup.edgellm", 1.28, None, "undetermined"),
        ("edgellm.text.iv_c.speedup_spl", 14.4, (11.9, 15.9), "fails"),  # 2.9 to 9.3
        ("edgellm.text.iv_c.speedup_spl", 2.71, (2.52, 2.96), "undetermined"),
        ("edgellm.text.iv_c.speedup_sp.phone", 1.98, (1.65, 2.19), "undetermined"),  # 1.34 to 1.77
    ],
)
def test_a_claim_is_judged_by_what_is_printed(
    claim: str, ratio: float, interval: tuple[float, float] | None, verdict: str
) -> None:
    """By docs/evidence.md: within 10% of a number or of a range, with its whole interval."""
    assert pair_page.claim_verdict(find(load_cells(), claim), ratio, interval, 6) == verdict


def test_the_committed_page_judges_as_the_command_would() -> None:
    """Its claims, with the memory of `rows.csv`; making the page again would emulate all cells."""
    folder = project_root() / "results" / "real"
    lines = csv.DictReader((folder / "rows.csv").read_text(encoding="utf-8").splitlines())
    held: dict[tuple[str, str], float] = {}
    for row in lines:
        place = row["part"], row["arm"].split(":")[0]
        if "depth" not in row["arm"]:
            held[place] = max(float(row["held_gb"]), held.get(place, 0.0))
    page = (folder / "README.md").read_text(encoding="utf-8")
    shown = [
        [word.strip() for word in line.strip("|").split("|")]
        for line in page.partition("What the papers claim")[2].partition("Ghidorah")[0].splitlines()
        if " over " in line
    ]
    assert len(shown) == 10
    for (part, claim, _, ratio, verdict, memory), (methods, cell) in zip(
        shown, 2 * pair_page.CLAIMS, strict=True
    ):
        assert claim == " over ".join(methods)
        value, low, high = map(float, re.findall(r"[\d.]+", ratio))
        assert verdict == pair_page.claim_verdict(find(load_cells(), cell), value, (low, high), 6), claim
        assert memory == "; ".join(f"{held[part, method]:.2f}" for method in methods)


def test_idle_is_what_neither_disk_nor_processor_covers_after_all_prompts_are_read() -> None:
    spans = [
        Span(on, "layer", "", start, end, 1, 0.0, 0.0, 0.0)
        for on, start, end in (("cpu", 1, 2), ("flash", 1.5, 4), ("cpu", 9, 12))
    ]
    generation = Generation(Request("a", (1,), 8), first=0.5, prefilled=1.5, ended=10.0)
    assert pair_run.idle(Trace(spans=spans), generation) == 8.5 - 2.5 - 1.0


# --- what there is to do


# --- what others take


def write_stat(proc: Path, stolen: int, *programs: tuple[int, str, int, int, int]) -> None:
    """A folder like /proc: programs with parent, own ticks and those of their ended children."""
    for folder in proc.glob("[0-9]*"):
        (folder / "stat").unlink()
        folder.rmdir()
    (proc / "stat").write_text(f"cpu 1 2 3 4 5 6 7 {stolen} 0 0\n", encoding="utf-8")
    for pid, name, parent, own, ended in programs:
        (proc / str(pid)).mkdir()
        fields = f"{pid} ({name}) S {parent} " + "0 " * 9 + f"{own} 0 {ended} 0 20 0"
        (proc / str(pid) / "stat").write_text(fields, encoding="utf-8")


def load_between(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: Sequence[tuple[int, str, int, int, int]],
    after: Sequence[tuple[int, str, int, int, int]],
    stolen: int = 0,
) -> Load:
    """What others take in two seconds, by ticks of a hundredth."""
    times = iter((10.0, 12.0))
    monkeypatch.setattr(other_load, "TICKS", 100.0)
    monkeypatch.setattr(other_load.time, "monotonic", lambda: next(times))
    write_stat(tmp_path, 0, *before)
    others = OtherLoad(tmp_path)
    write_stat(tmp_path, stolen, *after)
    return others.load()


OWN = os.getpid()


def test_others_are_all_but_this_process_its_parent_and_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (
        (OWN, "python", 1, 0, 0),
        (os.getppid(), "sh", 1, 0, 0),
        (77, "kworker", 2, 0, 0),
        (88, "a (b) c", 1, 5, 0),
    )
    after = (
        (OWN, "python", 1, 190, 0),
        (os.getppid(), "sh", 1, 9, 9),
        (77, "kworker", 2, 90, 0),
        (88, "a (b) c", 1, 25, 0),
    )
    assert load_between(tmp_path, monkeypatch, before, after) == Load(0.1, "a (b) c (process 88)")


def test_a_program_that_ended_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that had taken 500 ticks takes 40 more and ends; its shell is charged with 540."""
    before = ((5, "sh", 1, 1, 0), (6, "cc", 5, 500, 0))
    assert load_between(tmp_path, monkeypatch, before, ((5, "sh", 1, 1, 540),)).cores == pytest.approx(0.2)


# --- measuring


def test_a_host_that_takes_time_away_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calm = ((5, "sh", 1, 1, 0),)
    assert load_between(tmp_path, monkeypatch, calm, calm, stolen=50) == Load(
        0.25, "the host of this machine"
    )


class Script:
    """Plays others: the loads that are seen, one after the other, the last one for ever."""

    def __init__(self, *cores: float) -> None:
        self.cores = list(cores)

    def load(self) -> Load:
        return Load(self.cores.pop(0) if len(self.cores) > 1 else self.cores[0], "cc (process 7)")


def measured(
    monkeypatch: pytest.MonkeyPatch,
    file: Path,
    *cores: float,
    plan: Plan,
    stop: str = "",
    until: float = 1e12,
) -> tuple[int, list[Unit]]:
    """The exit code and the units that were measured, with invented answers; at `stop` it is killed."""
    script, done = Script(*cores), []

    def answered(unit: Unit) -> tuple[dict[str, object], str]:
        if unit.arm == stop:
            raise KeyboardInterrupt
        done.append(unit)
        return replace(answer(), unit=unit).fields(), "answered"

    monkeypatch.setattr(pairs, "OtherLoad", lambda: script)
    monkeypatch.setattr(pairs.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(pairs, "opened_measure", lambda *_: answered)
    left = [unit for unit in plan.units() if unit not in stored(file).done]
    job = {"units": [list(vars(unit).values()) for unit in left], "plan": vars(plan), "file": str(file)}
    return pairs.measure_group(json.loads(json.dumps(job | {"busy": False, "until": until}))), done


PLAN = Plan((PART,), ("gsm8k",), 2, 48, 1, methods=("std", "chain_sd:resident=1", "lever:resident=1"))


def test_a_process_that_is_killed_in_a_unit_loses_that_unit_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "runs.jsonl"
    with pytest.raises(KeyboardInterrupt):
        measured(monkeypatch, file, 0.0, plan=PLAN, stop="std")  # the slowest of the three comes last
    with file.open("a", encoding="utf-8") as out:
        out.write('{"unit": ["smollm2_memory", "std", "gs')  # half a line of the process that died
    assert len(stored(file).answers) == 2
    code, done = measured(monkeypatch, file, 0.0, plan=PLAN)
    assert (code, len(done)) == (0, 4)
    assert stored(file).done == set(PLAN.units())
    assert len(stored(file).answers) == 6


def test_a_busy_machine_is_refused_and_the_program_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, done = measured(monkeypatch, tmp_path / "runs.jsonl", 0.9, plan=PLAN)
    assert (code, done) == (pairs.BUSY, [])
    assert "others keep 0.90 cores busy, most of all cc (process 7); stop them" in capsys.readouterr().err


def test_a_disturbed_unit_is_thrown_away_counted_and_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen are: before the first unit twice, during it, before it again, during it again, and so on."""
    file = tmp_path / "runs.jsonl"
    monkeypatch.setattr(pairs, "SLACK_S", 0.0)
    code, done = measured(monkeypatch, file, 0.0, 0.0, 0.5, 0.0, plan=PLAN)
    assert (code, len(done)) == (0, 7)
    known = stored(file)
    assert len(known.answers) == 6
    assert known.thrown == [{"thrown": list(vars(done[0]).values()), "others": 0.5, "most": "cc (process 7)"}]


def test_a_unit_that_is_always_disturbed_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "runs.jsonl"
    monkeypatch.setattr(pairs, "SLACK_S", 0.0)
    code, done = measured(monkeypatch, file, 0.0, 0.0, 0.08, plan=PLAN)  # calm enough before, not meanwhile
    assert (code, len(done)) == (pairs.BUSY, pairs.THROWS)
    assert stored(file).answers == []


def test_no_unit_begins_that_would_not_end_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch, tmp_path / "runs.jsonl", 0.0, plan=PLAN, until=0.0) == (pairs.OVER, [])


def test_answers_survive_their_file_and_the_head_must_stay(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    pairs.require_same_head(file, PLAN)
    said = answer("lever", notes=["without pruning"], decode_s=1.25)
    append(file, json.dumps(said.fields()))
    assert stored(file).answers == [said]
    pairs.require_same_head(file, PLAN)
    with pytest.raises(pairs.InputError, match=r"began with overrides \[\], and now it is \['seed=1'\]"):
        pairs.require_same_head(file, replace(PLAN, overrides=["seed=1"]))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--parts", "qwen"], "smollm2_memory"),
        (["--rounds", "0"], "--rounds"),
        (["--report", "nowhere"], "nothing of what is asked for is stored"),
    ],
)
def test_bad_input_is_one_sentence(
    given: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pairs.main([*given, "--out", str(tmp_path / "runs.jsonl")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


# --- a tiny pair, for real


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Settings of a tiny pair in place of a part's; processes find what they need in the environment."""
    project = write_project(tmp_path / "tiny")
    for name, value in project.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(PairCell, "shared", {})
    folders = {name: folder for name, folder in project.folders.items() if name not in ("results", "outputs")}
    plain = ("draft.checkpoint.shares_embeddings_with=null", "target.checkpoint.predictor=null")
    return [*(override(name, folder) for name, folder in folders.items()), *plain, "wandb.mode=disabled"]


def test_a_tiny_pair_from_the_command_to_the_page(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every arm says what the target says alone; the second command has nothing left to do."""
    monkeypatch.setattr(pair_page, "say", lambda *_: None)
    size = ["--prompts", "2", "--tokens", "6", "--rounds", "1", "--datasets", "humaneval"]
    asked = [*tiny, "--parts", f"{PART},smollm2_streamed", *size, "--out", str(tmp_path / "runs.jsonl")]
    assert pairs.main([*asked, "--busy"]) == 0
    known = stored(tmp_path / "runs.jsonl")
    assert known.done == set(Plan((PART, "smollm2_streamed"), ("humaneval",), 2, 6, 1).units())
    assert len({tuple(a.tokens) for a in known.answers if a.unit.prompt == 0}) == 1
    assert all(a.prefill_s > 0 and a.decode_s > 0 and a.passes and a.decoded == 5 for a in known.answers)
    read = {a.unit.part: a.read_bytes for a in known.answers}
    assert read[PART] == 0 < read["smollm2_streamed"]
    monkeypatch.setattr(pairs.subprocess, "run", lambda *_: pytest.fail("nothing is left to measure"))
    assert pairs.main([*asked, "--busy"]) == 0

    assert pairs.main([*asked, "--report", str(tmp_path / "page")]) == 0
    page = (tmp_path / "page" / "README.md").read_text(encoding="utf-8")
    assert "28 answers are the target's own greedy text, 0 leave it at a tie of logits" in page
    assert "Nothing: the calibration has not run." in page
    assert (tmp_path / "page" / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_draft_s_pass_over_the_prompt_is_no_decoding(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds a token once had it: decoding starts when all models have read the prompt."""
    plan = Plan((PART,), ("humaneval",), 1, 6, 1, overrides=tiny)
    unit = Unit(PART, "chain_sd:resident=1", "humaneval", 0, 0, 6)
    with ExitStack() as opened:
        arm = OpenArm(unit.arm, unit.dataset, plan.settings(PART), opened)
        forward, slow = arm.sessions["draft"].forward, iter([0.3])

        async def delayed(*asked: Any, **named: Any) -> Any:
            time.sleep(next(slow, 0.0))
            return await forward(*asked, **named)

        monkeypatch.setattr(arm.sessions["draft"], "forward", delayed)
        taken = arm.answer(unit)
    assert taken.prefill_s >= 0.3
    assert taken.drafted > 0
