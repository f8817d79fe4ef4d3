"""Greedy decoding of a network, token by token, without a session, a device or a clock."""

from __future__ import annotations

from collections.abc import Callable, Container

from repro.models.forward.network import Logits, Network, rows_of
from repro.models.tokens.prefix import Prefix


def greedy_tokens(
    network: Network,
    prompt: Prefix,
    max_tokens: int,
    stop: Container[int],
    note_row: Callable[[Logits], object] = lambda row: None,
) -> list[int]:
    """The greedy answer to a prompt.

    Args:
        network: the model.
        prompt: the prompt.
        max_tokens: length limit.
        stop: tokens that end the answer; the stop token is included in it.
        seen: called with the row that each token is chosen from.
    """
    tokens: list[int] = []
    text = prompt
    network.start(prompt)
    while len(tokens) < max_tokens:
        (logits,) = rows_of(network, [text])
        note_row(logits)
        tokens.append(logits.choice)
        if logits.choice in stop:
            break
        text = text.then(logits.choice)
        network.keep(text)
    return tokens
