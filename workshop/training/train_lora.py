"""Recover the accuracy of an elastic model's level with LoRA adapters (ElastiLM 3.2), on task-agnostic data.

    REPRO_DATA=FOLDER python -m workshop.training.train_lora --out assets/elastic/smollm2-135m --level 0.5
        --texts wikitext2_train,cnn_dailymail,bookcorpus

Makes adapters beside the profile that `elasticize` wrote to `--out`, from questions with references and from
texts. The committed ones took 20 to 25 minutes each on one core; a killed run continues with the same
command. At full size, on a GPU: --device cuda --batch-tokens 16384 --at-once 4096 --minutes 1e9. Prints the
line for `methods/elastilm/elastic_profile.COMMITTED` that makes runs use the folder with these adapters.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoTokenizer

from repro import data
from repro.core.errors import InputError
from repro.data.prompts import Prompt
from repro.methods.elastilm import elastic_profile, lora
from repro.methods.elastilm.elastic_levels import anchors_of, sizes_at
from repro.methods.elastilm.elastic_profile import PROFILE_FILE, lora_file
from repro.methods.elastilm.lora import Adapter, Lora, Site
from repro.methods.elastilm.submodels import LayerSizes, Order, UnitDecoder, reorder, submodel
from repro.methods.elastilm.unit_importance import DifferentiableDecoder
from repro.models.transformer import weights
from repro.scenarios.accuracy import AccuracyScenario
from workshop.training import command
from workshop.training.answers import Answer
from workshop.training.elasticize import ANCHORS, committed_line, scenario
from workshop.training.loop import Figures, Part, Schedule, Training, by_length, packed

SYSTEMS = ("elastilm", "llm_pruner")
PAPER = tuple(name for name in lora.MATRICES if name != "gate")  # 3.2 names q, k, v, o, up and down
HELDOUT = 0.05


# --- texts --------------------------------------------------------------------------------------------------


def answered(
    prompts: Sequence[Prompt], references: Sequence[Sequence[int]], end: int, longest: int
) -> list[Answer]:
    """Questions with their references and the end token as answers, cut at `longest` tokens in all."""
    answers = []
    for prompt, reference in zip(prompts, references, strict=True):
        tokens = [*reference, end][: longest - len(prompt.token_ids)]
        if tokens and len(prompt.token_ids) < longest:
            answers.append(Answer(torch.tensor(prompt.token_ids), torch.tensor(tokens)))
    if len(answers) < 2:
        raise InputError(
            f"{len(answers)} of {len(prompts)} rows fit {longest} tokens; raise --length or --rows"
        )
    return answers


def continued(texts: Iterable[Sequence[int]], end: int, length: int, most: int) -> list[Answer]:
    """Texts with end tokens, concatenated and cut into pieces of `length` tokens, `most` tokens in all.

    The first token of a piece is its prompt and the rest its answer, so every other token is learned, as in
    pre-training.
    """
    if length < 2:
        raise InputError(f"length is {length}; a piece of text predicts something from 2 tokens on")
    flat = itertools.islice(itertools.chain.from_iterable([*text, end] for text in texts), most)
    whole = torch.tensor(list(flat), dtype=torch.long)
    pieces = whole[: len(whole) // length * length].view(-1, length)
    if len(pieces) < 2:
        raise InputError(
            f"the texts have {len(whole)} tokens, fewer than two pieces of {length}; lower --length"
        )
    return [Answer(piece[:1], piece[1:]) for piece in pieces]


@dataclass(frozen=True)
class Texts:
    """Training texts, held-out ones, and the digests of the rows by dataset."""

    trained: list[Answer] = field(default_factory=list)
    heldout: list[Answer] = field(default_factory=list)
    rows: dict[str, str] = field(default_factory=dict)


def read_texts(args: argparse.Namespace, cell: AccuracyScenario) -> Texts:
    """The questions of `--dataset` and the `--texts`; the last twentieth of each is held out."""
    bare, texts = AutoTokenizer.from_pretrained(cell.folder), Texts()

    def encode(text: str) -> list[int]:
        return list(bare.encode(text, add_special_tokens=False))

    for name in filter(None, [args.dataset, *args.texts.split(",")]):
        config = data.read_config(name)
        rows = data.load_rows(config, args.rows, cell.config.get("data_dir"))
        prompts = data.prompts(config, rows, cell.target.tokenizer)
        if name == args.dataset:
            references = [encode(prompt.reference) for prompt in prompts]
            read = answered(prompts, references, bare.eos_token_id, args.length)
        else:
            encoded = (encode(prompt.text) for prompt in prompts)
            read = continued(encoded, bare.eos_token_id, args.length, args.text_tokens)
        count = max(1, round(HELDOUT * len(read)))
        texts.trained.extend(read[:-count])
        texts.heldout.extend(read[-count:])
        texts.rows[name] = rows.digest
    return texts


# --- the adapters and their loss ----------------------------------------------------------------------------


class Adapters(nn.Module):
    """Adapters as parameters, initialized to add nothing."""

    def __init__(
        self, sub: UnitDecoder, kept: LayerSizes, matrices: Sequence[str], rank: int, seed: int
    ) -> None:
        super().__init__()
        chance = torch.Generator().manual_seed(seed)
        self.sites = {}
        for site, (inputs, outputs) in lora.shapes(sub.config, kept, matrices).items():
            bound = 1.0 / math.sqrt(inputs)
            narrow = nn.Parameter((2.0 * torch.rand(rank, inputs, generator=chance) - 1.0) * bound)
            wide = nn.Parameter(torch.zeros(outputs, rank))
            self.register_parameter(f"{site.layer}_{site.matrix}_narrow", narrow)
            self.register_parameter(f"{site.layer}_{site.matrix}_wide", wide)
            self.sites[site] = Adapter(narrow, wide)

    def lora(self, kept: LayerSizes, order: Order) -> Lora:
        """The current adapters, sharing memory with the parameters."""
        return Lora(dict[Site, Adapter](self.sites), kept, order.digest)


@dataclass(frozen=True)
class RecoveryLoss:
    """The loss on answer tokens, in passes of at most `at_once` tokens."""

    decoder: DifferentiableDecoder
    at_once: int
    device: str

    def __call__(self, texts: list[Answer], step: int) -> Iterator[Part]:
        """Each pass's part of the mean loss per answer token, and of the share predicted correctly."""
        count = sum(len(text.tokens) for text in texts)
        for some in packed(texts, self.at_once):
            loss, right = packed_loss(self.decoder, some, self.device)
            yield loss / count, right * sum(len(text.tokens) for text in some) / count

    @torch.no_grad()
    def heldout(self, texts: Sequence[Answer]) -> float:
        """Mean loss per answer token, in nats, in fp32."""
        losses = [packed_loss(self.decoder, some, self.device)[0] for some in packed(texts, self.at_once)]
        return float(sum(losses)) / sum(len(text.tokens) for text in texts)


def packed_loss(
    decoder: DifferentiableDecoder, texts: Sequence[Answer], device: str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Summed loss of answer tokens, and the share predicted correctly; texts do not attend to each other."""
    joined = [torch.cat((text.prompt, text.tokens)) for text in texts]
    lengths = [text.size for text in texts]
    ids, positions = (torch.cat(parts).to(device) for parts in (joined, list(map(torch.arange, lengths))))
    mask = torch.block_diag(*(torch.ones(n, n).tril() for n in lengths)).bool().to(device)
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    # Each answer token is predicted at the token before it.
    places = torch.cat(
        [
            torch.arange(start + len(text.prompt) - 1, start + length - 1)
            for text, start, length in zip(texts, starts, lengths, strict=True)
        ]
    ).to(device)
    labels = torch.cat([text.tokens for text in texts]).to(device)
    logits = decoder.head(decoder.hidden_rows(ids, positions, mask)[places])
    loss = F.cross_entropy(logits.float(), labels, reduction="sum")
    return loss, (logits.argmax(-1) == labels).float().mean()


# --- the command --------------------------------------------------------------------------------------------


def train(
    args: argparse.Namespace, sub: UnitDecoder, kept: LayerSizes, order: Order, texts: Texts, file: Path
) -> tuple[Training, Schedule]:
    """Train the adapters of a sub-model and save them to `file`."""
    adapters = Adapters(sub, kept, lora.MATRICES if args.gate else PAPER, args.rank, args.seed)
    schedule = command.schedule_of(args, texts.trained)
    training = Training(adapters, schedule, args.work / f"{args.system}-{args.level:g}.pt", args.device)
    adapted = lora.attach_adapters(sub, adapters.lora(kept, order))
    decoder = DifferentiableDecoder(adapted.config, adapted.layers, adapted.ends)
    loss = RecoveryLoss(decoder, args.at_once, args.device)
    before = training.curve[0]["before"] if training.step else loss.heldout(texts.heldout)

    def measure() -> Figures:
        lora.save(adapters.lora(kept, order), file)  # a killed run leaves some
        return {"before": round(before, 4), "heldout_loss": round(loss.heldout(texts.heldout), 4)}

    training.run(
        lambda epoch: by_length(texts.trained, schedule, epoch),
        loss,
        minutes=args.minutes,
        every=args.every,
        measure=measure,
    )
    return training, schedule


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; defaults are the release's where the paper gives no value."""
    parser = command.parser_of(__doc__)
    command.add_resumed(parser, ".cache/lora", every=50)
    add = parser.add_argument
    add("--target", default="smollm2_135m", help="a name of conf/model (default %(default)s)")
    add("--system", choices=SYSTEMS, default="elastilm", help="whose sub-model (default %(default)s)")
    add("--level", type=float, default=0.5, help="share of the blocks' weights kept (default %(default)s)")
    add("--dataset", default="alpaca", help="questions with reference answers (default %(default)s)")
    add("--rows", type=int, default=10**6, help="of it, at most; one in twenty is held out")
    add(
        "--texts",
        default="",
        help="more names of conf/dataset, by commas, whose texts are read as in pre-training",
    )
    add("--text-tokens", type=int, default=10**9, help="of each of these, at most; one in twenty is held out")
    add("--length", type=int, default=256, help="longest question and answer, and every text, in tokens")
    add("--rank", type=int, default=lora.RANK)
    add("--gate", action="store_true", help="adapters beside gates too, as in the release")
    add("--at-once", type=int, default=512, help="tokens in one pass; memory grows with the square")
    command.add_epochs(parser, 1e-4, epochs=2.0, batch_tokens=2048, warmup=100)  # the release: 64 answers
    args = command.parsed(parser, argv)
    if not (args.out / PROFILE_FILE).is_file():
        raise InputError(f"out {args.out}: no {PROFILE_FILE} there; run workshop.training.elasticize first")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Train the adapters of one level."""
    args = arguments(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    cell = scenario(args.target)
    texts = read_texts(args, cell)
    decoder = weights.load(cell.folder, "float32", is_packed=False, device=args.device)
    profile = elastic_profile.load(args.out / PROFILE_FILE)
    locked = anchors_of(profile.losses, ANCHORS) if args.system == "elastilm" else ()
    kept = sizes_at(decoder.config, args.level, locked)
    file = args.out / lora_file(args.system, args.level)
    sub = submodel(reorder(decoder, profile.order), kept)
    training, schedule = train(args, sub, kept, profile.order, texts, file)
    command.write_record(
        file.with_suffix(".json"),
        args,
        "train_lora",
        file,
        target={"name": cell.labels["target"], "digest": cell.target.digest},
        true_ratio=round(kept.true_ratio(decoder.config), 4),
        data={
            "rows": texts.rows,
            "trained": len(texts.trained),
            "trained_tokens": sum(text.size for text in texts.trained),
            "heldout": len(texts.heldout),
        },
        recipe=asdict(schedule),
        curve=training.curve,
        updates=training.step,
    )
    print(committed_line(decoder, args.out))


if __name__ == "__main__":
    command.run(main)
