"""Chat templates: the same prompt on every day, and one sentence for those that fail or leave it out."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers.utils import chat_template_utils

from repro.core.errors import InputError
from repro.models.checkpoints.checkpoint import UNDECIDED_CALLS, CheckpointTokenizer, reads_more_than_messages
from tiny_checkpoints import CHAT, CONTROL, write_folder, write_tokenizer

HI = [{"role": "user", "content": " Hi 12 "}]
LLAMA_32 = (
    "{%- if not date_string is defined %}{%- if strftime_now is defined %}"
    "{%- set date_string = strftime_now('%d %b %Y') %}{%- else %}{%- set date_string = 'never' %}"
    "{%- endif %}{%- endif %}Today: {{ date_string }}. "
    "{% for m in messages %}{{ m.content | trim }}{% endfor %}"
)
DECIDED = {"range", "dict", "namespace", "joiner", "cycler", "raise_exception"}
"""What a template may call that answers the same at all times."""


def folder_in(place: Path, chat: Any = CHAT, **config: Any) -> Path:
    folder = write_folder(place / "checkpoint", **config)
    write_tokenizer(folder, chat=chat)
    return folder


def tokenizer_in(place: Path, chat: Any = CHAT) -> CheckpointTokenizer:
    return CheckpointTokenizer(folder_in(place, chat))


@pytest.mark.parametrize("days", [0, 1, 300])
def test_a_template_is_told_the_same_day_on_every_day(
    days: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.datetime.now(tz) + datetime.timedelta(days=days)

    monkeypatch.setattr(chat_template_utils, "datetime", Later)
    tokens = tokenizer_in(tmp_path, LLAMA_32)
    assert tokens.decode(tokens.chat(HI)) == "Today: 26 Jul 2024. Hi 12"


@pytest.mark.parametrize(
    ("chat", "more"),
    [
        (CHAT, False),
        ("{{ messages[0].content }}{{ enable_thinking }} at random", False),
        (LLAMA_32, True),
        ("{{ messages[0].content }}{{ lipsum() }}", True),
        ("{{ messages[0].content }}{{ ['a', 'b'] |random }}", True),
        (None, False),
    ],
)
def test_what_reads_more_than_the_messages_is_known_without_the_tokenizer(
    chat: str | None, more: bool, tmp_path: Path
) -> None:
    folder = folder_in(tmp_path, chat)
    assert reads_more_than_messages(folder) == more
    if chat:
        (folder / "tokenizer_config.json").unlink()
        (folder / "chat_template.jinja").write_text(chat, encoding="utf-8")
        assert reads_more_than_messages(folder) == more


def test_all_that_transformers_lets_a_template_call_is_decided_or_not() -> None:
    names = set(chat_template_utils._compile_jinja_template("").environment.globals)
    assert {name for name in names if UNDECIDED_CALLS.search(name)} == names - DECIDED


@pytest.mark.parametrize(
    ("chat", "says"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfo %}", "fails: TemplateSyntaxError: .*endfo"),
        ("{{ raise_exception('a system message is needed') }}", "fails: TemplateError: a system message"),
        ("{{ messages[3].content }}", "fails: UndefinedError"),
        ("{{ messages[0].content + 1 }}", "fails: TypeError"),
        ("{{ 1 // 0 }}", "fails: ZeroDivisionError"),
        ([{"name": "tool_use", "template": "T"}, {"name": "rag", "template": "R"}], "fails: ValueError"),
        ("Hello!", "leaves out what the user says"),
        ("{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}", "leaves out"),
    ],
)
def test_a_template_that_fails_or_drops_the_prompt_is_one_sentence(
    chat: Any, says: str, tmp_path: Path
) -> None:
    tokens = tokenizer_in(tmp_path, chat)
    with pytest.raises(InputError, match=rf"(?s)chat template in {tmp_path}/checkpoint {says}"):
        tokens.chat(HI)


def test_the_default_of_several_templates_is_taken(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "D{{ messages[0].content }}"}, {"name": "rag", "template": "R"}]
    tokens = tokenizer_in(tmp_path, named)
    assert tokens.decode(tokens.chat(HI)) == "D Hi 12 "


def test_ids_are_those_that_transformers_makes_of_the_chat(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokens = tokenizer_in(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "checkpoint")
    assert tokens.chat(HI) == theirs.apply_chat_template(HI, add_generation_prompt=True, return_dict=False)


@pytest.mark.parametrize("nested", [False, True])
def test_a_token_that_the_model_has_no_row_for_is_named(nested: bool, tmp_path: Path) -> None:
    rows = len(CONTROL) + 256

    def opened(vocab_size: int) -> CheckpointTokenizer:
        config = {"vocab_size": vocab_size}
        config = {"model_type": "llama", **({"text_config": config} if nested else config)}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return CheckpointTokenizer(folder)

    folder = folder_in(tmp_path, "<|tool|>" + CHAT)
    inner = Tokenizer.from_file(str(folder / "tokenizer.json"))
    inner.add_special_tokens(["<|tool|>"])
    inner.save(str(folder / "tokenizer.json"))
    assert max(opened(rows).encode("all that it has is fine")) < rows
    says = rf"{folder} makes id {rows}, '<.tool.>'.*has {rows} tokens"
    with pytest.raises(InputError, match=says):
        opened(rows).chat(HI)
    with pytest.raises(InputError, match=says):
        opened(rows).encode("a <|tool|> in a row of data")
    assert opened(rows + 1).chat(HI)[0] == rows


@pytest.mark.parametrize("end", [-1, "</s>", [2, None, 1.5], True])
def test_an_end_that_is_no_token_is_refused(end: Any, tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end}), encoding="utf-8")
    with pytest.raises(
        InputError, match=r"generation_config.json has eos_token_id=.*; it must be ids of tok"
    ):
        CheckpointTokenizer(folder)
