"""What trainings of drafts and heads begin with: a tiny target, sources, questions, held-out prompts."""

from __future__ import annotations

import gzip
import json
import zipfile
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
    """Fill a folder with a tiny target, sources to harvest, questions, and a wheel of held-out prompts."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(["<u>", "<a>", "<e>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<e>", chat_template=TEMPLATE)
    fast.add_special_tokens({"additional_special_tokens": ["<u>", "<a>"]})
    fast.save_pretrained(root / "target")
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=48, num_hidden_layers=3, eos_token_id=2,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, initializer_range=0.3,
    )  # fmt: skip
    write_target(config, root, seed=0)
    (root / "code").mkdir()
    for n in range(12):
        (root / "code" / f"module_{n:02d}.py").write_text(SOURCE.replace("{n}", str(n)), encoding="utf-8")
    (root / "code" / "broken.py").write_text("def (:", encoding="utf-8")
    questions = [{"question": f"What is {n} and {n}?"} for n in range(6)]
    (root / "questions.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in questions), encoding="utf-8"
    )
    rows = [{"prompt": f'def held_{n}(x):\n    """Give {n}."""\n'} for n in range(4)]
    with zipfile.ZipFile(root / "heldout.whl", "w") as wheel:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        wheel.writestr("package/data/HumanEval.jsonl.gz", gzip.compress(text.encode()))


def write_deep_places(root: Path) -> None:
    """The same with a target that is deep enough to have three features, and with rows of datasets."""
    write_places(root)
    config = LlamaConfig(
        vocab_size=259, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, eos_token_id=2,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, initializer_range=0.3,
    )  # fmt: skip
    write_target(config, root, seed=1)
    rows = {
        "gsm8k": [{"question": f"Ann has {n + 3} of {n + 20}. How many?", "answer": "4"} for n in range(6)],
        "mbpp": [
            {"task_id": n, "text": f"Write {n}.", "code": "", "test_list": [f"assert f({n})"]}
            for n in range(6)
        ],
    }
    data = root / "data"
    data.mkdir()
    for name, lines in rows.items():
        (data / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in lines), encoding="utf-8"
        )


def write_target(config: LlamaConfig, root: Path, seed: int) -> None:
    """A random target, the same whatever tests ran before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(root / "target")


def draft_command(places: Path, where: Path, **changed: object) -> list[str]:
    """Arguments of `train_draft.py` that take seconds."""
    options: dict[str, object] = {
        "target": places / "target", "out": where / "out", "work": where / "work",
        "code-root": places / "code",
        "prompts": f"{places / 'questions.jsonl'}:2:6", "heldout": f"{places / 'heldout.whl'}:0:3",
        "heldout-chat": f"{places / 'questions.jsonl'}:0:2", "tokens": 10**6, "batch": 4, "answer": 12,
        "layers": 2, "width": 40, "steps": 60, "every": 20, "batch-tokens": 1024, "rate": 0.01, "threads": 1,
    }  # fmt: skip
    options.update({name.replace("_", "-"): value for name, value in changed.items()})
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]
