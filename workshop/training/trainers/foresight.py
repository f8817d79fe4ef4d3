"""Owns Medusa heads as a trainable model: started as the target's output, saved as `medusa_head` reads them.

A training position is a hidden state of the target with the tokens that follow the target's own next token;
head k is trained on the k-th of them. The output projection is the target's and stays frozen.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from repro.models.checkpoints.safetensors_io import write_tensors
from workshop.training.texts import answers
from workshop.training.texts.answers import Answer
from workshop.training.trainers.training import Schedule, Trainer

NONE = -100
"""Label of a position without a target: the answer ends before it, or the token is not in the loss."""


@dataclass(frozen=True)
class Foreseen(Answer):
    """An answer with the output projection's input before each token, bf16 `final [n, hidden]`."""

    final: Tensor


@dataclass(frozen=True)
class ForesightRecipe(Schedule):
    """Schedule of Medusa heads, each weighted `fade` times the one before (Medusa: 0.8).

    Labels are the target's top `guesses` tokens. `negatives` random tokens represent those of the loss's
    vocabulary that a batch does not mention. `dropout` is applied to the heads' inputs.
    """

    rate: float = 2e-3
    warmup: int = 40
    decay: float = 0.6
    weight_decay: float = 0.1
    fade: float = 0.8
    guesses: int = 4
    dropout: float = 0.1
    negatives: int = 1024


class Heads(nn.Module):
    """Heads of a few residual blocks, x + SiLU(W x + b): `weight [heads, blocks, hidden, hidden]`."""

    def __init__(self, heads: int, blocks: int, hidden: int, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        # Last blocks start at zero, as Medusa's do; earlier ones are random, to break the symmetry.
        weight = 2e-3 * torch.randn(heads, blocks, hidden, hidden, generator=generator)
        weight[:, -1] = 0
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(heads, blocks, hidden))

    def forward(self, final: Tensor) -> Tensor:
        """Outputs of all heads for the target's hidden states: `[n, hidden] -> [heads, n, hidden]`."""
        x = final.float().expand(len(self.weight), *final.shape)
        for block in range(self.weight.shape[1]):
            x = x + F.silu(x @ self.weight[:, block].mT + self.bias[:, block, None])
        return x


def read_foreseen(shards: list[Path], width: int) -> list[Foreseen]:
    """Answers in these shards, with the final norm's output: the last `width` columns of hidden states."""
    return [
        Foreseen(**vars(one), final=hidden[len(one.prompt) - 1 :, -width:].clone())
        for path in shards
        for one, hidden in zip(answers.read_shard(path), answers.read_hidden(path), strict=True)
    ]


def ahead(column: Tensor, heads: int) -> Tensor:
    """Entries of an answer's `column [n, ...]` that each head predicts at each token, `[n, heads, ...]`.

    Entries past the end are `NONE`.
    """
    found = column.new_full((len(column), heads, *column.shape[1:]), NONE)
    for head in range(min(heads, len(column) - 1)):
        found[: -1 - head, head] = column[1 + head :]
    return found


def common_tokens(examples: list[Foreseen], size: int, vocab: int) -> Tensor:
    """Tokens with the largest probability under the target over all answers, at most `size`, ascending."""
    counts = torch.zeros(vocab)
    for one in examples:
        counts.index_add_(0, one.guesses.flatten(), one.logprobs.exp().flatten())
    return counts.topk(min(size, int((counts > 0).sum()))).indices.sort().values


class ForesightTrainer(Trainer):
    """Trainer of Medusa heads."""

    recipe: ForesightRecipe

    def __init__(
        self,
        heads: Heads,
        projection: Tensor,
        known: Tensor,
        recipe: ForesightRecipe,
        state: Path,
        device: str,
    ) -> None:
        """`projection [vocab, hidden]` is the target's; the loss is over the tokens `known [m]`."""
        super().__init__(heads, recipe, state, device)
        self.heads = heads
        self.projection = projection.detach().to(device, torch.bfloat16)[known.to(device)]
        self.place = torch.full((len(projection),), NONE, device=device)
        self.place[known] = torch.arange(len(known), device=device)

    def loss(self, chosen: list[Any]) -> tuple[Tensor, Tensor]:
        """Cross-entropy against the target's top tokens along its answers, weighted over the heads.

        Also returns how often the first head's best token is the target's. Labels outside `known` are
        ignored.
        """
        count, most = len(self.heads.weight), self.recipe.guesses
        final = torch.cat([one.final for one in chosen]).to(self.device)
        wanted = torch.cat([ahead(one.guesses[:, :most], count) for one in chosen]).to(self.device)
        chance = torch.cat([ahead(one.logprobs[:, :most], count) for one in chosen]).to(self.device).exp()
        wanted = torch.where(wanted == NONE, NONE, self.place[wanted.clamp(min=0)])
        chance = torch.where(wanted == NONE, 0.0, chance)
        columns, share = self._columns(wanted[wanted != NONE].unique())
        within = torch.zeros(len(self.projection), dtype=torch.long, device=wanted.device)
        within[columns] = torch.arange(len(columns), device=wanted.device)
        place = within[wanted.clamp(min=0)]
        chance = chance / chance.sum(-1, keepdim=True).clamp(min=1e-6)
        logits = (self.heads(self._dropped(final.float())) @ self.projection[columns].T).float() + share
        total = torch.zeros((), device=wanted.device)
        for head, said in enumerate(logits):
            logq = said.log_softmax(-1).gather(1, place[:, head])
            there = (chance[:, head].sum(-1) > 0).sum().clamp(min=1)
            total = total - self.recipe.fade**head * (chance[:, head] * logq).sum() / there
        first = wanted[:, 0, 0]
        right = (logits[0].detach().argmax(-1) == place[:, 0, 0]) & (first != NONE)
        return total, right.sum() / (first != NONE).sum().clamp(min=1)

    def _dropped(self, rows: Tensor) -> Tensor:
        """Hidden states with dropout, seeded by the step."""
        kept = 1 - self.recipe.dropout
        generator = torch.Generator().manual_seed(self.recipe.seed + self.step)
        mask = torch.rand(rows.shape, generator=generator) < kept
        return rows * mask.to(rows.device) / kept

    def _columns(self, mentioned: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens whose logits a batch needs, and the logarithm of how many tokens each represents."""
        generator = torch.Generator().manual_seed(self.recipe.seed + self.step)
        drawn = torch.randperm(len(self.projection), generator=generator).to(mentioned.device)
        others = drawn[~torch.isin(drawn, mentioned)]
        left, others = len(others), others[: self.recipe.negatives]
        share = torch.zeros(len(mentioned) + len(others), device=mentioned.device)
        share[len(mentioned) :] = math.log(max(1, left) / max(1, len(others)))
        return torch.cat([mentioned, others]), share


@torch.no_grad()
def hits(heads: Heads, projection: Tensor, examples: list[Foreseen]) -> list[Tensor]:
    """For each answer, bool `[n, heads]`: a head's best token is the answer's token."""
    device, found = heads.weight.device, []
    table = projection.detach().to(device).float()
    for one in examples:
        choice = (heads(one.final.to(device)) @ table.T).argmax(-1).T.cpu()
        found.append(choice == ahead(one.tokens, len(heads.weight)))
    return found


def figures(right: list[Tensor]) -> dict[str, float]:
    """Accuracy of each head's best token, and acceptance length of the heads' chain with the bonus token.

    A chain is accepted up to its first miss.
    """
    emitted = verifications = 0
    for one in right:
        at = 0
        while at < len(one):
            step = int(one[at].int().cumprod(0).sum()) + 1
            emitted += min(step, len(one) - at)
            at += step
            verifications += 1
    out = {"acceptance_length_chain": round(emitted / verifications, 4)}
    for head in range(right[0].shape[1]):
        there = torch.cat([one[: max(0, len(one) - 1 - head), head] for one in right])
        out[f"head_{head}"] = round(float(there.float().mean()), 4)
    return out


def save_heads(heads: Heads, base: str, folder: Path) -> None:
    """Write `config.json` and bf16 `model.safetensors` under the public names, without output projections."""
    folder.mkdir(parents=True, exist_ok=True)
    count, blocks = heads.weight.shape[:2]
    tensors = {}
    for head in range(count):
        for block in range(blocks):
            tensors[f"{head}.{block}.linear.weight"] = heads.weight[head, block]
            tensors[f"{head}.{block}.linear.bias"] = heads.bias[head, block]
    halves = {name: t.detach().cpu().bfloat16().contiguous() for name, t in tensors.items()}
    write_tensors(folder / "model.safetensors", halves, {})
    config = {"base_model_name_or_path": base, "medusa_num_heads": count, "medusa_num_layers": blocks}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load_heads(folder: Path) -> Heads:
    """The saved heads in fp32."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors, count, blocks = load_file(folder / "model.safetensors"), *config_sizes(config)
    heads = Heads(count, blocks, tensors["0.0.linear.weight"].shape[0])
    for name, parameter in (("weight", heads.weight), ("bias", heads.bias)):
        for head in range(count):
            for block in range(blocks):
                parameter.data[head, block] = tensors[f"{head}.{block}.linear.{name}"].float()
    return heads


def config_sizes(config: dict[str, Any]) -> tuple[int, int]:
    """Number of heads and of blocks per head in a `config.json`."""
    return config["medusa_num_heads"], config["medusa_num_layers"]
