"""Figures of a cell, from an invented trace worked out by hand; its key; its checks."""

from __future__ import annotations

import statistics
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from invented_answers import answer
from repro.core.errors import InputError
from repro.core.overrides import override
from repro.device import local
from repro.device.energy import EnergyMeter
from repro.device.op import CPU, FLASH
from repro.device.trace import Phase, Span, Trace
from repro.methods.base import Generation
from repro.scenarios.generation import figures
from repro.scenarios.generation.scenario import GenerationScenario
from tiny_project import Project

LOCAL = ("device=local_cpu", "device.pace=null", "method=std", "prompts=1", "max_tokens=4", "cooldown=0")


def invented() -> tuple[list[Generation], Trace]:
    """Two answers, one of 6 tokens in 2 rounds from 2 to 6 s, one of 3 tokens in 1 round from 11 to 12 s."""
    answers = [
        answer(6, 2.0, (4, 2, 3, 2.0, 4.0), (4, 1, 2, 4.0, 6.0)),
        answer(3, 11.0, (2, 1, 2, 11.0, 12.0)),
    ]
    spans = [
        Span(FLASH, "read", "before", 0.0, 3.0, 1, 0.0, 100.0, 3.0),  # a third of it in the first window
        Span(CPU, "layer", "a", 3.0, 4.0, 4, 0.0, 0.0, 2.0),
        Span(FLASH, "read", "b", 4.0, 6.0, 1, 0.0, 60.0, 1.0),
        Span(FLASH, "read", "between", 7.0, 9.0, 1, 0.0, 1000.0, 50.0),
        Span(CPU, "layer", "c", 11.0, 12.0, 2, 0.0, 0.0, 4.0),
    ]
    phases = [Phase("load", 0.0, 0.5), Phase("prefill", 1.0, 2.0), Phase("prefill", 10.0, 11.0)]
    return answers, Trace(0.5, spans, phases)


def test_timing_is_totals_over_totals_of_the_decode_windows() -> None:
    found = figures.timing(*invented())
    # 5 + 2 tokens after the first ones, in 4 + 1 s; active joules 1 + 2 + 1 + 4, idle 0.5 W over 5 s
    assert found == pytest.approx(
        {
            "decode_tokens": 7,
            "decode_seconds": 5.0,
            "decode_tokens_per_s": 7 / 5,
            "time_per_token": 5 / 7,
            "ttft": 1.0,
            "latency": (5 + 2) / 2,
            "prefill_tokens_per_s": 2 / 2,
            "prefill_joules": 0.5 * 2 + 1,  # idle, and a third of what was read before
            "prefill_bubbles": 1.0,
            "prefill_seconds": 2.0,
            "decode_joules": 10.5,
            "joules_per_token": 1.5,
            "flash_bytes_per_token": 160 / 7,
            "flash_busy": (1 + 2) / 5,
        }
    )


def test_the_wall_clock_repeats_and_shows_its_spread(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds: list[float] = []
    original = figures.timing

    def noted(generations: Any, trace: Any) -> Any:
        found = original(generations, trace)
        speeds.append(found["decode_tokens_per_s"])
        return found

    monkeypatch.setattr(figures, "timing", noted)
    monkeypatch.setattr(local, "open_meter", lambda *_: EnergyMeter((), "no counter"))
    record = project.record(*LOCAL, "repeats=3")
    over_all, *each = speeds
    assert (len(each), record.values["prompts"]) == (3, 3), "the warm-up does not count"
    assert record.values["decode_tokens_per_s"] == pytest.approx(over_all)
    assert record.uncertainty == {"decode_tokens_per_s": pytest.approx(statistics.stdev(each))}
    provenance = record.provenance
    assert (provenance.clock, provenance.costs, provenance.weights) == ("wall", "measured", "real")
    assert record.values["joules_per_token"] is None
    assert record.values["exact_match"] == 1.0
    once = project.record(*LOCAL, "repeats=1")
    assert once.uncertainty == {}, "one run has no spread"
    assert once.key != record.key


def test_a_local_run_has_joules_where_counters_measure_them(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = SimpleNamespace(label="package-0", joules=partial(next, count(1.0)))  # 1 J a reading
    for counters, absent in (((counted,), ""), ((), "no counter")):
        meter = EnergyMeter(counters, absent)
        monkeypatch.setattr(local, "open_meter", lambda *_, meter=meter: meter)
        record = project.record(*LOCAL, "sweep=force")
        names = ("prefill_joules", "decode_joules", "joules_per_token")
        assert [bool(record.values[name]) for name in names] == 3 * [bool(counters)]
        notes = [note for note in record.provenance.notes if note.startswith("energy is")]
        assert notes == [meter.sentence]
    assert [record.values[name] for name in names] == 3 * [None]
    assert notes == ["energy is not measured: no counter"]


def test_the_key_is_what_was_asked_and_given(project: Project, tmp_path: Path) -> None:
    def key(*overrides: str) -> str:
        return GenerationScenario(project.config("experiment=quickstart", "method=chain_sd", *overrides)).key

    base = key()
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("target", "data"):
        (moved / name).symlink_to(project.root / name)
    same = (
        override("results", moved / "r"),
        override("outputs", moved / "o"),
        "wandb.mode=offline",
        "wandb.project=other",
        override("data_dir", moved / "data"),
        "name=other",
        "sweep=force",
        "memo=false",
        "repeats=2",
        override("target.checkpoint.folder", moved / "target"),
    )
    assert key(*same) == base
    different = (
        "method.length=4",
        "prompts=1",
        "max_tokens=7",
        "seed=1",
        "sampling.temperature=1.0",
        "device=xiaomi_10",
        "metrics=[accuracy]",
        override("draft.checkpoint.folder", project.root / "target"),
        "target.shape.layers=35",
        "dataset.version=2",
    )
    keys = {change: key(change) for change in different}
    assert base not in keys.values()
    assert len(set(keys.values())) == len(different)


def test_requests_have_seeds_of_their_own(project: Project) -> None:
    """Sampled answers are independent, and a cell's next seed shares all but one of them."""
    cells = (GenerationScenario(project.config("method=std", "prompts=3", f"seed={n}")) for n in (5, 6))
    first, second = ([request.seed for request in cell.requests] for cell in cells)
    assert len({*first}) == 3
    assert first[1:] == second[:-1]


def test_a_draft_that_is_not_used_does_not_count(project: Project) -> None:
    alone = ("experiment=quickstart", "method=std")
    other = override("draft.checkpoint.folder", project.root / "target")
    assert len({GenerationScenario(project.config(*alone, *more)).key for more in ((), (other,))}) == 1


def test_a_method_that_loses_the_target_s_text_fails(project: Project) -> None:
    """A draft that claims to be lossless is caught, and the record says at which token."""
    from repro.methods.plain.autoregressive import DraftAlone

    config = project.config("experiment=quickstart", "method=draft", "seed=7")
    cell = GenerationScenario(config)
    assert cell.method.lossless is False
    own = {"lossless": True, "__module__": DraftAlone.__module__}
    cell.method = type("Liar", (DraftAlone,), own)()
    with pytest.raises(RuntimeError, match="leaves the target's own text at token"):
        cell.run(lambda what, done, total: None)


BLANK = ("method=std", "model@target=qwen3_8b_q4_0", "target.checkpoint=null", "prompts=2", "max_tokens=3")


def test_without_weights_only_costs_run_of_blank_prompts(project: Project) -> None:
    record = project.record(*BLANK, "prompt_tokens=5")
    assert record.provenance.weights == "none"
    assert (record.values["decode_tokens"], record.values["target_calls"]) == (4, 4)
    assert record.values["prompts"] == 2
    assert "exact_match" not in record.values or record.values["exact_match"] is None
    longer = project.record(*BLANK, "prompt_tokens=500")
    assert float(str(longer.values["ttft"])) > float(str(record.values["ttft"]))


def test_blank_prompts_have_a_length_and_no_model_has_weights(project: Project) -> None:
    with pytest.raises(InputError, match="give their length, prompt_tokens=N"):
        GenerationScenario(project.config(*BLANK))
    with pytest.raises(InputError, match=r"the target has no checkpoint and .* has"):
        GenerationScenario(project.config(*BLANK, "prompt_tokens=5", "method=chain_sd"))


def test_real_prompts_are_cut_to_their_last_tokens(project: Project) -> None:
    whole, cut = (GenerationScenario(project.config("prompts=1", f"prompt_tokens={n}")) for n in ("null", 3))
    assert cut.requests[0].prompt == whole.requests[0].prompt[-3:]
    assert cut.key != whole.key
