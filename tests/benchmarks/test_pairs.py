"""The benchmark of real pairs: where time went, paired ratios, and which answers are the target's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import pair_report
import pair_run
import paired
import pairs
from pair_run import Run
from records import record
from repro.device.trace import Span, Trace

VALUES = {
    "prompts": 1,
    "ties": 0,
    "decode_seconds": 5.0,
    "decode_tokens": 10,
    "target_calls": 4,
    "target_pass": 0.5,
    "draft_seconds": 2.0,
    "draft_hidden": 0.25,
}


def verification(prompt: str, start: float, end: float, emitted: int) -> dict[str, object]:
    return {"request": prompt, "start": start, "end": end, "emitted": emitted, "drafted": 3}


def run(
    arm: str, answers: dict[str, float], dataset: str = "gsm8k", number: int = 0, **values: float | None
) -> Run:
    """A run whose answers are two tokens in two verifications, each taking the given seconds in all."""
    rounds = [
        verification(prompt, at, at + seconds / 2, 1)
        for prompt, seconds in answers.items()
        for at in (1.0, 1.0 + seconds / 2)
    ]
    made = record(arm, {**VALUES, **values})
    return Run(arm, dataset, number, made, rounds, idle=0.5, floor=1.0, resident=2e9, held=1e9, notes=[])


def test_what_overlaps_counts_once_and_what_sticks_out_not_at_all() -> None:
    stretches = [(0.0, 2.0), (1.0, 3.0), (1.5, 1.75), (4.0, 9.0)]
    assert pair_run.covered(stretches, 0.5, 5.0) == 2.5 + 1.0
    assert pair_run.covered([], 0.5, 5.0) == 0.0


def test_idle_is_what_neither_disk_nor_processor_covers() -> None:
    spans = [
        Span(on, "layer", "", start, end, 1, 0.0, 0.0, 0.0)
        for on, start, end in (("cpu", 1, 2), ("flash", 1.5, 4), ("cpu", 9, 12))
    ]
    rounds = [verification("a", 0, 5, 1), verification("a", 8, 10, 1)]
    assert pair_run.idle(Trace(spans=spans), rounds) == (5 - 3) + (2 - 1)


def test_between_is_what_no_model_s_pass_covers() -> None:
    """Of 5 seconds the target's four passes take 2, and drafting outside of them three quarters of 2."""
    assert run("lever", {}).between == 5 - 2 - 1.5
    assert run("lever", {}, decode_seconds=3.0).between == 0.0


def test_a_pace_is_of_one_prompt_from_its_first_verification_on() -> None:
    assert run("lever", {"a": 4.0, "b": 1.0}).paces == {"a": 2.0, "b": 0.5}


def test_a_line_has_totals_over_totals_and_shares_of_the_floor() -> None:
    found = [run("lever", {"a": 2.0, "b": 2.0}), run("lever", {"a": 2.0}, number=1, decode_seconds=3.0)]
    _, line, _ = pair_report.by_method(found)
    assert " ".join(line.split()) == (
        "gsm8k lever 0.400 2.50 2.50 2.2 25% 12.5% 18.8% 250.0 ms 50% 25% 2.00 GB 1.00 GB"
    )


def test_without_a_pace_or_a_draft_there_is_no_share() -> None:
    unpaced = replace(run("flash_ar", {"a": 2.0}, draft_seconds=0.0, draft_hidden=None), floor=None)
    assert pair_report.shares([unpaced]).split() == ["1.5", "-", "10.0%", "60.0%", "-", "-", "-"]


def test_an_answer_of_one_token_has_no_figures() -> None:
    _, line = pair_report.by_method([run("lever", {}, target_calls=0, decode_tokens=0)])
    assert line.endswith("every answer was a single token")


def test_each_dataset_counts_alike_however_many_prompts_it_has() -> None:
    assert paired.mean([[[2.0, 8.0]], [[1.0], [1.0], [1.0]]]) == pytest.approx(2.0)


def test_ratios_that_agree_have_no_spread_and_others_lie_within_it() -> None:
    same = paired.spread([[[1.5, 1.5], [1.5, 1.5]]])
    assert same[:5] == pytest.approx((1.5,) * 5)
    assert same.pairs == 4
    found = paired.spread([[[1.0, 1.1], [2.0, 2.2], [1.6, 1.5]]])
    assert found.least == 1.0 <= found.low < found.mean < found.high <= found.most == 2.2


def test_one_pair_has_no_interval() -> None:
    assert "1.50x  -              1.50 to 1.50       1" in pair_report.line("mbpp", "a over b", [[[1.5]]])
    assert "1.50x  -   " in pair_report.line("geomean", "a over b", [[[1.5]], [[1.5, 1.5]]])
    assert "1.50x  1.50 to 1.50" in pair_report.line("mbpp", "a over b", [[[1.5], [1.5]]])


def test_a_ratio_is_of_one_prompt_in_one_round() -> None:
    found = [
        run("flash_ar", {"a": 4.0}),
        run("lever", {"a": 1.0, "b": 1.0}),
        run("flash_ar", {"a": 6.0}, number=1),
        run("lever", {"a": 2.0}, number=1),
        run("lever", {"a": 2.0}, number=2),
    ]
    assert pair_report.ratios(found, "lever", "flash_ar") == {"gsm8k": [[4.0, 3.0]]}


def test_the_paper_s_method_stands_over_its_baselines_with_their_published_ratios() -> None:
    preset = pairs.PRESETS["lever"]
    found = [run(arm, {"a": 2.0}) for arm in preset.methods.split(",")]
    lines = [" ".join(line.split()) for line in pair_report.speedups(found, "flash_ar", *preset[5:])]
    assert [line.split("1.00x")[0] for line in lines[1:] if line.startswith("geomean")] == [
        "geomean chain_sd over flash_ar ",
        "geomean edgellm over flash_ar ",
        "geomean opt_tree over flash_ar ",
        "geomean lever over flash_ar ",
        "geomean lever over chain_sd ",
        "geomean lever over edgellm ",
    ]
    assert [line.split()[-1] for line in lines if "published" in line] == ["2.93", "1.50", "1.27"]


def test_the_report_counts_ties_of_lossless_answers_alone() -> None:
    lossy = run("bold", {"a": 1.0})
    lossy = replace(lossy, record=replace(lossy.record, values={"prompts": 7, "target_calls": 0}))
    found = [run("flash_ar", {"a": 1.0}, prompts=2), run("lever", {"a": 1.0}, prompts=2, ties=1), lossy]
    *_, last = pair_report.report(found, "flash_ar", (), "")
    assert last == "3 of 4 lossless answers are the target's own, 1 leave it at a tie"


def test_runs_survive_their_file(tmp_path: Path) -> None:
    found = [run("lever", {"a": 1.0}), replace(run("ghidorah:divided=false", {}), floor=None, notes=["said"])]
    file = tmp_path / "runs.jsonl"
    assert list(pairs.noting(iter(found), file, "lever")) == found
    assert json.loads(file.read_text(encoding="utf-8").splitlines()[0]) == "lever"
    assert pairs.stored(file) == ("lever", found)


def test_settings_of_a_user_come_last_and_methods_of_a_preset_are_its_own() -> None:
    chosen = pairs.arguments(["--preset", "ghidorah", "--rounds", "2", "prompts=1", "--datasets", "mbpp"])
    assert pairs.settings(pairs.PRESETS[chosen.preset], chosen.overrides)[-1] == "prompts=1"
    assert chosen.methods.split(",")[0] == "sequential"
    assert chosen.datasets == "mbpp"


def test_a_preset_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        pairs.arguments(["prompts=1"])
    assert "no preset; choices: lever, lever_small, edgellm, ghidorah" in capsys.readouterr().err
