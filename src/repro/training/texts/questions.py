"""Owns the questions that a target asks itself, by going on from where a user would speak; knows no dataset.

An instruction model was trained on users' words too, so what it samples there is as varied as what it was
trained on (the idea of Magpie), and no row of any dataset is needed.
"""

from __future__ import annotations

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from repro.core.errors import InputError
from repro.training.texts.answers import Limits, answer
from repro.training.texts.prompts import Item

SOURCE = "own_questions"
LIMITS = Limits(batch=64, answer=64, guesses=64)
SHORTEST = 20  # characters; below are greetings
TRIES = 4  # samples a wanted question; about three in four end in time and are new
PLACE = "\0"


def own_questions(
    target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, count: int, seed: int
) -> list[Item]:
    """`count` different questions, sampled at temperature 1 after the chat template's opening for a user.

    Raises:
        InputError: the target ends too few of its samples to give so many.
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
