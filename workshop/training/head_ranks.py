"""Record the ranks that Medusa heads give their target's own tokens, for the search of token trees.

    REPRO_DATA=FOLDER python -m workshop.training.head_ranks --target smollm2_135m --draft smollm2_135m_medusa

Makes `ranks.safetensors` beside the heads' weights, where every run that drafts with them reads it, from the
target's greedy answers to rows of MT-Bench that no table evaluates, in minutes. Target and draft are names of
`conf/model/`. Recorded ranks are part of the heads' checkpoint: other ranks give cells with other keys.
Prints each head's accuracies.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack, closing

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from repro.core.errors import InputError
from repro.device.cost import FREE_MACHINE
from repro.device.emulated import Device, EmulatedDevice
from repro.experiments.plan import cell_config
from repro.methods.base import Request
from repro.methods.speculative.drafting.head_ranks import RANKS_FILE, HeadRanks
from repro.methods.speculative.speculative import begin
from repro.models.forward.network import RANK_COUNT, Logits
from repro.models.runtime.placement import RESIDENT
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from repro.records.build_cache import cache_root
from repro.scenarios.generation.scenario import GenerationScenario
from workshop.training import command
from workshop.training.prompts import Share

SHOWN = 5


def scenario(args: argparse.Namespace) -> GenerationScenario:
    """The scenario that provides dataset rows, models and tokenizer."""
    share = Share.parse(args.rows)
    config = cell_config(
        f"model@target={args.target}",
        f"model@draft={args.draft}",
        f"dataset={share.name}",
        f"skip={share.start}",
        f"prompts={share.stop - share.start}",
        f"max_tokens={args.tokens}",
        f"host={args.host}",
        "method=corrected",
        "calibrate_draft_to=null",
        *args.more,
    )
    return GenerationScenario(config)


async def recorded(request: Request, device: Device, target: Session, draft: Session) -> Tensor:
    """Decode with the target and run all heads at each token but the last: a part of `HeadRanks.ranks`."""
    decoding = await begin(request, device, target, draft)
    said: list[list[Logits]] = []
    with device.phase("decode"):
        while not decoding.done:
            said.append(await draft.forward(levels(decoding.text, draft.heads)))
            (row,) = await target.forward([decoding.text])
            text = decoding.text.then(decoding.chooser.first(row))
            for session in (target, draft):
                session.keep(text)
            decoding.round(text)
    return answer_ranks(decoding.generation.tokens, said)


def levels(text: Prefix, heads: int) -> list[Prefix]:
    """One prefix per head after a text; filler tokens stand in, since heads do not read draft tokens."""
    out = [text]
    while len(out) < heads:
        out.append(out[-1].then(0))
    return out[:heads]


def answer_ranks(tokens: Sequence[int], said: Sequence[Sequence[Logits]]) -> Tensor:
    """One answer's part of `HeadRanks.ranks`.

    Args:
        tokens: the target's greedy answer.
        said: the logits of all heads at each of its tokens but the last.
    """
    out = torch.full((len(said), len(said[0]) if said else 0), RANK_COUNT, dtype=torch.int16)
    for position, rows in enumerate(said):
        for head, (row, token) in enumerate(zip(rows, tokens[position + 1 :], strict=False)):
            ranked = row.top_ranks()[0]
            if token in ranked:
                out[position, head] = ranked.index(token)
    return out


def joined(answers: Sequence[Tensor]) -> HeadRanks:
    """Concatenate the ranks of several answers; answers without positions are skipped.

    Raises:
        InputError: no answer has a position.
    """
    kept = [ranks for ranks in answers if len(ranks)]
    if not kept:
        raise InputError("no answer has a second token, so heads have nothing to say; raise max_tokens")
    lengths = [len(ranks) for ranks in kept]
    return HeadRanks(torch.cat(kept), tuple(sum(lengths[:i]) for i in range(len(lengths))))


def record(cell: GenerationScenario, memo: bool) -> HeadRanks:
    """Answer all rows and record the ranks that the draft's heads give the target's greedy tokens.

    Raises:
        InputError: the draft has no Medusa heads, or no answer has a second token.
    """
    if not cell.draft.model_cost.shape.medusa:
        raise InputError(f"{cell.draft.config.name} has no Medusa heads; choose a draft that has")
    models, device, answers = {"target": cell.target, "draft": cell.draft}, EmulatedDevice(FREE_MACHINE), []
    with ExitStack() as opened, Progress(console=Console(stderr=True)) as bars:
        sessions = {}
        for role, model in models.items():
            cache = opened.enter_context(closing(model.memo(cache_root()))) if memo else None
            sessions[role] = model.session(role, device, RESIDENT, model.network(cache))
        for request in bars.track(cell.requests, description="recording"):
            for session in sessions.values():
                session.start(request.prefix)
            answers.append(device.play(recorded(request, device, **sessions)))
    return joined(answers)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; the defaults are those of the committed ranks."""
    parser = command.parser_of(__doc__)
    add = parser.add_argument
    add("--target", required=True, help="name of the target's model file")
    add("--draft", required=True, help="name of the heads' model file")
    add("--rows", default="mt_bench:20:40", metavar="DATASET:A:B", help="(default %(default)s)")
    add("--tokens", type=int, default=128, help="longest answer (default %(default)s)")
    add("--host", default="cpu", help="cpu or cuda (default %(default)s)")
    add("--no-memo", action="store_true", help="compute all of it, whatever is remembered")
    add("more", nargs="*", help="overrides of the configuration, such as data_dir=<folder>")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Record the ranks, and write them beside the heads."""
    args = arguments(argv)
    cell = scenario(args)
    ranks = record(cell, memo=not args.no_memo)
    assert cell.draft.folder is not None
    file = cell.draft.folder / RANKS_FILE
    about = {
        "rows": args.rows,
        "dataset_digest": cell.rows.digest,
        "tokens": str(args.tokens),
        "target": cell.target.config.name,
        "target_digest": cell.target.digest,
    }
    ranks.save(file, about)
    print(f"{ranks.positions} positions of {len(ranks.begins)} answers, {file}")
    for head, accuracies in enumerate(ranks.accuracies(SHOWN)):
        print(f"head {head}: " + " ".join(f"{share:.3f}" for share in accuracies))


if __name__ == "__main__":
    command.run(main)
