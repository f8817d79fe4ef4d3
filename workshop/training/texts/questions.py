"""Owns questions that a target generates itself, by continuing the start of a user turn; uses no dataset.

An instruction-tuned model was also trained on user turns, so what it samples there is as varied as its
training data (the idea of Magpie).
"""

from __future__ import annotations

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from repro.core.errors import InputError
from workshop.training.texts.answers import Limits, answer
from workshop.training.texts.prompts import Item

SOURCE = "own_questions"
LIMITS = Limits(batch=64, answer=64, guesses=64)
SHORTEST = 20  # characters; shorter ones are greetings
TRIES = 4  # samples per wanted question; about three in four end in time and are new
PLACE = "\0"


def own_questions(
    target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, count: int, seed: int
) -> list[Item]:
    """`count` different questions, sampled at temperature 1 after the chat template's start of a user turn.

    Raises:
        InputError: too few of the samples end in time and are new.
    """
    message = [{"role": "user", "content": PLACE}]
    opening = tokenizer.apply_chat_template(message, tokenize=False).partition(PLACE)[0]
    asked = [(list(tokenizer.encode(opening, add_special_tokens=False)), 1.0)] * LIMITS.batch
    found: dict[str, None] = {}
    for tried in range(0, TRIES * count, LIMITS.batch):
        if len(found) >= count:
            break
        for one in answer(target, asked, LIMITS, seed + tried, tokenizer.eos_token_id):
            text = tokenizer.decode(one.tokens[:-1]).strip()
            if one.tokens[-1] == tokenizer.eos_token_id and len(text) >= SHORTEST:
                found[text] = None
    if len(found) < count:
        raise InputError(f"own {count}: the target gave {len(found)} questions in {TRIES * count} samples")
    return [Item("chat", SOURCE, text, 0.0) for text in list(found)[:count]]
