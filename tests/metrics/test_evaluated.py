"""Metrics of `evaluate` by folder: their figures are those of their code, which is part of the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.core.errors import InputError
from repro.core.overrides import override
from repro.metrics.evaluated import code_digest, figures, require_registered, stem_of
from repro.records.identity import portable_place
from repro.scenarios.registry import is_current
from tiny_project import Project, write_project

CODE = """
import datasets
import evaluate


class Longer(evaluate.Metric):
    def _info(self):
        features = datasets.Features(
            {{"predictions": datasets.Value("string"), "references": datasets.Value("string")}}
        )
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        longer = sum(len(p) > len(r) for p, r in zip(predictions, references))
        return {{"share": {factor} * longer / len(predictions)}}
"""


def metric(folder: Path, factor: float = 1.0) -> str:
    """A metric's folder: the share of answers that are longer than their references, times a factor."""
    (folder / "longer").mkdir(exist_ok=True)
    (folder / "longer" / "longer.py").write_text(CODE.format(factor=factor), encoding="utf-8")
    return f"evaluate:{folder / 'longer'}"


def test_a_folder_s_metric_scores_answers_and_their_first_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = figures(metric(tmp_path), ["abc", "a", "abcd", ""], [["ab", "x"], ["ab"], ["abc"], ["b"]])
    assert found == {"evaluate_longer": 0.5}


def test_the_code_is_part_of_the_inputs(tmp_path: Path) -> None:
    first = code_digest(metric(tmp_path))
    assert first == code_digest(metric(tmp_path))
    assert first != code_digest(metric(tmp_path, 2.0))
    assert code_digest("evaluate:bleu") == "evaluate:bleu"


def test_a_cell_s_answers_are_scored_and_its_record_has_no_folder_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No tiny answer of six tokens is longer than a reference of many; the empty references are shorter."""
    monkeypatch.setenv("REPRO_CACHE", str(tmp_path / "cache"))
    project: Project = write_project(tmp_path)
    record = project.record("method=chain_sd", override("metrics", [metric(tmp_path)]))
    assert record.done, record.error
    assert record.figure("evaluate_longer") == 1.0
    assert record.provenance.config["metrics"] == ["evaluate:longer"]
    assert record.key != project.record("method=chain_sd").key
    assert is_current(record), "the folder is not at hand, and nothing says that its code changed"
    with pytest.raises(InputError, match="whose code would run"):
        require_registered(record.provenance.config["metrics"], "a record")


def test_names_that_are_none_get_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="evaluate:/nowhere/at_all cannot be loaded"):
        figures("evaluate:/nowhere/at_all", ["a"], [["b"]])
    assert stem_of("evaluate:some-org/Their") == "evaluate_their"
    assert portable_place("evaluate:/home/me/mine") == "evaluate:mine"
    assert portable_place("evaluate:bleu") == "evaluate:bleu"
