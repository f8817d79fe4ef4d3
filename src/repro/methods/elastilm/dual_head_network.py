"""ElastiLM's dual-head tiny language model (3.3): one encoder with two copies of its upper layers.

Owns the network, its trainable parameters, and the file of a trained head. Must not know where heads are
stored, which tokenizer is used, what a request is, or how labels are made.

A request's SLO is encoded as two special tokens: [02] to [10] for TTFT, <02> to <10> for TPOT, with
orthogonal initial embeddings. Deviation: for TPOT the paper needs <05> to <10> only; time and energy
objectives (5.6) go down to 0.2, so every level has both tokens.
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
from repro.methods.serving.slo import LEVELS
from repro.models.checkpoints.safetensors_io import read_tensors, write_tensors
from repro.models.checkpoints.weight_files import CONFIG_FILE, read_config

PARTS = ("score", "decision")


@dataclass(frozen=True)
class HeadSettings:
    """Settings of the trainable heads on an encoder.

    Attributes:
        shared: fraction of layers that both heads share; these are frozen.
        rank: rank of the low-rank updates to the upper layers; 0 trains these layers fully, as in the paper.
            Deviation: heads of low rank are small enough to be stored in the repository.
        seed: seed of the random initialization.
    """

    shared: float = 0.5
    rank: int = 16
    seed: int = 0

    @classmethod
    def read(cls, folder: Path) -> HeadSettings:
        """The settings of the heads in a folder; InputError if its `config.json` has none."""
        entries = read_config(folder).get("form")
        if not isinstance(entries, dict) or set(entries) != set(cls.__dataclass_fields__):
            raise InputError(
                f"{folder} holds no heads: its {CONFIG_FILE} must say their form, not {entries!r}"
            )
        return cls(**entries)


class Updated(nn.Module):
    """A frozen linear plus a low-rank update (LoRA), which is zero at first."""

    def __init__(self, linear: nn.Linear, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        largest_value = linear.in_features**-0.5
        random_values = 2.0 * torch.rand(rank, linear.in_features, generator=generator) - 1.0
        self.narrow = nn.Parameter(random_values * largest_value)
        self.wide = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """`[..., inputs]` to `[..., outputs]`."""
        return cast(Tensor, self.linear(x)) + x @ self.narrow.T @ self.wide.T


class DualHead(nn.Module):
    """The network, with all parameters frozen; a head is trained by its `part`.

    Attributes:
        vocab: size of the encoder's vocabulary; larger ids are SLO tokens.
        positions: maximum length of a text in tokens.
    """

    def __init__(self, encoder: nn.Module, settings: HeadSettings) -> None:
        """`encoder` comes from `load_encoder`; the network takes over its layers."""
        super().__init__()
        if not 0.0 <= settings.shared < 1.0:
            raise InputError(f"heads cannot share {settings.shared} of the layers; choose from 0 to below 1")
        config: Any = encoder.config
        generator = torch.Generator().manual_seed(settings.seed)
        self.form = settings
        self.embeddings = cast(nn.Module, encoder.embeddings)
        layers = list(cast(Any, encoder).encoder.layer)
        count = int(settings.shared * len(layers))
        self.bottom = nn.ModuleList(layers[:count])
        self.upper = nn.ModuleDict({name: _upper(layers[count:], settings.rank, generator) for name in PARTS})
        self.vocab, self.positions = int(config.vocab_size), int(config.max_position_embeddings)
        width = int(config.hidden_size)
        self.keep = _linear(width, 2, generator)
        self.prompt, self.model = (_linear(width, len(LEVELS), generator) for _ in range(2))
        self.objective = nn.Parameter(orthogonal(2 * len(LEVELS), self._table, generator))
        self.requires_grad_(False)
        self.eval()

    @property
    def _table(self) -> Tensor:
        table: Tensor = cast(Any, self.embeddings).word_embeddings.weight
        return table.detach()

    def objective_ids(self, ttft: float, tpot: float) -> tuple[int, int]:
        """The ids of the SLO tokens of two levels; InputError if a level is not in `LEVELS`."""
        for level in (ttft, tpot):
            if level not in LEVELS:
                raise InputError(unknown("level", f"{level:g}", [f"{choice:g}" for choice in LEVELS]))
        return self.vocab + LEVELS.index(ttft), self.vocab + len(LEVELS) + LEVELS.index(tpot)

    def retain(self, ids: Tensor, real_positions: Tensor | None = None) -> Tensor:
        """Logits of dropping and of keeping each token, `[texts, tokens, 2]`.

        Args:
            ids: `[texts, tokens]`.
            real_positions: bool of the same shape, False for padding; None if there is no padding.
        """
        return cast(Tensor, self.keep(self._rows("score", ids, real_positions)))

    def decide(self, ids: Tensor, real_positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits of prompt and model levels, each `[texts, levels]`, from each text's first token."""
        first_rows = self._rows("decision", ids, real_positions)[:, 0]
        return self.prompt(first_rows), self.model(first_rows)

    def _rows(self, part: str, ids: Tensor, real_positions: Tensor | None) -> Tensor:
        is_objective = ids >= self.vocab
        embeddings = F.embedding(ids.masked_fill(is_objective, 0), self._table)
        objectives = F.embedding((ids - self.vocab).clamp(min=0), self.objective)
        embeddings = torch.where(is_objective[..., None], objectives, embeddings)
        mask = None
        if real_positions is not None:
            # MobileBERT's embedding reads neighbours.
            embeddings = embeddings.masked_fill(~real_positions[..., None], 0.0)
            mask = torch.zeros(real_positions.shape).masked_fill(
                ~real_positions, torch.finfo(torch.float32).min
            )[:, None, None]
        x: Tensor = self.embeddings(inputs_embeds=embeddings)
        for layer in (*self.bottom, *cast(nn.ModuleList, self.upper[part])):
            states = layer(x, mask)
            x = states if isinstance(states, Tensor) else states[0]
        return x

    def part(self, name: str) -> dict[str, nn.Parameter]:
        """The trainable parameters of one head: its upper layers, or their updates, and its classifiers."""
        if name not in PARTS:
            raise InputError(unknown("head", name, PARTS))
        beginnings = {"score": ("keep.",), "decision": ("prompt.", "model.")}[name]
        prefix = f"upper.{name}."
        return {
            key: value
            for key, value in self.named_parameters()
            if key.startswith(beginnings)
            or (key.startswith(prefix) and (not self.form.rank or key.endswith((".narrow", ".wide"))))
        }

    def save(self, name: str, path: Path) -> None:
        """Write one head in fp16; the decision head's file also holds the SLO token embeddings."""
        tensors = {key: value.detach() for key, value in self.part(name).items()}
        if name == "decision":
            tensors["objective"] = self.objective.detach()
        write_tensors(path, {key: value.half().contiguous() for key, value in tensors.items()}, {})

    def load(self, name: str, path: Path) -> None:
        """Load one head from a file; InputError if its tensors do not match."""
        tensors = read_tensors(path)
        parameters: dict[str, nn.Parameter] = dict(self.part(name))
        if name == "decision":
            parameters["objective"] = self.objective
        if wrong_name := _unlike(tensors, parameters):
            raise InputError(f"{path} holds no {name} head of this form: {wrong_name} differs or is missing")
        with torch.no_grad():
            for key, value in parameters.items():
                value.copy_(tensors[key].float())


def orthogonal(vector_count: int, embeddings: Tensor, generator: torch.Generator) -> Tensor:
    """`vector_count` orthogonal random vectors with the mean norm of the word embeddings.

    Raises:
        InputError: the embedding width is smaller than `vector_count`.
    """
    width = embeddings.shape[1]
    if width < vector_count:
        raise InputError(f"{vector_count} vectors of {width} dimensions cannot be orthogonal to each other")
    gaussian = torch.randn(width, vector_count, generator=generator, dtype=torch.float64)
    vectors: Tensor = torch.linalg.qr(gaussian).Q.T * embeddings.double().norm(dim=1).mean()
    return vectors.float().contiguous()


def _upper(layers: Sequence[nn.Module], rank: int, generator: torch.Generator) -> nn.ModuleList:
    copies = nn.ModuleList(deepcopy(list(layers)))
    if rank:
        _update(copies, rank, generator)
    return copies


def _update(module: nn.Module, rank: int, generator: torch.Generator) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, Updated(child, rank, generator))
        else:
            _update(child, rank, generator)


def _linear(input_count: int, output_count: int, generator: torch.Generator) -> nn.Linear:
    linear = nn.Linear(input_count, output_count)
    with torch.no_grad():
        linear.weight.copy_(0.02 * torch.randn(output_count, input_count, generator=generator))
        linear.bias.zero_()
    return linear


def _unlike(tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> str | None:
    names: Iterable[str] = sorted({*tensors, *parameters})
    return next(
        (
            n
            for n in names
            if n not in tensors or n not in parameters or tensors[n].shape != parameters[n].shape
        ),
        None,
    )
