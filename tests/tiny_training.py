"""What trainings of drafts and heads begin with: a tiny target, sources, and rows of datasets."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LAYERS = 6
SOURCE = '''
class Shelf:
    def _is_full(self, books: List[int], limit=3):
        """Tell whether the shelf holds more books than the limit.

        Never shown: a second paragraph.

        >>> Shelf()._is_full([1], 3)
        False
        """
        return len(books) > limit

def undocumented(x):
    return x

def number_{n}(value, step):
    """Return value number {n} after so many steps."""
    return value
'''
TEMPLATE = (
    "{% for m in messages %}<u>{{ m['content'] }}<e>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)


def write_places(root: Path) -> None:
    """Fill a folder with a tiny target, sources to harvest, and rows of datasets."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(["<u>", "<a>", "<e>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<e>", chat_template=TEMPLATE)
    fast.add_special_tokens({"additional_special_tokens": ["<u>", "<a>"]})
    fast.save_pretrained(root / "target")
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS,
        eos_token_id=2, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
        initializer_range=0.3,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        LlamaForCausalLM(config).save_pretrained(root / "target")
    (root / "code").mkdir()
    for n in range(12):
        (root / "code" / f"module_{n:02d}.py").write_text(SOURCE.replace("{n}", str(n)), encoding="utf-8")
    (root / "code" / "broken.py").write_text("def (:", encoding="utf-8")
    rows = {
        "gsm8k": [{"question": f"Ann has {n + 3} of {n + 20}. How many?", "answer": "4"} for n in range(6)],
        "mbpp": [
            {"task_id": n, "text": f"Write {n}.", "code": "", "test_list": [f"assert f({n})"]}
            for n in range(6)
        ],
    }
    (root / "data").mkdir()
    for name, lines in rows.items():
        text = "".join(json.dumps(row) + "\n" for row in lines)
        (root / "data" / f"{name}.jsonl").write_text(text, encoding="utf-8")


def training_command(places: Path, where: Path, **changed: object) -> list[str]:
    """Arguments of a training on a target's answers that take seconds."""
    options: dict[str, object] = {
        "target": places / "target", "out": where / "out", "work": where / "work",
        "code-root": places / "code", "rows": "mbpp:2:6:1", "heldout": "gsm8k:0:2", "tokens": 10**6,
        "batch": 4, "answer": 12, "steps": 60, "every": 20, "batch-tokens": 1024, "rate": 0.01, "threads": 1,
    }  # fmt: skip
    options.update({name.replace("_", "-"): value for name, value in changed.items()})
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]
