"""Cells that score their answers by the task, what they keep of them, and how they are shown."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import pytest

from repro import commands
from repro.core.errors import InputError
from repro.core.registry import register
from repro.data import load_rows, read_config
from repro.metrics.task import AnswerMetric
from repro.scenarios.generation.answers import first_difference, row_hash
from repro.scenarios.generation.scenario import GenerationScenario
from repro.scenarios.generation.task_scores import score_answers
from tiny_project import Project, write_project

ROWS = [{"question": f"What is {i} + 1?", "answer": f"That is\n#### {i + 1}"} for i in range(4)]
LETTERS = "+dataset.scoring.score={metrics: [letters, final_number]}"
SCORED = ("dataset=gsm8k", "~dataset.scoring.score", LETTERS)


@register("metric", "letters")
class Letters(AnswerMetric):
    """The number of different characters of an answer and its references: tiny models say nothing right."""

    name: ClassVar[str] = "letters"

    def score(self, text: str, expected: Sequence[str]) -> float:
        """That number."""
        return float(len(set(text + "".join(expected))))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A tiny target and draft, and four questions."""
    project = write_project(tmp_path_factory.mktemp("tasks"))
    (project.root / "data" / "gsm8k.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8"
    )
    return project


@pytest.fixture
def project(made: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The same, with results and a cache of its own."""
    monkeypatch.setenv("REPRO_CACHE", str(tmp_path / "cache"))
    return made.apart(tmp_path)


def test_a_score_is_recorded_with_the_targets_own_and_their_difference(project: Project) -> None:
    record = project.record("method=draft", *SCORED, "metrics=[task_score]", "prompts=3", "skip=1")
    lines = project.store.answers(record.key)
    assert [(line["request"], line["row"]) for line in lines] == [
        ("gsm8k/0", 1),
        ("gsm8k/1", 2),
        ("gsm8k/2", 3),
    ]
    ours, theirs = (
        [len(set(str(line[text]) + row["answer"])) for line, row in zip(lines, ROWS[1:], strict=True)]
        for text in ("text", "target_text")
    )
    assert ours != theirs  # the draft is another model
    assert record.values["task_score"] == pytest.approx(fmean(ours))
    assert record.values["target_task_score"] == pytest.approx(fmean(theirs))
    assert record.values["task_score_difference"] == pytest.approx(fmean(ours) - fmean(theirs))
    assert not {"task_score", "task_score_difference"} & record.uncertainty.keys(), "of three rows"
    assert [line["letters"] for line in lines] == ours
    # the task's second metric stands by its own name
    assert {"final_number", "target_final_number", "final_number_difference"} <= record.values.keys()
    assert "3 of 3 answers were cut at max_tokens and are scored as they stand" in record.provenance.notes


def test_each_answer_is_scored_by_its_own_row() -> None:
    texts, own = ["It is 1", "It is 2", "It is 9", "It is 4"], ["1", "2", "3", "It is 3"]
    found = score_answers(["final_number"], read_config("gsm8k"), ROWS, texts, own)
    assert [line["final_number"] for line in found.answers] == [100.0, 100.0, 0.0, 100.0]
    assert [line["target_final_number"] for line in found.answers] == [100.0, 100.0, 100.0, 0.0]
    assert (found.values["task_score"], found.values["target_task_score"]) == (75.0, 75.0)
    assert found.values["task_score_difference"] == 0.0


def test_what_is_not_asked_for_changes_neither_key_nor_values(project: Project) -> None:
    plain = project.record("method=chain_sd", "dataset=gsm8k", "~dataset.scoring.score")
    with_entry = GenerationScenario(project.config("method=chain_sd", "dataset=gsm8k"))
    assert with_entry.key == plain.key
    asked = project.record("method=chain_sd", *SCORED, "metrics=[letters]")
    assert asked.key != plain.key
    more = set(asked.values) - set(plain.values)
    assert more == {"task_score", "target_task_score", "task_score_difference"}
    assert plain.values == {name: value for name, value in asked.values.items() if name not in more}
    assert asked.values["task_score_difference"] == 0.0


def test_a_record_keeps_what_was_said_and_nothing_of_the_dataset(project: Project) -> None:
    record = project.record("method=draft", "dataset=gsm8k", "prompts=2")
    lines = project.store.answers(record.key)
    content = json.dumps(lines)
    assert [line["row_hash"] for line in lines] == [row_hash(row) for row in ROWS[:2]]
    assert not any(text in content for row in ROWS for text in row.values())
    tokenizer = GenerationScenario(project.config("method=draft", "dataset=gsm8k")).target.tokenizer
    for line in lines:
        ids = [int(token) for token in line["tokens"].split()]
        assert (len(ids), line["cut"]) == (6, 1)
        assert tokenizer.decode(ids) == line["text"]
    equal = [line["tokens"] == line["target_tokens"] for line in lines]
    assert record.values["exact_match"] == sum(equal) / 2


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["dataset=humaneval", "metrics=[task_score]"], r"answers' code; .* metrics=\[pass_at_1\]"),
        (["dataset=gsm8k", "metrics=[chrf]"], "'gsm8k' is scored by final_number"),
        (["dataset=mt_bench", "metrics=[task_score]"], "no task score: MT-Bench grades answers by a judge"),
        (["dataset=wikitext2", "metrics=[task_score]"], "'wikitext2' has no task score; its file may"),
        (["dataset=piqa", "metrics=[task_score]"], r"scored by likelihoods \(choice\)"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_the_run(
    project: Project, overrides: list[str], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        GenerationScenario(project.config("method=draft", *overrides))


def test_code_runs_only_with_consent(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ALLOW_CODE_EVAL", raising=False)
    with pytest.raises(InputError, match=r"'pass_at_1' runs code .* and set HF_ALLOW_CODE_EVAL=1"):
        GenerationScenario(project.config("method=draft", "dataset=humaneval", "metrics=[pass_at_1]"))


def test_invented_rows_of_the_code_sets_pass_their_own_solutions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ALLOW_CODE_EVAL", "1")
    humaneval: dict[str, Any] = {
        "task_id": "T/0",
        "prompt": 'from typing import List\n\n\ndef tops(xs: List[int]) -> int:\n    """The largest."""\n',
        "canonical_solution": "    return max(xs)\n",
        "test": "def check(candidate):\n    assert candidate([1, 3, 2]) == 3\n",
        "entry_point": "tops",
    }
    mbpp = {
        "task_id": 1,
        "text": "Twice.",
        "code": "def twice(n):\r\n  return 2 * n",
        "test_list": ["assert twice(2) == 4", "assert twice(0) == 0"],
    }
    for name, row, right in (("humaneval", humaneval, "canonical_solution"), ("mbpp", mbpp, "code")):
        wrong = str(row[right]).replace("max", "min").replace("2 *", "3 *")
        found = score_answers(["pass_at_1"], read_config(name), [row, row], [str(row[right]), wrong], None)
        assert [line["pass_at_1"] for line in found.answers] == [100.0, 0.0], name
        assert found.values == {"task_score": 50.0}


@pytest.mark.slow
@pytest.mark.skipif("REPRO_DATA" not in os.environ, reason="needs the real rows")
@pytest.mark.parametrize(("name", "solution"), [("humaneval", "canonical_solution"), ("mbpp", "code")])
def test_real_reference_solutions_pass(name: str, solution: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ALLOW_CODE_EVAL", "1")
    config = read_config(name)
    rows = load_rows(config).rows
    texts = [str(row[solution]) for row in rows]
    found = score_answers(["pass_at_1"], config, rows, texts, None)
    assert len(rows) >= 164
    assert [i for i, line in enumerate(found.answers) if line["pass_at_1"] != 100.0] == []


# repro show


def shown(project: Project, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command prints of the project's records."""
    data = ("--data", str(project.root / "data"))
    assert commands.run("show", [*arguments, *data, "--results", str(project.out / "results")]) == 0
    return capsys.readouterr().out


def test_answers_stand_beside_the_targets_and_the_references(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    record = project.record("method=draft", "dataset=gsm8k", "prompts=2")
    line = project.store.answers(record.key)[0]
    page = shown(project, capsys, record.key[:10])
    at = first_difference(str(line["tokens"]), str(line["target_tokens"]))
    assert f"gsm8k/0 (row 0), cut at max_tokens: differs from the target's own at token {at}, " in page
    assert "final_number 0 (the target's 0)" in page
    assert "  question    What is 0 + 1?\n" in page
    assert "  reference   That is\n              #### 1\n" in page
    assert "  target's " in page
    lossless = project.record("method=chain_sd", "dataset=gsm8k", "prompts=2")
    page = shown(project, capsys, f"{lossless.experiment}/chain_sd,gsm8k")
    assert "gsm8k/1 (row 1), cut at max_tokens: as the target's own, final_number 0\n" in page
    assert "  target's " not in page


def test_without_the_dataset_only_the_answers_are_shown(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    record = project.record("method=draft", "dataset=gsm8k", "prompts=2")
    assert (
        commands.run("show", [record.key, "--data", "/nowhere", "--results", str(project.out / "results")])
        == 0
    )
    page = capsys.readouterr().out
    assert "No references: " in page
    assert "  answer " in page
    assert "  reference " not in page
    assert "final_number" not in page


def test_a_record_without_answers_is_computed_again_for_them(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = project.record("method=draft", "dataset=gsm8k", "prompts=2")
    kept = project.store.answers(record.key)
    for path in project.store.folder.glob("*.jsonl"):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(line for line in lines if '{"answers": ' not in line), encoding="utf-8")
    assert f"`repro show {record.key[:12]} --compute` runs the cell" in shown(project, capsys)
    # Records hold no folders of this machine: a checkpoint is found by its name.
    monkeypatch.setenv("REPRO_MODELS", str(project.root))
    assert "gsm8k/1 (row 1)" in shown(project, capsys, "--compute")
    assert project.store.answers(record.key) == kept
    assert project.store.get(record.key) == record


def test_a_name_of_several_records_brings_them(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    records = [project.record(f"method={name}", "dataset=gsm8k", "prompts=1") for name in ("std", "draft")]
    results = ("--results", str(project.out / "results"))
    assert commands.run("show", [records[0].experiment, *results]) == 2
    said = capsys.readouterr().err
    assert "is the name of 2 records" in said
    assert all(record.key[:12] in said for record in records)
    assert commands.run("show", ["nosuch", *results]) == 2
    assert "does not hold a finished record 'nosuch'" in capsys.readouterr().err
