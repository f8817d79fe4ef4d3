"""A GGUF file's tokenizer gives the ids of the tokenizer that the file was made of, or is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from gguf import GGUFWriter
from tokenizers import Regex, Tokenizer, decoders, models, trainers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Metaspace, Sequence, Split

from repro.core.errors import InputError
from repro.models.checkpoints.checkpoint import CheckpointTokenizer, open_checkpoint, tokenizer
from tiny_checkpoints import NOWHERE, alone
from tiny_families import SHAPE, noised
from tiny_gguf import Fields, write_model

__all__ = ["alone"]

pytestmark = pytest.mark.usefixtures("alone")

CONTRACTED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTES, GPT2 = ByteLevel(add_prefix_space=False, use_regex=False), ByteLevel(add_prefix_space=False)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CUTS: dict[str, Any] = {
    "llama-bpe": Sequence([Split(Regex(CONTRACTED + r"\p{N}{1,3}" + REST), "isolated"), BYTES]),
    "qwen2": Sequence([Split(Regex(CONTRACTED + r"\p{N}" + REST), "isolated"), BYTES]),
    "tekken": Sequence([Split(Regex(TEKKEN), "isolated"), BYTES]),
    "gpt-2": GPT2,
    "smollm": Sequence([Digits(individual_digits=True), GPT2]),
    "starcoder": Sequence([Digits(individual_digits=True), GPT2]),
}
TEXTS = (
    "x  =   12345",
    "I'LL see, DON'T",
    "\treturn foo(bar)\n\n  1",
    "HelloWorld fooBar 2026",
    "日本 1e9 Ünï",
)
CORPUS = ["I'LL DON'T HelloWorld fooBar 日本 12345 1234 2026   =   x\n\n  return foo(bar)\t\t Ünï" * 300]
SPECIAL = ["<s>", "</s>", "<turn>", "<｜User｜>", "<th ink>"]


def trained(pre: str) -> Tokenizer:
    """A byte-level BPE of a text that is cut in one of these ways."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = CUTS[pre], decoders.ByteLevel()
    alphabet = ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet)
    made.train_from_iterator(CORPUS, trainer)
    return made


def written(made: Tokenizer, pre: str | None, *more: Callable[[GGUFWriter], None]) -> Fields:
    """What a GGUF file says of a tokenizer."""
    vocabulary = made.get_vocab()
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    types = [4 if word == "<th ink>" else 3 if word in SPECIAL else 1 for word in words]
    merges = [" ".join(pair) for pair in json.loads(made.to_str())["model"]["merges"]]
    fields: list[Callable[[GGUFWriter], None]] = [
        lambda w: w.add_tokenizer_model("gpt2"),
        lambda w: w.add_token_list(words),
        lambda w: w.add_token_types(types),
        lambda w: w.add_token_merges(merges),
        lambda w: w.add_bos_token_id(0),
        *more,
    ]
    if pre is not None:
        fields.append(lambda w: w.add_tokenizer_pre(pre))
    return fields


END: Fields = (lambda w: w.add_eos_token_id(1),)


def opened(folder: Path, fields: Fields, size: int, kind: str = "llama") -> CheckpointTokenizer:
    shape = SHAPE | {"vocab_size": size, "num_hidden_layers": 1}
    config = hf.Qwen2Config(**shape) if kind == "qwen2" else hf.LlamaConfig(**shape)
    theta: Fields = (lambda w: w.add_rope_freq_base(10_000.0),)
    path = write_model(folder / "tiny.gguf", noised(config, 0), kind, theta, tokens=fields)
    return tokenizer(open_checkpoint(replace(NOWHERE, folder=str(path))))


@pytest.mark.parametrize(("pre", "kind"), [*((pre, "llama") for pre in CUTS), ("qwen2", "qwen2")])
def test_a_text_is_cut_as_the_vocabulary_was_trained(pre: str, kind: str, tmp_path: Path) -> None:
    made = trained(pre)
    no_bos = lambda w: w.add_add_bos_token(False)  # noqa: E731
    found = opened(tmp_path, written(made, pre, *END, no_bos), made.get_vocab_size(), kind)
    for text in (*TEXTS, "a<｜User｜>b<th ink> c<turn>"):
        assert found.encode(text) == made.encode(text).ids, text
        assert found.decode(found.encode(text), special=True) == text


@pytest.mark.parametrize("pre", ["deepseek-llm", "default", None])
def test_a_type_whose_cut_is_not_known_is_refused(pre: str | None, tmp_path: Path) -> None:
    made = trained("gpt-2")
    with pytest.raises(InputError, match=rf"tokenizer.ggml.pre={pre!r}; how that cuts texts is not known"):
        opened(tmp_path, written(made, pre, *END), made.get_vocab_size())


def test_what_begins_and_ends_a_text(tmp_path: Path) -> None:
    """llama.cpp begins with BOS by default for Llama 3's types; every end that the file names is one."""
    made = trained("llama-bpe")
    turn: Fields = (lambda w: w.add_eot_token_id(2),)
    found = opened(tmp_path, written(made, "llama-bpe", *END, *turn), made.get_vocab_size())
    assert found.encode("x") == [0, *made.encode("x").ids]
    assert found.encode("x", special=False) == made.encode("x").ids
    assert found.eos_ids == {1, 2}


FLAGS: dict[str, tuple[Fields, str]] = {
    "a separator": ((*END, lambda w: w.add_add_sep_token(True)), "tokenizer.ggml.add_sep_token=True"),
    "a prefix": ((*END, lambda w: w.add_add_space_prefix(True)), "tokenizer.ggml.add_space_prefix=True"),
    "next year's": ((*END, lambda w: w.add_bool("tokenizer.ggml.novel", True)), "tokenizer.ggml.novel"),
    "no end": ((), "does not say which token is EOS"),
}


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_that_is_not_read_is_refused(name: str, tmp_path: Path) -> None:
    fields, message = FLAGS[name]
    made = trained("gpt-2")
    with pytest.raises(InputError, match=message):
        opened(tmp_path, written(made, "gpt-2", *fields), made.get_vocab_size())


@pytest.mark.parametrize("prefix", [None, True, False])
def test_the_space_before_a_text_is_the_files(prefix: bool | None, tmp_path: Path) -> None:
    words = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    pieces = ["▁", "h", "e", "l", "o", "ll", "he", "llo", "hello", "▁hello"]
    merges = [("l", "l"), ("h", "e"), ("ll", "o"), ("he", "llo"), ("▁", "hello")]
    vocabulary = {word: i for i, word in enumerate([*words, *pieces])}
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    made.pre_tokenizer = Metaspace(prepend_scheme="never" if prefix is False else "first", split=False)
    fields: list[Callable[[GGUFWriter], None]] = [
        lambda w: w.add_tokenizer_model("llama"),
        lambda w: w.add_token_list([*words, *pieces]),
        lambda w: w.add_token_scores([0.0] * len(words) + [-float(i) for i in range(len(pieces))]),
        lambda w: w.add_token_types([2, 3, 3, *[6] * 256, *[1] * len(pieces)]),
        lambda w: w.add_bos_token_id(1),
        lambda w: w.add_eos_token_id(2),
    ]
    if prefix is not None:
        fields.append(lambda w: w.add_add_space_prefix(prefix))
    found = opened(tmp_path, fields, len(vocabulary))
    for text in ("hello", "hello hello", "é hello"):
        assert found.encode(text) == [1, *made.encode(text).ids]
        assert found.decode(found.encode(text)) == text
