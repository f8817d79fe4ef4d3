"""LEVER's early-exit predictor: scores candidate next tokens from a middle layer's hidden states (sec. 4.3).

Owns the scores, each of which is computed once: hidden states are asked for only if one is missing. Must not
know about trees, pruning, passes, billing or training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.core.errors import InputError
from repro.libraries import Tensor, torch
from repro.models.checkpoints.digest import digest
from repro.models.checkpoints.safetensors_io import StoredTensors
from repro.models.checkpoints.weight_files import read_config
from repro.models.forward.logit_cache import LogitCache
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.decoder import Decoder, DecoderConfig
from repro.models.transformer.inference import inference

if TYPE_CHECKING:
    from repro.models.runtime.model import Model


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
        config, stored_tensors = PredictorConfig.read(folder), StoredTensors(folder)
        inner = stored_tensors.take("inner", (config.rank, config.hidden))
        outer = stored_tensors.take("outer", (config.hidden, config.rank))
        return cls(config, decoder, inner, outer, digest(folder))

    @property
    def layer(self) -> int:
        """Number of target layers computed before the predictor runs."""
        return self.config.layer

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


def require_fit(config: PredictorConfig, target: DecoderConfig) -> None:
    """InputError unless a predictor's shape matches the target's.

    The digest in `config.target` is provenance only and not compared: it differs between formats of the same
    model.
    """
    sizes, actual = (config.layers, config.hidden, config.vocab), (target.layers, target.hidden, target.vocab)
    if sizes != actual:
        raise InputError(
            f"the predictor belongs to {config.target.get('name')!r} with (layers, hidden, vocab) {sizes}; "
            f"this target has {actual}"
        )
    if not target.tied or target.projects or target.logit_cap is not None:
        raise InputError(
            "a predictor reads an output projection that is the embedding table itself, "
            "without a projection before it or a cap on logits; this target's is not"
        )


class ExitScores:
    """A predictor with a cache of its scores: rows of candidates and scores, by sequence.

    A score is a dot product of its own, so it depends neither on the other candidates nor on the tree.

    Attributes:
        layer: number of target layers computed before the predictor runs.
        predictor: opens the predictor, when a score is computed.
        digest: content hash of its folder.
    """

    kind = "predictor"

    def __init__(
        self,
        layer: int,
        predictor: Callable[[], ExitPredictor],
        memo: LogitCache | None = None,
        digest: str = "",
    ) -> None:
        self.layer = layer
        self.predictor = predictor
        self.digest = digest
        self._memo = memo

    @property
    def variant(self) -> str:
        """See `SideNetwork`."""
        return variant_of(self.digest)

    def compare(self, memo: LogitCache, judge: Callable[[int, float], None]) -> ComparedScores:
        """See `SideNetwork`."""
        return ComparedScores(self, memo, judge)

    def remember(self, memo: LogitCache) -> None:
        """Look scores up in a cache from now on, and store new ones in it."""
        self._memo = memo

    def scores(
        self, prefixes: Sequence[Prefix], candidates: Sequence[Candidates], hidden: Callable[[], Tensor]
    ) -> list[list[float]]:
        """Scores of each sequence's candidates, of fp32.

        Args:
            prefixes: the sequences.
            candidates: the candidates after each; a sequence without any costs nothing.
            hidden: computes the hidden states after layer `layer`, fp32 `[len(prefixes), d]`.
        """
        memo = self._memo
        if memo is None:
            return self._compute(hidden, candidates)
        looked_up = (self._look_up(memo, *node) for node in zip(prefixes, candidates, strict=True))
        cached = [row for row in looked_up if row is not None]
        if len(cached) == len(prefixes):
            return cached
        rows = self._compute(hidden, candidates)
        memo.add_scores(
            (prefix.digest, dict(zip(tokens, row, strict=True)))
            for prefix, tokens, row in zip(prefixes, candidates, rows, strict=True)
            if tokens
        )
        return rows

    def _compute(self, hidden: Callable[[], Tensor], candidates: Sequence[Candidates]) -> list[list[float]]:
        return [row.tolist() for row in self.predictor().scores(hidden(), candidates)]

    def _look_up(self, memo: LogitCache, prefix: Prefix, tokens: Candidates) -> list[float] | None:
        """The scores of some candidates; None unless all are known."""
        if not tokens:
            return []
        cached = memo.scores(prefix.digest)
        return [cached[token] for token in tokens] if cached.keys() >= set(tokens) else None


class ComparedScores(ExitScores):
    """Scores computed anew, each compared with the cached one, if there is one."""

    def __init__(self, scores: ExitScores, cache: LogitCache, judge: Callable[[int, float], None]) -> None:
        """See `SideNetwork.compare`."""
        super().__init__(scores.layer, scores.predictor, digest=scores.digest)
        self._cache = cache
        self._judge = judge

    def scores(
        self, prefixes: Sequence[Prefix], candidates: Sequence[Candidates], hidden: Callable[[], Tensor]
    ) -> list[list[float]]:
        """See `ExitScores`."""
        rows = super().scores(prefixes, candidates, hidden)
        for prefix, tokens, row in zip(prefixes, candidates, rows, strict=True):
            cached = self._cache.scores(prefix.digest) if tokens else {}
            for token, score in zip(tokens, row, strict=True):
                self._judge(prefix.length, abs(score - cached.get(token, score)))
        return rows


def variant_of(predictor: str) -> str:
    """The variant of a target's outputs that the scores of a predictor with this digest are."""
    return f"-exit{predictor[:16]}"


def scores_variant(target: Model) -> str:
    """The same, of the predictor that a target's checkpoint names; "" if it names none."""
    name = target.config.checkpoint and target.config.checkpoint.predictor
    return variant_of(digest(predictor_folder(target))) if name else ""


def exit_scores_of(target: Model) -> ExitScores:
    """The scores of a target's predictor, which is opened when the first is computed.

    Raises:
        InputError: the target has no predictor, or one that does not fit.
    """
    folder = predictor_folder(target)
    config = PredictorConfig.read(folder)
    require_fit(config, target.decoder_config)
    load = cache(lambda: ExitPredictor.load(folder, target.decoder(is_resident=False)))
    return ExitScores(config.layer, load, digest=digest(folder))


def predictor_folder(target: Model) -> Path:
    """The folder of a target's predictor; InputError if it has none."""
    from repro.models.checkpoints.origin import folders, to_install  # late: a list of methods opens none

    name = target.config.checkpoint.predictor if target.config.checkpoint else None
    path = next((folder for folder in folders(name) if folder.exists()), None) if name else None
    if path is None:
        raise InputError(
            f"{target.config.name} has no early-exit predictor"
            + (f" in {name!r}" if name else "")
            + to_install(name or "")
            + "; train one (workshop.training.train_predictor) and name it in the checkpoint's "
            "`predictor`, or choose method.pruning=off"
        )
    return path
