"""Train a small draft for a target by distillation on the target's own answers.

    REPRO_DATA=FOLDER python -m workshop.training.train_draft --target FOLDER --out assets/drafts/mine \\
        --rows alpaca:100:200:2 --heldout humaneval:0:40

Makes a decoder of copies of the target's first layers, which shares its frozen embeddings, from the target
and texts. The committed draft took 70 minutes of generating answers and 42 of training on one core. Phases
are those of `phases`.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from repro.core.errors import InputError
from repro.models.checkpoints.safetensors_io import write_tensors
from workshop.training import command, phases
from workshop.training.answers import Answer
from workshop.training.loop import Figures, Part, Schedule

SIZE_LIMIT = 20_000_000  # bytes of the committed file
CHAIN = 8  # drafted tokens of the chains whose acceptance is measured
OF_THE_DRAFT = ("model.layers.", "model.norm.")  # its tensors; embeddings and head are the target's
MLP_ROWS, MLP_COLUMNS = ("gate_proj.weight", "up_proj.weight"), ("down_proj.weight",)
INITIAL_CONFIDENCE = 0.2
"""Factor of the target's final norm in a draft that was just cut, which starts overconfident: its loss starts
near that of a uniform guess (12.8 against 24.6 nats on SmolLM2), which saves about a hundred updates."""


@dataclass(frozen=True)
class DraftRecipe(Schedule):
    """Recipe of a small draft.

    `hard` weights the cross-entropy of the target's greedy token against the divergence from its
    distribution. `negatives` random tokens represent the part of the vocabulary that a batch does not
    mention.
    """

    hard: float = 0.5
    negatives: int = 4096


# --- the model ----------------------------------------------------------------------------------------------


def cut_draft(target: PreTrainedModel, layers: Sequence[int], width: int) -> PreTrainedModel:
    """A decoder of copies of these target layers, their MLPs narrowed to `width`; embeddings frozen."""
    config = copy.deepcopy(target.config)
    if not layers or not set(layers) <= set(range(config.num_hidden_layers)):
        raise InputError(f"layers {list(layers)}: the target has 0 to {config.num_hidden_layers - 1}")
    if not 1 <= width <= config.intermediate_size:
        raise InputError(f"width {width}: the target's MLPs have 1 to {config.intermediate_size} neurons")
    config.num_hidden_layers, config.intermediate_size = len(layers), width
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer] for layer in layers]
    weights = target.state_dict()
    tensors = {name: tensor for name, tensor in weights.items() if not name.startswith("model.layers.")}
    for place, layer in enumerate(layers):
        tensors |= _narrowed(weights, layer, place, width)
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * INITIAL_CONFIDENCE
    return _draft_of(config, tensors)


def _draft_of(config: AutoConfig, tensors: dict[str, Tensor]) -> PreTrainedModel:
    """An fp32 model of these tensors, of which the draft's own alone are trained."""
    draft = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    draft.load_state_dict(tensors)
    for name, parameter in draft.named_parameters():
        parameter.requires_grad_(name.startswith(OF_THE_DRAFT))
    return draft


def _narrowed(weights: dict[str, Tensor], layer: int, place: int, width: int) -> dict[str, Tensor]:
    """The tensors of a target layer as those of layer `place`, with its most important neurons."""
    prefix = f"model.layers.{layer}."
    tensors = {name.removeprefix(prefix): t for name, t in weights.items() if name.startswith(prefix)}
    # A neuron's importance is the product of the norms of its incoming and outgoing weights.
    reach = tensors["mlp.up_proj.weight"].norm(dim=1) * tensors["mlp.down_proj.weight"].norm(dim=0)
    neurons = reach.topk(width).indices.sort().values
    for name in tensors:
        if name.endswith(MLP_ROWS):
            tensors[name] = tensors[name][neurons]
        elif name.endswith(MLP_COLUMNS):
            tensors[name] = tensors[name][:, neurons]
    return {f"model.layers.{place}.{name}": tensor for name, tensor in tensors.items()}


def save_draft(draft: PreTrainedModel, folder: Path) -> None:
    """Write `model.safetensors` (bf16: layers and final norm) and `config.json` with `shares_embeddings`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().cpu().bfloat16().contiguous()
        for name, tensor in draft.state_dict().items()
        if name.startswith(OF_THE_DRAFT)
    }
    write_tensors(folder / phases.WEIGHTS, tensors, {})
    config = draft.config.to_diff_dict() | {
        "architectures": [type(draft).__name__],
        "dtype": "bfloat16",
        "model_type": draft.config.model_type,
        "shares_embeddings": True,
        "tie_word_embeddings": draft.config.tie_word_embeddings,
    }
    names = {"_name_or_path", "_model_name_or_path"}
    command.write_json(folder / "config.json", {key: config[key] for key in sorted({*config} - names)})


def load_draft(folder: Path, target: PreTrainedModel) -> PreTrainedModel:
    """The saved draft in fp32 with the target's embeddings (and head, where the two differ)."""
    shared = {name: t for name, t in target.state_dict().items() if not name.startswith(OF_THE_DRAFT)}
    return _draft_of(AutoConfig.from_pretrained(folder), shared | load_file(folder / phases.WEIGHTS))


# --- the loss -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Right-padded `ids [b, t]`, and the answer positions with the target's top tokens there.

    `places [n]` index the flattened `[b * t]` positions; `guesses`, `logprobs` are `[n, k]`.
    """

    ids: Tensor
    places: Tensor
    guesses: Tensor
    logprobs: Tensor


def collate(answers: Sequence[Answer], device: str | torch.device = "cpu") -> Batch:
    """One batch; padding needs no mask, since it is to the right of everything that is predicted."""
    longest = max(answer.size for answer in answers)
    ids = torch.zeros(len(answers), longest, dtype=torch.long)
    places = []
    for row, answer in enumerate(answers):
        ids[row, : answer.size] = torch.cat([answer.prompt, answer.tokens])
        places.append(torch.arange(len(answer.prompt) - 1, answer.size - 1) + row * longest)
    guesses, logprobs = (
        torch.cat([getattr(answer, name) for answer in answers]) for name in ("guesses", "logprobs")
    )
    return Batch(*(part.to(device) for part in (ids, torch.cat(places), guesses, logprobs)))


def states(draft: PreTrainedModel, batch: Batch) -> Tensor:
    """The draft's final hidden states at the answer positions of a batch, `[n, hidden]`."""
    return draft.model(batch.ids, use_cache=False).last_hidden_state.flatten(0, 1)[batch.places]


@dataclass(frozen=True)
class DraftLoss:
    """The divergence from the target's distribution at the answer positions; see `distillation_loss`."""

    draft: PreTrainedModel
    recipe: DraftRecipe

    def __call__(self, answers: list[Answer], step: int) -> Iterator[Part]:
        """The loss of a batch in one part."""
        head = self.draft.get_output_embeddings().weight
        generator = torch.Generator().manual_seed(self.recipe.seed + step)
        negatives = torch.randperm(head.shape[0], generator=generator)[: self.recipe.negatives]
        batch = collate(answers, head.device)
        hidden = states(self.draft, batch)
        yield distillation_loss(hidden, head, batch, negatives.to(head.device), self.recipe.hard)


def distillation_loss(hidden: Tensor, head: Tensor, batch: Batch, negatives: Tensor, hard: float) -> Part:
    """Divergence from the target plus `hard` times the cross-entropy of its greedy token; and the agreement.

    `hidden [n, d]`, `head [vocab, d]`, `negatives [m]`. Logits are computed for the tokens that the batch
    mentions and for the negatives, each of which represents an equal share of the rest of the vocabulary. All
    tokens outside the target's k guesses form one class.
    """
    known, where = batch.guesses.unique(return_inverse=True)
    others = negatives[~torch.isin(negatives, known)]
    logits = (hidden @ head[torch.cat([known, others])].to(hidden.dtype).T).float()
    if len(others):
        share = (head.shape[0] - len(known)) / len(others)
        logits[:, len(known) :] += torch.log(torch.tensor(share))
    logq = logits.log_softmax(-1).gather(1, where)
    p = batch.logprobs.exp()
    tail_p, tail_q = ((1 - part.sum(-1)).clamp(min=1e-6) for part in (p, logq.exp()))
    divergence = (p * (batch.logprobs - logq)).sum(-1) + tail_p * (tail_p.log() - tail_q.log())
    loss = divergence.mean() - hard * logq[:, 0].mean()
    return loss, (logits.argmax(-1) == where[:, 0]).float().mean()


# --- its figures --------------------------------------------------------------------------------------------


@torch.no_grad()
def hits(draft: PreTrainedModel, answers: list[Answer], rows: int = 8) -> list[Tensor]:
    """For each answer, bool `[n]`: the draft's best token after the true prefix is the target's token."""
    right: list[Tensor] = []
    head = draft.get_output_embeddings().weight
    for start in range(0, len(answers), rows):
        chosen = answers[start : start + rows]
        hidden = states(draft, collate(chosen, head.device))
        best = (hidden.to(head.dtype) @ head.T).argmax(-1).cpu()
        agreed = best == torch.cat([answer.tokens for answer in chosen])
        right += agreed.split([len(answer.tokens) for answer in chosen])
    return right


def chain_runs(right: Tensor, drafts: int = CHAIN) -> list[int]:
    """At each position of an answer, the accepted tokens of a chain of `drafts` that starts there."""
    runs: list[int] = []
    for agreed in reversed(right.tolist()):
        runs.append(min(drafts, runs[-1] + 1 if runs else 1) if agreed else 0)
    return runs[::-1]


def figures_of(right: list[Tensor]) -> Figures:
    """Agreement and acceptance over the first 64 and 128 tokens of the target's greedy answers."""
    figures: Figures = {}
    for first in (64, 128):
        cut = [agreed[:first] for agreed in right]
        figures[f"agreement_{first}"] = round(float(torch.cat(cut).float().mean()), 4)
        figures[f"acceptance_length_chain{CHAIN}_{first}"] = phases.acceptance_length(map(chain_runs, cut))
    return figures


# --- the command --------------------------------------------------------------------------------------------


class DraftTraining(phases.AnswerTraining[PreTrainedModel]):
    """One run of the command, which trains a small draft."""

    script, raw, sampled = "train_draft", 0.06, 0.25

    def recipe(self) -> DraftRecipe:
        """See `AnswerTraining`."""
        args = self.args
        return DraftRecipe(steps=args.steps, tokens=args.batch_tokens, rate=args.rate, seed=args.seed)

    def begin(self, target: PreTrainedModel) -> tuple[PreTrainedModel, phases.Loss]:
        """See `AnswerTraining`."""
        width = min(self.args.width, target.config.intermediate_size)
        draft = cut_draft(
            target, range(self.args.layers), width
        )  # better than evenly spaced: workshop/README.md
        if self.args.device == "cpu":  # updates are 15% faster here than with the fused kernel in bf16
            draft.set_attn_implementation("eager")
        return draft, DraftLoss(draft, self.recipe())

    def save(self, model: PreTrainedModel) -> None:
        """See `AnswerTraining`."""
        save_draft(model, self.args.out)

    def load(self, target: PreTrainedModel) -> PreTrainedModel:
        """The saved draft; InputError if its file is too large to be committed."""
        size = (self.args.out / phases.WEIGHTS).stat().st_size
        if size > SIZE_LIMIT:
            raise InputError(f"draft of {size} bytes: {SIZE_LIMIT} at most; lower --layers or --width")
        return load_draft(self.args.out, target)

    def figures(self, model: PreTrainedModel, heldout: list[Answer]) -> Figures:
        """See `AnswerTraining`."""
        return figures_of(hits(model, heldout))


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; defaults are those of the committed draft unless its record says otherwise."""
    defaults = {"tokens": 600_000, "tasks": 0, "stubs": 10**6}
    parser = phases.options(__doc__, ".cache/draft", **defaults)
    add = parser.add_argument
    add("--layers", type=int, default=3, help="copies of the target's first layers, to start from")
    add("--width", type=int, default=1408, help="neurons of the draft's MLPs, at most the target's")
    return phases.checked(command.parsed(parser, argv))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the wanted phases in order."""
    DraftTraining(arguments(argv)).run()


if __name__ == "__main__":
    command.run(main)
