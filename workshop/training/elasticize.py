"""Order a checkpoint's units by importance and find its anchor layers (ElastiLM 3.2), once for all levels.

    REPRO_DATA=FOLDER python -m workshop.training.elasticize --target smollm2_135m --out FOLDER

Makes `profile.safetensors` (the order, and the loss without each layer) and `config.json` (the source of
both) from a checkpoint and ten texts, in a minute for SmolLM2-135M. Prints the line for
`methods/elastilm/elastic_profile.COMMITTED` that makes runs use the written folder; without that line they
profile their own corpus. Adapters that `workshop.training.train_lora` made for another order are not used
any more.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from repro.experiments.plan import cell_config
from repro.methods.elastilm import elastic_profile
from repro.methods.elastilm.elastic_levels import anchors_of
from repro.methods.elastilm.elastic_profile import PROFILE
from repro.methods.elastilm.unit_importance import Measure
from repro.models.checkpoints.digest import digest
from repro.models.transformer.decoder import Decoder
from repro.scenarios.accuracy import AccuracyScenario
from repro.scenarios.offline import dense
from workshop.training import command

ANCHORS = 0.2  # share of the layers, as in the paper; all losses are stored, so any other share can be used


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; the defaults are those of the committed profiles."""
    parser = command.parser_of(__doc__)
    add = parser.add_argument
    add("--target", default="smollm2_135m", help="a name of conf/model (default %(default)s)")
    add("--out", type=Path, required=True, help="where the profile goes")
    add("--dataset", default="bookcorpus", help="a name of conf/dataset (default %(default)s)")
    add(
        "--texts",
        type=int,
        default=10,
        help="of the corpus, as in the release; the paper's 6.4K tokens are 100",
    )
    add("--tokens", type=int, default=64, help="of each text")
    add("--threads", type=int, default=torch.get_num_threads())
    add("more", nargs="*", help="settings as of `python -m repro`")
    return parser.parse_args(argv)


def scenario(target: str, *overrides: str) -> AccuracyScenario:
    """An accuracy scenario of this target, which can open its checkpoint and a corpus."""
    named = (f"model@target={target}", "compression=elastilm", "dataset=arc_easy")
    return AccuracyScenario(cell_config(*named, *overrides))


def committed_line(decoder: Decoder, folder: Path) -> str:
    """What to write to `COMMITTED` for a folder with its current content."""
    line = f'"{elastic_profile.fingerprint(decoder)}": Parts("{folder.as_posix()}", "{digest(folder)}"),'
    return f"For methods/elastilm/elastic_profile.COMMITTED:\n    {line}"


def main(argv: Sequence[str] | None = None) -> None:
    """Profile and write."""
    args = arguments(argv)
    torch.set_num_threads(args.threads)
    settings = [f"corpus.texts={args.texts}", f"corpus.tokens={args.tokens}"]
    cell = scenario(args.target, f"dataset@corpus.dataset={args.dataset}", *settings, *args.more)
    decoder = dense(cell.folder)
    profile = elastic_profile.profile_decoder(decoder, cell.sequences, Measure())
    args.out.mkdir(parents=True, exist_ok=True)
    elastic_profile.save(profile, args.out / PROFILE)
    anchors = anchors_of(profile.losses, ANCHORS)
    corpus = {name: getattr(args, name) for name in ("dataset", "texts", "tokens")}
    named = argparse.Namespace(target=args.target, out=args.out, **corpus)
    about = {
        "target": {"name": cell.labels["target"], "digest": cell.target.digest},
        "fingerprint": elastic_profile.fingerprint(decoder),
        "corpus": corpus | {"rows": cell.corpus.digest},
        "order": profile.order.digest,
        "loss": round(profile.full_loss, 4),
        "anchors": list(anchors),
        "command": " ".join([command.command_of(named, "elasticize"), *args.more]),
    }
    command.write_json(args.out / "config.json", about)
    print(f"loss {profile.full_loss:.3f} nats; without each layer:")
    for layer, nats in enumerate(profile.losses):
        print(f"  {layer:3d}  {nats:.3f}{'  anchor' if layer in anchors else ''}")
    print(committed_line(decoder, args.out))


if __name__ == "__main__":
    command.run(main)
