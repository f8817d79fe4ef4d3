"""Rows, tokenizers and checkpoints that people bring: values of unsure meaning, equal choices, appended
tokens, the tokens that end an answer, and what a checkpoint says of generating."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

import repro
from repro.core.errors import InputError
from repro.data import read_config
from repro.models.checkpoints.checkpoint import CheckpointTokenizer
from repro.models.checkpoints.generation_settings import unused_settings
from repro.records.record import Record
from repro.scenarios import accuracy
from repro.scenarios.generation.task_scores import score_answers
from tiny_checkpoints import write_folder
from tiny_project import Project, write_project

ROW = {"goal": "Goal", "sol1": "a short end", "sol2": "another end", "label": 1}
CHOICE = ("compression=fp16", "dataset=piqa")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Models of its own, which a test may change, and a cache of its own."""
    monkeypatch.setenv("REPRO_CACHE", str(tmp_path / "cache"))
    accuracy._compress.cache_clear()
    return write_project(tmp_path)


def write(project: Project, name: str, rows: Sequence[object]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (project.root / "data" / f"{name}.jsonl").write_text(text, encoding="utf-8")


def run(project: Project, *overrides: str, **more: Any) -> Record:
    """The record of a cell, as `repro.run` gives it."""
    settings = {key: value for key, _, value in (one.partition("=") for one in project.overrides)}
    settings |= {key: value for key, _, value in (one.partition("=") for one in overrides)}
    if "compression" in settings:  # it answers nothing
        del settings["max_tokens"]
    return repro.run(settings, **more)


# --- values of which no text or number is surely meant ------------------------------------------------------

NO_TEXT = "where a text is needed"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sol1": None}, f"prompt piqa/0: a row's 'sol1' is null, {NO_TEXT}"),
        ({"sol1": True}, f"a row's 'sol1' is true, {NO_TEXT}"),
        ({"sol1": {"text": "an end"}}, f"""a row's 'sol1' is {{"text": "an end"}}, {NO_TEXT}"""),
        ({"goal": ["Goal"]}, f"""a row's 'goal' is ["Goal"], {NO_TEXT}"""),
        ({"label": None}, "a row's 'label' is null, where its answer is needed; leave its row out"),
        ({"label": 0.5}, r"answer 0.5 (index) is none of ['a short end', 'another end']"),
        ({"label": True}, r"answer True (index) is none of"),
        ({"label": "0_1"}, r"answer '0_1' (index) is none of"),
        ({"label": 2}, r"answer 2 (index) is none of the 2 choices"),
    ],
)
def test_a_value_of_unsure_meaning_is_refused(project: Project, change: dict[str, Any], says: str) -> None:
    write(project, "piqa", [ROW | change])
    with pytest.raises(InputError) as caught:
        run(project, *CHOICE, "prompts=1")
    assert says in str(caught.value)


@pytest.mark.parametrize("label", [1, 1.0, "1", " 1 "])
def test_an_index_may_be_written_in_several_ways(project: Project, label: object) -> None:
    """Numbers are texts as they are written: 2 and 10 are the same choices as "2" and "10"."""
    rows = [ROW | {"sol1": 2, "sol2": 10, "label": label}, ROW | {"sol1": "2", "sol2": "10", "label": 1}]
    write(project, "piqa", rows)
    record = run(project, *CHOICE, "prompts=2")
    numbers, texts = project.store.rounds(record.key)
    assert (numbers["right"], numbers["choice"]) == (texts["right"], texts["choice"])


# --- equal choices ------------------------------------------------------------------------------------------


def test_of_equal_choices_the_first_is_chosen(project: Project) -> None:
    """Both have the same likelihood by the same arithmetic; half of the rows call the second one right."""
    words = ("answer", "passage", "question", "above it", "we're in it", "naïve")
    rows = [{"goal": f"{words[i % 6]} {i}", "sol1": f"{words[i % 5]} {i}", "label": i % 2} for i in range(24)]
    write(project, "piqa", [row | {"sol2": row["sol1"]} for row in rows])
    record = run(project, *CHOICE, "prompts=24")
    assert [line["choice"] for line in project.store.rounds(record.key)] == [0] * 24
    assert (record.values["acc"], record.values["acc_norm"]) == (50.0, 50.0)
    assert "equal choices" in record.provenance.inputs


# --- tokens that a tokenizer appends ------------------------------------------------------------------------


def append_tokens(folder: Path, before: str = "", after: str = "<|end|>") -> None:
    """Let a folder's tokenizer put special tokens around each text."""
    inner = Tokenizer.from_file(str(folder / "tokenizer.json"))
    known = [(token, inner.token_to_id(token)) for token in {*before.split(), *after.split()}]
    inner.post_processor = TemplateProcessing(f"{before} $A {after}".strip(), special_tokens=known)
    inner.save(str(folder / "tokenizer.json"))


def test_what_a_tokenizer_appends_stands_between_no_prompt_and_its_answer(project: Project) -> None:
    """Right is what the same weights say with the same tokenizer that appends nothing."""
    write(project, "piqa", [ROW | {"goal": f"Goal {i}", "label": i % 2} for i in range(6)])
    asked = (*CHOICE, "prompts=6"), ("method=std", "prompts=2"), ("method=chain_sd", "prompts=2")
    plain = [run(project, *overrides) for overrides in asked]
    for role in ("target", "draft"):
        append_tokens(project.root / role)
    appended = [run(project, *overrides) for overrides in asked]
    for before, after in zip(plain, appended, strict=True):
        assert after.key != before.key
        assert after.provenance.inputs["appended tokens"]
        assert after.values == before.values
        answers = [[line.get("tokens") for line in project.store.answers(r.key)] for r in (before, after)]
        assert answers[0] == answers[1]


@pytest.mark.parametrize("after", ["<|end|>", "<|end|> <|user|>", ""])
def test_what_is_appended_is_left_out_of_a_decoder_s_prompts_alone(tmp_path: Path, after: str) -> None:
    decoder, whole = write_folder(tmp_path / "d"), write_folder(tmp_path / "e", is_encoder_decoder=True)
    for folder in (decoder, whole):
        append_tokens(folder, "<|answer|>", after)
    theirs = hf.AutoTokenizer.from_pretrained(whole)
    for text in ("a b", "", "ends in <|end|>"):
        bare = theirs.encode(text, add_special_tokens=False)
        assert CheckpointTokenizer(decoder).encode(text) == [2, *bare]
        assert CheckpointTokenizer(whole).encode(text) == theirs.encode(text)
        assert CheckpointTokenizer(decoder).encode(text, special=False) == bare


# --- ends, and what `generate` would do ---------------------------------------------------------------------


def generation_config(project: Project, **entries: object) -> None:
    path = project.root / "target" / "generation_config.json"
    path.write_text(json.dumps(entries), encoding="utf-8")


def test_a_record_says_which_ids_end_an_answer(project: Project) -> None:
    generation_config(project, eos_token_id=[0, 5, 9000])
    record = run(project, "method=std", "prompts=1")
    ends = record.provenance.ends
    assert ends is not None
    assert ends["0"] == "<|end|> (tokenizer, generation_config.json, config.json)"
    assert set(ends) == {"0", "5", "9000"}
    assert ends["5"].endswith(" (generation_config.json)")
    stored = project.store.get(record.key)
    assert stored is not None
    assert stored.provenance.ends == ends


def test_what_generate_would_use_is_named_in_the_record_and_on_the_screen(project: Project) -> None:
    generation_config(
        project, forced_bos_token_id=0, no_repeat_ngram_size=3, eos_token_id=0, top_k=20, max_length=99
    )
    done = project.run("method=std", "prompts=1")
    note = (
        "SmolLM2-135M-Instruct: its generation_config.json says forced_bos_token_id=0, "
        "no_repeat_ngram_size=3, which transformers' generate would use and this run does not"
    )
    (record,) = project.store.all()
    assert note in record.provenance.notes
    assert note in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"do_sample": True, "temperature": 0.7, "top_k": 50}, "do_sample=true, temperature=0.7"),
        ({"do_sample": False, "temperature": 0.7, "num_beams": 1, "length_penalty": 2.0}, ""),
        ({"num_beams": 4, "length_penalty": 2.0}, "length_penalty=2.0, num_beams=4"),
        ({"repetition_penalty": 1.0, "min_length": 0, "bad_words_ids": None, "suppress_tokens": []}, ""),
        ({"repetition_penalty": 1.1, "min_new_tokens": 4}, "min_new_tokens=4, repetition_penalty=1.1"),
        ({"stop_strings": ["\n"], "guidance_scale": 1}, 'stop_strings=["\\n"]'),
        ({"a_later_entry": 2, "_from_model_config": True, "use_cache": True}, "a_later_entry=2"),
    ],
)
def test_entries_that_change_an_answer(tmp_path: Path, entries: dict[str, object], says: str) -> None:
    folder = write_folder(tmp_path / "a")
    (folder / "generation_config.json").write_text(json.dumps(entries), encoding="utf-8")
    assert unused_settings(folder) == (f"generation_config.json says {says}" if says else "")


def test_without_that_file_config_json_counts_as_for_transformers(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", forced_bos_token_id=0, vocab_size=9, no_repeat_ngram_size=3)
    assert unused_settings(folder) == "config.json says forced_bos_token_id=0, no_repeat_ngram_size=3"
    theirs = hf.GenerationConfig.from_pretrained(folder, config_file_name="config.json")
    assert (theirs.forced_bos_token_id, theirs.no_repeat_ngram_size) == (0, 3)
    (folder / "generation_config.json").write_text("{}", encoding="utf-8")
    assert unused_settings(folder) == ""


# --- LongBench ----------------------------------------------------------------------------------------------


def test_triviaqa_scores_the_first_line_and_2wikimqa_the_whole_answer() -> None:
    """By LongBench's eval.py: F1 of `Paris` is 1; of `Paris Passage London` it is 2 * 1 / (3 + 1)."""
    rows = [{"input": "", "context": "", "answers": ["Lutetia", "Paris"]}]
    for name, f1, exact in (("longbench_triviaqa", 100.0, 100.0), ("longbench_2wikimqa", 50.0, 0.0)):
        metrics = ["answer_f1", "answer_exact"]
        found = score_answers(metrics, read_config(name), rows, ["\n\nParis\nPassage: London"], ["Paris\n"])
        assert (found.values["task_score"], found.values["answer_exact"]) == (f1, exact)
        assert found.values["target_task_score"] == 100.0
