"""ElastiLM's dual-head tiny language model (3.3): one encoder, whose upper layers there are twice.

Owns the network, what of it is trained, and the file of a trained head. Must not know where heads lie, which
tokenizer it reads, what a request is, or how labels come about.

A request's objective is told in two tokens of the encoder's vocabulary that are not words: [02] to [10] for
TTFT, <02> to <10> for TPOT, orthogonal at first. Deviation: the paper needs <05> to <10> only; objectives of
time and energy (5.6) go down to 0.2, so every level has both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.models.checkpoints.safetensors_io import CONFIG, read_config, read_tensors, write_tensors

LEVELS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""What the classes of the decision head mean, for prompt and model alike, and what objectives are told in."""

PARTS = ("score", "decision")


@dataclass(frozen=True)
class HeadSettings:
    """What is trained beside an encoder.

    Attributes:
        shared: the share of layers that both heads have in common and that nothing trains.
        rank: of the update of each matrix of the upper layers; 0 trains these layers whole, as in the paper.
            Deviation: with a rank heads are small enough to lie with the project.
        seed: of everything that is drawn.
    """

    shared: float = 0.5
    rank: int = 16
    seed: int = 0

    @classmethod
    def read(cls, folder: Path) -> HeadSettings:
        """The form of the heads in a folder; InputError if its `config.json` says none."""
        said = read_config(folder).get("form")
        if not isinstance(said, dict) or set(said) != set(cls.__dataclass_fields__):
            raise InputError(f"{folder} holds no heads: its {CONFIG} must say their form, not {said!r}")
        return cls(**said)


class Updated(nn.Module):
    """A linear that stays as it is, and an update of low rank that at first adds nothing."""

    def __init__(self, linear: nn.Linear, rank: int, chance: torch.Generator) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        bound = linear.in_features**-0.5
        drawn = 2.0 * torch.rand(rank, linear.in_features, generator=chance) - 1.0
        self.narrow = nn.Parameter(drawn * bound)
        self.wide = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """`[..., inputs]` to `[..., outputs]`."""
        return cast(Tensor, self.linear(x)) + x @ self.narrow.T @ self.wide.T


class DualHead(nn.Module):
    """The network. Nothing is trainable until `train_only` says what is.

    Attributes:
        words: ids of the encoder's own vocabulary; the ids behind it are the objective's tokens.
        positions: how many ids a text may have.
    """

    def __init__(self, encoder: nn.Module, form: HeadSettings) -> None:
        """`encoder` is one that `load_encoder` gave; its layers become this network's."""
        super().__init__()
        if not 0.0 <= form.shared < 1.0:
            raise InputError(f"heads cannot share {form.shared} of the layers; choose from 0 to below 1")
        config: Any = encoder.config
        chance = torch.Generator().manual_seed(form.seed)
        self.form = form
        self.embeddings = cast(nn.Module, encoder.embeddings)
        layers = list(cast(Any, encoder).encoder.layer)
        split = int(form.shared * len(layers))
        self.bottom = nn.ModuleList(layers[:split])
        self.upper = nn.ModuleDict({name: _upper(layers[split:], form.rank, chance) for name in PARTS})
        self.words, self.positions = int(config.vocab_size), int(config.max_position_embeddings)
        width = int(config.hidden_size)
        self.keep = _linear(width, 2, chance)
        self.prompt, self.model = (_linear(width, len(LEVELS), chance) for _ in range(2))
        self.objective = nn.Parameter(orthogonal(2 * len(LEVELS), self._table, chance))
        self.requires_grad_(False)
        self.eval()

    @property
    def _table(self) -> Tensor:
        table: Tensor = cast(Any, self.embeddings).word_embeddings.weight
        return table.detach()

    def objective_ids(self, ttft: float, tpot: float) -> tuple[int, int]:
        """The ids of two levels' tokens; InputError if a level has none."""
        for level in (ttft, tpot):
            if level not in LEVELS:
                raise InputError(unknown("level", f"{level:g}", [f"{one:g}" for one in LEVELS]))
        return self.words + LEVELS.index(ttft), self.words + len(LEVELS) + LEVELS.index(tpot)

    def retain(self, ids: Tensor, real: Tensor | None = None) -> Tensor:
        """Logits of dropping and retaining each token, `[texts, tokens, 2]`.

        Args:
            ids: `[texts, tokens]`.
            real: bool of the same shape, False where a text is filled up; None where none is.
        """
        return cast(Tensor, self.keep(self._rows("score", ids, real)))

    def decide(self, ids: Tensor, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits of prompt and model levels, each `[texts, levels]`, by each text's first token."""
        first = self._rows("decision", ids, real)[:, 0]
        return self.prompt(first), self.model(first)

    def _rows(self, part: str, ids: Tensor, real: Tensor | None) -> Tensor:
        own = ids >= self.words
        words = F.embedding(ids.masked_fill(own, 0), self._table)
        told = F.embedding((ids - self.words).clamp(min=0), self.objective)
        words = torch.where(own[..., None], told, words)
        mask = None
        if real is not None:
            words = words.masked_fill(~real[..., None], 0.0)  # MobileBERT's embedding looks at neighbours
            mask = torch.zeros(real.shape).masked_fill(~real, torch.finfo(torch.float32).min)[:, None, None]
        x: Tensor = self.embeddings(inputs_embeds=words)
        for layer in (*self.bottom, *cast(nn.ModuleList, self.upper[part])):
            out = layer(x, mask)
            x = out if isinstance(out, Tensor) else out[0]
        return x

    def part(self, name: str) -> dict[str, nn.Parameter]:
        """What training one head changes: its upper layers, or their updates, and what reads them."""
        if name not in PARTS:
            raise InputError(unknown("head", name, PARTS))
        heads = {"score": ("keep.",), "decision": ("prompt.", "model.")}[name]
        within = f"upper.{name}."
        return {
            key: value
            for key, value in self.named_parameters()
            if key.startswith(heads)
            or (key.startswith(within) and (not self.form.rank or key.endswith((".narrow", ".wide"))))
        }

    def train_only(self, name: str) -> None:
        """Freeze all but one head."""
        self.requires_grad_(False)
        for value in self.part(name).values():
            value.requires_grad_(True)

    def save(self, name: str, path: Path) -> None:
        """Write one head in fp16; the decision's with the objective's tokens, which it trains too."""
        tensors = {key: value.detach() for key, value in self.part(name).items()}
        if name == "decision":
            tensors["objective"] = self.objective.detach()
        write_tensors(path, {key: value.half().contiguous() for key, value in tensors.items()}, {})

    def load(self, name: str, path: Path) -> None:
        """Take one head from a file; InputError if it is not of this form."""
        found = read_tensors(path)
        into: dict[str, nn.Parameter] = dict(self.part(name))
        if name == "decision":
            into["objective"] = self.objective
        if wrong := _unlike(found, into):
            raise InputError(f"{path} holds no {name} head of this form: {wrong} differs or is missing")
        with torch.no_grad():
            for key, value in into.items():
                value.copy_(found[key].float())


def orthogonal(count: int, words: Tensor, chance: torch.Generator) -> Tensor:
    """Vectors at right angles to each other, as long as words' vectors are in the mean.

    Raises:
        InputError: the vectors have fewer dimensions than there are to be vectors.
    """
    width = words.shape[1]
    if width < count:
        raise InputError(f"{count} vectors of {width} dimensions cannot be orthogonal to each other")
    drawn = torch.randn(width, count, generator=chance, dtype=torch.float64)
    made: Tensor = torch.linalg.qr(drawn).Q.T * words.double().norm(dim=1).mean()
    return made.float().contiguous()


def _upper(layers: Sequence[nn.Module], rank: int, chance: torch.Generator) -> nn.ModuleList:
    own = nn.ModuleList(deepcopy(list(layers)))
    if rank:
        _update(own, rank, chance)
    return own


def _update(module: nn.Module, rank: int, chance: torch.Generator) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, Updated(child, rank, chance))
        else:
            _update(child, rank, chance)


def _linear(inputs: int, outputs: int, chance: torch.Generator) -> nn.Linear:
    made = nn.Linear(inputs, outputs)
    with torch.no_grad():
        made.weight.copy_(0.02 * torch.randn(outputs, inputs, generator=chance))
        made.bias.zero_()
    return made


def _unlike(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str | None:
    names: Iterable[str] = sorted({*found, *wanted})
    return next(
        (n for n in names if n not in found or n not in wanted or found[n].shape != wanted[n].shape), None
    )
