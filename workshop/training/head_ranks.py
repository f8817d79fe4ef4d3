"""Record the ranks that Medusa heads give their target's own tokens, for the search of token trees.

    REPRO_DATA=FOLDER python -m workshop.training.head_ranks --target smollm2_135m --draft smollm2_135m_medusa

The target answers rows of MT-Bench that no table evaluates, greedily. The ranks are written beside the heads'
weights as `ranks.safetensors`, where every run that drafts with them reads them. Target and draft are names
of `conf/model/`. Recorded ranks are part of the heads' checkpoint: other ranks give cells with other keys.
Prints each head's accuracies.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing

from hydra import compose, initialize_config_dir
from rich.console import Console
from rich.progress import Progress

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.device.cost import FREE
from repro.device.emulated import EmulatedDevice
from repro.experiments.composing import publish
from repro.experiments.plan import plain
from repro.models.drafting.head_ranks import FILE, HeadRanks, joined
from repro.models.runtime.placement import RESIDENT
from repro.records.build_cache import cache_root
from repro.scenarios.generation.scenario import GenerationScenario
from workshop.training.head_recording import recorded

SHOWN = 5


def asked(args: argparse.Namespace) -> GenerationScenario:
    """The scenario that provides dataset rows, models and tokenizer."""
    first, last = args.rows
    publish()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose(
            "config",
            overrides=[
                f"model@target={args.target}",
                f"model@draft={args.draft}",
                f"dataset={args.dataset}",
                f"skip={first}",
                f"prompts={last - first}",
                f"max_tokens={args.tokens}",
                f"host={args.host}",
                "method=corrected",
                "calibrate_draft_to=null",
                *args.more,
            ],
        )
    return GenerationScenario(plain(config))


def record(cell: GenerationScenario, memo: bool) -> HeadRanks:
    """Answer all rows and record the ranks that the draft's heads give the target's greedy tokens.

    Raises:
        InputError: the draft has no Medusa heads, or no answer has a second token.
    """
    if not cell.draft.model_cost.shape.medusa:
        raise InputError(f"{cell.draft.config.name} has no Medusa heads; choose a draft that has")
    models, device, answers = {"target": cell.target, "draft": cell.draft}, EmulatedDevice(FREE), []
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


def about(cell: GenerationScenario, args: argparse.Namespace) -> dict[str, str]:
    """Source of the ranks, for the file's metadata."""
    return {
        "dataset": args.dataset,
        "dataset_digest": cell.rows.digest,
        "rows": "{}:{}".format(*args.rows),
        "tokens": str(args.tokens),
        "target": cell.target.config.name,
        "target_digest": cell.target.digest,
    }


def rows(text: str) -> tuple[int, int]:
    """Parse A:B into the first row and the one after the last."""
    try:
        first, last = map(int, text.split(":"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no A:B") from None
    if not 0 <= first < last:
        raise argparse.ArgumentTypeError(f"{text!r} holds no row; give A:B with A below B")
    return first, last


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--target", required=True, help="name of the target's model file")
    add("--draft", required=True, help="name of the heads' model file")
    add("--dataset", default="mt_bench", help="(default %(default)s, as Ghidorah has it)")
    add("--rows", type=rows, default=(20, 40), metavar="A:B", help="rows A to B - 1 (default 20:40)")
    add("--tokens", type=int, default=128, help="longest answer (default %(default)s)")
    add("--host", default="cpu", help="cpu or cuda (default %(default)s)")
    add("--no-memo", action="store_true", help="compute all of it, whatever is remembered")
    add("more", nargs="*", help="overrides of the configuration, such as data_dir=<folder>")
    args = parser.parse_args(argv)
    try:
        cell = asked(args)
        found = record(cell, memo=not args.no_memo)
    except InputError as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    folder = cell.draft.folder
    assert folder is not None
    found.save(folder / FILE, about(cell, args))
    print(f"{found.positions} positions of {len(found.begins)} answers, {folder / FILE}")
    for head, accuracies in enumerate(found.accuracies(SHOWN)):
        print(f"head {head}: " + " ".join(f"{share:.3f}" for share in accuracies))
    return 0


if __name__ == "__main__":
    sys.exit(main())
