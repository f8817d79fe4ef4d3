"""LEVER's early-exit predictor: scores candidate next tokens from a middle layer's hidden states (sec. 4.3).

Owns the scores. Must not know about trees, pruning, billing or training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.libraries import Tensor, torch
from repro.models.checkpoints.digest import digest
from repro.models.checkpoints.safetensors_io import StoredTensors
from repro.models.checkpoints.weight_files import read_config
from repro.models.transformer.decoder import Decoder, DecoderConfig
from repro.models.transformer.inference import inference

Candidates = tuple[int, ...]
"""C(u): the draft's candidate tokens after a node, plus the tokens of the node's children."""


@dataclass(frozen=True)
class PredictorConfig:
    """Contents of a predictor's `config.json`.

    Attributes:
        target: name and content digest of the checkpoint it was trained on.
        layers: number of layers of that target.
        layer: number of layers computed before the predictor runs.
        hidden: hidden size d.
        vocab: vocabulary size.
        rank: rank of the update to the frozen output projection.
        temperatures: training temperatures: `kd` of Eq. 9, `candidates` of Eq. 10.
    """

    target: Mapping[str, str]
    layers: int
    layer: int
    hidden: int
    vocab: int
    rank: int
    temperatures: Mapping[str, float]

    @classmethod
    def read(cls, folder: Path | str) -> PredictorConfig:
        """Read a predictor folder's configuration; InputError if it is missing or has wrong fields."""
        entries: dict[str, Any] = read_config(folder)
        if set(entries) != set(cls.__dataclass_fields__):
            raise InputError(
                f"{Path(folder) / 'config.json'} is no predictor's: it has the fields {sorted(entries)}, "
                f"not {sorted(cls.__dataclass_fields__)}"
            )
        config = cls(**entries)
        if not 0 < config.layer < config.layers:
            raise InputError(
                f"{folder}: layer is {config.layer}; a predictor looks after 1 to {config.layers - 1}"
            )
        return config


class ExitPredictor:
    """Scores s(u, a) = W[a] . h_u (Eq. 7), with W = E (I + P Q) and h_u after the target's final norm.

    E is the target's frozen output projection, `inner` is Q and `outer` is P. The low-rank update maps hidden
    states of the middle layer to the basis that E expects. Only the rows E[a] of candidates are read.

    Deviation: the paper uses the unnormalized hidden state. Here the target's final norm is applied first, as
    it is before every use of E. It puts the scores of all nodes on one scale, which a single threshold needs.

    Attributes:
        config: its configuration.
        digest: content hash of its folder.
    """

    def __init__(
        self, config: PredictorConfig, decoder: Decoder, inner: Tensor, outer: Tensor, digest: str = ""
    ) -> None:
        """A predictor for a target; `inner` is Q `[rank, d]`, `outer` is P `[d, rank]`.

        Raises:
            InputError: the target has another shape, or its output projection is not its embedding table.
        """
        require_fit(config, decoder.config)
        self.config = config
        self.digest = digest
        self._norm = decoder.ends.final_norm
        self._projection = decoder.ends.embedding
        device = self._projection.device
        self._inner, self._outer = (part.float().to(device) for part in (inner, outer))

    @classmethod
    def load(cls, folder: Path | str, decoder: Decoder) -> ExitPredictor:
        """Load the predictor in a folder (`config.json`, `update.safetensors`) for its target.

        Raises:
            InputError: a file or tensor is missing or has the wrong shape; the target does not fit.
        """
        config, stored = PredictorConfig.read(folder), StoredTensors(folder)
        inner = stored.take("inner", (config.rank, config.hidden))
        outer = stored.take("outer", (config.hidden, config.rank))
        return cls(config, decoder, inner, outer, digest(folder))

    @property
    def layer(self) -> int:
        """Number of target layers computed before the predictor runs."""
        return self.config.layer

    @property
    def rank(self) -> int:
        """Rank of the update to the output projection."""
        return self.config.rank

    @inference
    def scores(self, hidden: Tensor, candidates: Sequence[Candidates]) -> list[Tensor]:
        """Scores of each node's candidates: for node `i` fp32 `[len(candidates[i])]`.

        `hidden` is fp32 `[nodes, d]`, the output of layer `layer - 1`. InputError if the counts differ.
        """
        if len(hidden) != len(candidates):
            raise InputError(f"{len(hidden)} hidden rows, but candidates for {len(candidates)}")
        lengths = [len(tokens) for tokens in candidates]
        device = self._projection.device
        token_ids = torch.tensor([token for tokens in candidates for token in tokens], device=device).long()
        row_of = torch.arange(len(lengths), device=device).repeat_interleave(
            torch.tensor(lengths, device=device).long()
        )
        rows = self._project(hidden.to(device))
        products = (self._projection[token_ids].float() * rows[row_of]).sum(-1)
        return list(torch.split(products, lengths))

    def _project(self, hidden: Tensor) -> Tensor:
        x = hidden.float() if self._norm is None else self._norm(hidden)
        return x + (x @ self._inner.T) @ self._outer.T


def require_fit(config: PredictorConfig, shape: DecoderConfig) -> None:
    """InputError unless a predictor's shape matches the target's.

    The digest in `config.target` is provenance only and not compared: it differs between formats of the same
    model.
    """
    sizes, actual = (config.layers, config.hidden, config.vocab), (shape.layers, shape.hidden, shape.vocab)
    if sizes != actual:
        raise InputError(
            f"the predictor belongs to {config.target.get('name')!r} with (layers, hidden, vocab) {sizes}; "
            f"this target has {actual}"
        )
    if not shape.tied or shape.projects or shape.logit_cap is not None:
        raise InputError(
            "a predictor reads an output projection that is the embedding table itself, "
            "without a projection before it or a cap on logits; this target's is not"
        )
