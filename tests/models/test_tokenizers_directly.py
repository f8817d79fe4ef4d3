"""A tokenizer that was opened before needs no `transformers`, and says what `transformers` says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from transformers import AutoTokenizer

from repro.models.checkpoints.checkpoint import CheckpointTokenizer
from tiny_checkpoints import CHAT, write_folder, write_tokenizer

CLASSES = ("PreTrainedTokenizerFast", "GPT2Tokenizer", "Qwen2Tokenizer", "LlamaTokenizer")
TEXTS = (
    "Hello, world!  two spaces\n\n\ttab",
    "naïve Café 12345 日本語 🙂",
    "<|im_start|>user\nHi<|im_end|>",
    "",
    " a",
)
HI = [{"role": "user", "content": "Hi 12"}]


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPRO_CACHE", str(tmp_path / "cache"))
    made = write_folder(tmp_path / "checkpoint")
    write_tokenizer(made, chat=CHAT)
    config = json.loads((made / "tokenizer_config.json").read_text(encoding="utf-8"))
    config |= {"tokenizer_class": getattr(request, "param", CLASSES[0])}
    (made / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return made


def refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on `transformers` opens no tokenizer."""

    def from_pretrained(*_: Any, **__: Any) -> None:
        raise AssertionError("transformers was asked for a tokenizer")

    monkeypatch.setattr(hf.AutoTokenizer, "from_pretrained", from_pretrained)


@pytest.mark.parametrize("folder", CLASSES, indirect=True)
def test_it_says_what_transformers_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = AutoTokenizer.from_pretrained(folder)
    CheckpointTokenizer(folder).chat(HI)
    refuse(monkeypatch)
    ours = CheckpointTokenizer(folder)
    for text in TEXTS:
        for special in (True, False):
            ids = theirs.encode(text, add_special_tokens=special)
            assert ours.encode(text, special) == ids
            decoded = theirs.decode(ids, skip_special_tokens=not special, clean_up_tokenization_spaces=False)
            assert ours.decode(ids, special) == decoded
    assert ours.chat(HI) == theirs.apply_chat_template(HI, add_generation_prompt=True, return_dict=False)
    assert ours.vocabulary == theirs.get_vocab()
    assert ours.has_chat
    assert theirs.eos_token_id in (None, *ours.eos_ids)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_a_changed_file_is_read_again(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    CheckpointTokenizer(folder)
    (folder / name).write_text((folder / name).read_text(encoding="utf-8") + "\n", encoding="utf-8")
    refuse(monkeypatch)
    with pytest.raises(Exception, match="transformers was asked for a tokenizer"):
        CheckpointTokenizer(folder)


def test_a_class_that_decodes_in_its_own_way_is_left_to_transformers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shouting(self: Any, token_ids: Any, **_: Any) -> str:
        return "SHOUT"

    kind = type(AutoTokenizer.from_pretrained(folder))
    own = type("Own", (kind,), {"_decode": shouting})
    monkeypatch.setattr(hf.AutoTokenizer, "from_pretrained", lambda place, **_: own.from_pretrained(place))
    for _ in range(2):
        assert CheckpointTokenizer(folder).decode([1]) == "SHOUT"
