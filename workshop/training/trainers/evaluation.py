"""Owns the evaluation of a draft on held-out prompts: greedy agreement and acceptance length of chains."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workshop.training.texts.answers import Answer
from workshop.training.trainers.training import collate


@torch.no_grad()
def hits(draft: PreTrainedModel, answers: list[Answer], rows: int = 8) -> list[Tensor]:
    """For each answer, bool `[n]`: the draft's best token after the true prefix is the target's token."""
    found: list[Tensor] = []
    head = draft.get_output_embeddings().weight
    for start in range(0, len(answers), rows):
        chosen = answers[start : start + rows]
        batch = collate(chosen)
        hidden = draft.model(batch.ids.to(head.device), use_cache=False).last_hidden_state.flatten(0, 1)
        best = (hidden[batch.places.to(head.device)].to(head.dtype) @ head.T).argmax(-1).cpu()
        right = best == torch.cat([one.tokens for one in chosen])
        found += right.split([len(one.tokens) for one in chosen])
    return found


def agreement(right: list[Tensor], first: int) -> float:
    """Share of the first `first` positions of all answers where the draft agrees."""
    cut = torch.cat([one[:first] for one in right])
    return float(cut.float().mean())


def chain(right: list[Tensor], drafts: int, first: int) -> float:
    """Acceptance length of chains of `drafts` tokens: total tokens over verifications, with bonus tokens.

    This is exact: along a greedy answer a drafted chain is accepted up to its first miss, and until then its
    prefix is the true one.
    """
    emitted = verifications = 0
    for one in right:
        flags = one[:first].tolist()
        at = 0
        while at < len(flags):
            ahead = flags[at : at + drafts]
            accepted = ahead.index(False) if False in ahead else len(ahead)
            emitted += min(accepted + 1, len(flags) - at)
            at += accepted + 1
            verifications += 1
    return emitted / verifications


def figures(draft: PreTrainedModel, answers: list[Answer], drafts: int = 8) -> dict[str, float]:
    """Agreement and acceptance over the first 64 and 128 tokens of the target's greedy answers."""
    right = hits(draft, answers)
    return {
        f"{name}_{first}": round(value, 4)
        for first in (64, 128)
        for name, value in (
            ("agreement", agreement(right, first)),
            (f"acceptance_length_chain{drafts}", chain(right, drafts, first)),
        )
    }
