"""Train LEVER's early-exit predictor (sec. 4.3) for a target, on the target's own answers.

    python -m workshop.training.train_predictor --target FOLDER --draft FOLDER --answers SHARDS --out FOLDER

Makes a low-rank change of the output projection's input after a middle layer, from answers as `train_draft`
or `train_eagle` generate them. The committed predictor took 69 seconds on one core. On a GPU add `--device
cuda`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from repro.core.errors import InputError
from repro.methods.lever.exit_predictor import PredictorConfig
from repro.models.checkpoints.safetensors_io import write_tensors
from repro.models.transformer import weights
from workshop.training import answers, command
from workshop.training.answers import Answer
from workshop.training.loop import Figures, Part, Recipe, Training
from workshop.training.train_draft import Batch, collate, load_draft, states

SIZE_LIMIT = 3_000_000  # bytes of the committed file
PARTS = 10  # one part of the prompts is held out
ROWS = 8  # answers in one pass of the target
REPORTS = 10  # of a training
NEAR = 3  # the draft's top candidates, of which trees mostly consist; the rest of C(u) rarely appear in them
SPARED = 0.95  # share of the target's tokens kept at the threshold by which predictors are compared


@dataclass(frozen=True)
class PredictorRecipe(Recipe):
    """Settings of one predictor: `layer` and `rank` of its form, the others of its loss and optimizer.

    `weight` is lambda_Cand of Eq. 8, `kd` and `candidates` are the temperatures of Eq. 9 and 10. `negatives`
    random tokens represent the part of the vocabulary that a batch of `batch` positions does not mention; 0
    uses the whole vocabulary.
    """

    steps: int = 300
    rate: float = 1e-3
    weight_decay: float = 0.0
    layer: int = 24
    rank: int = 576
    weight: float = 1.0
    kd: float = 1.0
    candidates: float = 1.0
    batch: int = 256
    negatives: int = 4096

    def rate_at(self, progress: float, step: int) -> float:
        """A short warm-up, then linear decay."""
        return self.rate * min(1.0, (progress + 0.01) / 0.05, 1.02 - progress)


OPTIONS = [field for field in fields(PredictorRecipe) if field.name not in ("weight_decay", "seed")]


# --- what it learns from ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExitPositions:
    """Training data at `n` answer positions.

    `hidden [n, d]` are the states after the predictor's layer, scaled by the final norm; `said [n, d]` the
    inputs of the output projection that give the target's logits; `guesses [n, j]` the target's best tokens;
    `candidates [n, k]` the draft's, best first.
    """

    hidden: Tensor
    said: Tensor
    guesses: Tensor
    candidates: Tensor

    def __len__(self) -> int:
        return len(self.said)


def split(said: list[Answer], tokens: int) -> tuple[list[Answer], list[Answer]]:
    """Answers to train on, about `tokens` tokens, and held-out ones; split by prompt hash."""
    trained, heldout, used = list[Answer](), list[Answer](), 0
    for answer in said:
        digest = hashlib.sha256(answer.prompt.numpy().tobytes()).digest()
        if digest[0] % PARTS == 0:
            heldout.append(answer)
        elif used < tokens:
            trained.append(answer)
            used += len(answer.tokens)
    if not trained or not heldout:
        raise InputError(f"{len(trained)} answers to train on and {len(heldout)} held out: generate more")
    return trained, heldout


def positions(
    target: PreTrainedModel, draft: PreTrainedModel, said: list[Answer], layer: int, width: int
) -> ExitPositions:
    """All positions of these answers, sorted by length to reduce padding; `width` candidates at each."""
    ordered = sorted(said, key=lambda answer: answer.size)
    candidates = proposed(draft, ordered, width)
    hidden, last = middle(target, ordered, layer)
    guesses = torch.cat([answer.guesses for answer in ordered]).to(target.device)
    return ExitPositions(hidden, last, guesses, candidates)


@torch.no_grad()
def middle(target: PreTrainedModel, said: list[Answer], layer: int) -> tuple[Tensor, Tensor]:
    """Hidden states after a layer, scaled by the final norm, and the output projection's input: `[n, d]`."""
    parts = []
    for batch in _batches(said, target.device):
        with torch.autocast(target.device.type, dtype=torch.bfloat16):  # hidden states stay fp32
            passed = target.model(batch.ids, use_cache=False, output_hidden_states=True).hidden_states
        parts.append([passed[at].flatten(0, 1)[batch.places] for at in (layer, len(passed) - 1)])
    hidden, last = map(torch.cat, zip(*parts, strict=True))
    return target.model.norm(hidden), last  # which the norm was applied to already


@torch.no_grad()
def proposed(draft: PreTrainedModel, said: list[Answer], width: int) -> Tensor:
    """The draft's `width` best tokens at all answer positions, best first: `[n, width]`."""
    head = draft.get_output_embeddings().weight.bfloat16()
    best = []
    for batch in _batches(said, head.device):
        with torch.autocast(head.device.type, dtype=torch.bfloat16):
            hidden = states(draft, batch)
        best.append((hidden.to(head.dtype) @ head.T).topk(width, -1).indices)
    return torch.cat(best)


def _batches(said: list[Answer], device: torch.device) -> Iterator[Batch]:
    return (collate(said[start : start + ROWS], device) for start in range(0, len(said), ROWS))


# --- the change and its loss --------------------------------------------------------------------------------


class Change(nn.Module):
    """Low-rank change P Q of the output projection's input.

    `inner` is Q `[rank, d]`, `outer` is P `[d, rank]`.
    """

    def __init__(self, inner: Tensor, outer: Tensor) -> None:
        super().__init__()
        self.inner, self.outer = nn.Parameter(inner), nn.Parameter(outer)

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states `[n, d]` with the change added, as input of the frozen output projection."""
        return x + (x @ self.inner.T) @ self.outer.T


def start(known: ExitPositions, rank: int) -> Change:
    """The rank-limited least-squares change that maps the middle layer's states to the last layer's.

    The loss is convex in the full-rank change; this start saves minutes of updates compared with a zero
    change.
    """
    x = known.hidden.double()
    apart = (known.said.double() - x).float().double()
    ridge = 1e-3 * len(x) * torch.eye(x.shape[1], dtype=torch.float64, device=x.device)
    whole = torch.linalg.solve(x.T @ x + ridge, x.T @ apart)  # [d, d]: x @ whole is near apart
    left, sizes, right = torch.linalg.svd(whole)
    root = sizes[:rank].sqrt()
    inner = (left[:, :rank] * root).T.float().contiguous()
    return Change(inner, (right[:rank].T * root).float().contiguous())


def sampled_vocabulary(
    mentioned: Tensor, whole: int, negatives: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Tokens `[m]`, ascending, whose logits a batch computes, and the logarithm of how many each represents.

    The `mentioned` tokens stand for themselves, and random others for equal shares of the rest.
    Deviation: Eq. 9 runs over the whole vocabulary, which takes six times as long on a CPU. Here tokens that
    target and draft find likely are computed exactly, and the tail from a sample.
    """
    if not negatives:
        return torch.arange(whole, device=mentioned.device), torch.zeros(whole, device=mentioned.device)
    known = mentioned.unique()
    drawn = torch.randperm(whole, generator=generator)[:negatives].to(known.device)
    others = drawn[~torch.isin(drawn, known)]
    share = torch.tensor((whole - len(known)) / max(1, len(others))).log().to(known.device)
    represented = torch.cat([torch.zeros_like(known, dtype=torch.float32), share.expand(len(others))])
    tokens, order = torch.cat([known, others]).sort()
    return tokens, represented[order]


class PredictorLoss:
    """Eq. 8 at the positions of a batch; what stands for the rest of the vocabulary is drawn in turn."""

    def __init__(self, change: Change, known: ExitPositions, head: Tensor, recipe: PredictorRecipe) -> None:
        """`head [vocab, d]` is the target's output projection."""
        self.change, self.known, self.head, self.recipe = change, known, head, recipe
        self.generator = torch.Generator().manual_seed(recipe.seed)

    def __call__(self, places: Tensor, step: int) -> Iterator[Part]:
        """The loss of a batch in one part, and how often target and predictor agree on the best token."""
        known, head = self.known, self.head
        places = places.to(head.device)
        candidates = known.candidates[places]
        mentioned = torch.cat([known.guesses[places], candidates], 1)
        tokens, represented = sampled_vocabulary(mentioned, len(head), self.recipe.negatives, self.generator)
        table = head[tokens].bfloat16()
        with torch.autocast(head.device.type, enabled=False):
            with torch.no_grad():
                target = (known.said[places].bfloat16() @ table.T).float()
            student = (self.change(known.hidden[places]).bfloat16() @ table.T).float()
            among = torch.searchsorted(tokens, candidates)
            total = divergences(target, student, among, represented, self.recipe)
        yield total, (target.argmax(-1) == student.argmax(-1)).float().mean()


def divergences(
    target: Tensor, student: Tensor, candidates: Tensor, represented: Tensor, recipe: PredictorRecipe
) -> Tensor:
    """Eq. 8, the mean over positions: logits of both `[n, m]`, indices of the candidates `[n, k]`."""
    many = (logits / recipe.kd + represented for logits in (target, student))
    few = (logits.gather(1, candidates) / recipe.candidates for logits in (target, student))
    whole, local = _divergence(*many), _divergence(*few)
    return recipe.kd**2 * whole + recipe.weight * recipe.candidates**2 * local


def _divergence(target: Tensor, student: Tensor) -> Tensor:
    logp, logq = target.log_softmax(-1), student.log_softmax(-1)
    return (logp.exp() * (logp - logq)).sum(-1).mean()


def fit(
    known: ExitPositions, head: Tensor, recipe: PredictorRecipe, minutes: float = 1e9
) -> tuple[Change, Training]:
    """A trained change, and its training; it takes seconds, so that no state is written."""
    change = start(known, recipe.rank)
    training = Training(change, recipe, None, str(head.device))
    generator = torch.Generator().manual_seed(recipe.seed)

    def batches(epoch: int) -> Sequence[Tensor]:
        order = torch.randperm(len(known), generator=generator)
        return order.split(min(recipe.batch, len(known)))

    every = max(1, recipe.steps // REPORTS)
    loss = PredictorLoss(change, known, head, recipe)
    training.run(batches, loss, minutes=minutes, every=every)
    return change.requires_grad_(False), training


@torch.no_grad()
def figures_of(change: Change, known: ExitPositions, head: Tensor, rows: int = 256) -> Figures:
    """Metrics of a change and of the draft, as shares of positions.

    `covered`: the target's token is a candidate. Of those positions, `first`: the predictor ranks it first,
    and `draft_first`: the draft does. `anywhere`: it is the predictor's best token of the whole vocabulary.
    `wrong_cut`: share of the wrong ones among the draft's first three candidates that fall below the
    threshold that keeps 95% of the target's tokens; `threshold` is that threshold.
    """
    chosen, best, shares = [], [], []
    for part in torch.arange(len(known), device=head.device).split(rows):
        student = change(known.hidden[part]) @ head.T
        chosen.append((known.said[part] @ head.T).argmax(-1))
        best.append(student.argmax(-1))
        shares.append(student.gather(1, known.candidates[part]).softmax(-1))
    token, guess, share = torch.cat(chosen), torch.cat(best), torch.cat(shares)
    right = known.candidates == token[:, None]
    covered = right.any(1)
    ranked = share.argmax(1) == right.float().argmax(1)
    threshold = float(share[right].quantile(1 - SPARED))
    wrong = share[:, :NEAR][~right[:, :NEAR]]
    out = {
        "covered": covered.float().mean(),
        "first": ranked[covered].float().mean(),
        "draft_first": right[covered, 0].float().mean(),
        "anywhere": (guess == token).float().mean(),
        "wrong_cut": (wrong < threshold).float().mean(),
        "threshold": torch.tensor(threshold),
    }
    return {name: round(float(value), 4) for name, value in out.items()}


# --- the command --------------------------------------------------------------------------------------------


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; defaults are those of the committed predictor unless its record says otherwise."""
    parser = command.parser_of(__doc__)
    command.add_common(parser)
    add = parser.add_argument
    add("--target", type=Path, required=True, help="folder with config.json, safetensors and a tokenizer")
    add("--draft", type=Path, required=True, help="a draft that shares the target's embeddings")
    add("--answers", type=Path, required=True, help="folder with the target's answers in shards")
    add("--tokens", type=int, default=10**9, help="answer tokens to train on, at most")
    add("--width", type=int, default=8, help="candidates of the draft at a position, |C(u)|")
    for field in OPTIONS:
        about = "see PredictorRecipe (default %(default)s)"
        add(f"--{field.name}", type=type(field.default), default=field.default, help=about)
    args = command.parsed(parser, argv)
    for option in ("target", "draft"):
        command.require_checkpoint(getattr(args, option), option)
    if not answers.shards(args.answers):
        raise InputError(f"answers {args.answers}: no shards there; train_draft --phases plan,generate")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Train a predictor, and write its folder."""
    args = arguments(argv)
    recipe = PredictorRecipe(**{field.name: getattr(args, field.name) for field in OPTIONS}, seed=args.seed)
    target = command.open_model(args.target, args.device, torch.float32)
    depth = target.config.num_hidden_layers
    if not 0 < recipe.layer < depth:
        raise InputError(f"layer {recipe.layer}: a predictor looks after 1 to {depth - 1} layers")
    draft = load_draft(args.draft, target).to(args.device).eval()
    parts = split(answers.read_answers(answers.shards(args.answers)), args.tokens)
    known, heldout = (positions(target, draft, part, recipe.layer, args.width) for part in parts)
    head = target.get_output_embeddings().weight.detach()
    change, training = fit(known, head, recipe, args.minutes)
    result = {
        "updates": training.step,
        "seconds": round(training.seconds),
        "loss": training.curve[-1]["loss"],
        **figures_of(change, heldout, head),
    }
    print(json.dumps(result, indent=2))
    sizes = {
        f"{name}_{what}": len(of)
        for name, said, rows in zip(("trained", "heldout"), parts, (known, heldout), strict=True)
        for what, of in (("answers", said), ("positions", rows))
    }
    vocab, hidden = head.shape
    config = PredictorConfig(
        target={"name": args.target.name, "digest": weights.digest(args.target)},
        layers=depth,
        layer=recipe.layer,
        hidden=hidden,
        vocab=vocab,
        rank=len(change.inner),
        temperatures={"kd": recipe.kd, "candidates": recipe.candidates},
    )
    write(
        args,
        config,
        change,
        recipe=asdict(recipe),
        data=answers.described(args.answers) | sizes,
        result=result,
    )


def write(args: argparse.Namespace, config: PredictorConfig, change: Change, **found: Any) -> None:
    """Write the predictor's folder: configuration, fp16 tensors, training record."""
    out, update = args.out, args.out / "update.safetensors"
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: part.detach().half().cpu().contiguous() for name, part in change.named_parameters()}
    write_tensors(update, tensors, {})
    command.write_json(out / "config.json", asdict(config))
    if (size := update.stat().st_size) > SIZE_LIMIT:
        raise InputError(f"predictor of {size} bytes: {SIZE_LIMIT} at most; lower --rank")
    target, draft = map(command.checkpoint_hashes, (args.target, args.draft))
    record = out / "training.json"
    command.write_record(record, args, "train_predictor", update, target=target, draft=draft, **found)


if __name__ == "__main__":
    command.run(main)
