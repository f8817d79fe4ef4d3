"""Order a checkpoint's units by importance and find its anchor layers (ElastiLM 3.2), once for all levels.

    REPRO_DATA=<folder> python -m workshop.training.elasticize --target smollm2_135m --out <folder>

Writes `profile.safetensors` (the order, and the loss without each layer) and `config.json` (the source of
both). `--target` is a name of `conf/model/`. Prints the line for `models/elastic_profile.COMMITTED` that
makes runs use the written folder; without that line they profile their own corpus. Adapters that
`workshop.training.train_lora` made for another order are no longer used.

Owns the order of the steps and the record of them; the steps themselves are in `models/`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.experiments.composing import publish
from repro.experiments.plan import plain
from repro.methods.compression.pruning.elastic_levels import anchors_of
from repro.models.checkpoints.digest import digest
from repro.models.elastic import elastic_profile
from repro.models.elastic.elastic_profile import PROFILE, ElasticProfile
from repro.models.elastic.unit_importance import Measure
from repro.models.transformer.decoder import Decoder
from repro.scenarios.accuracy import AccuracyScenario
from repro.scenarios.offline import dense

ANCHORS = 0.2  # share of the layers, as in the paper; all losses are stored, so any other share can be used


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; the defaults are those of the committed profiles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
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


def asked(target: str, overrides: Sequence[str]) -> AccuracyScenario:
    """An accuracy scenario of this target, which can open its checkpoint and a corpus."""
    publish()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        given = [f"model@target={target}", "compression=elastilm", "dataset=arc_easy", *overrides]
        return AccuracyScenario(plain(compose("config", overrides=given)))


def about(
    cell: AccuracyScenario, decoder: Decoder, found: ElasticProfile, args: argparse.Namespace
) -> dict[str, Any]:
    """Content of `config.json`; no paths and no machine names."""
    return {
        "target": {"name": cell.labels["target"], "digest": cell.target.digest},
        "fingerprint": elastic_profile.fingerprint(decoder),
        "corpus": {
            "dataset": args.dataset,
            "texts": args.texts,
            "tokens": args.tokens,
            "rows": cell.corpus.digest,
        },
        "order": found.order.digest,
        "loss": round(found.whole, 4),
        "anchors": list(anchors_of(found.losses, ANCHORS)),
        "command": f"python -m workshop.training.elasticize --target {args.target} --out {args.out.name} "
        f"--dataset {args.dataset} --texts {args.texts} --tokens {args.tokens}",
    }


def noted(decoder: Decoder, folder: Path, place: str) -> str:
    """The line for `COMMITTED` with a folder's current digest."""
    return f'"{elastic_profile.fingerprint(decoder)}": Parts("{place}", "{digest(folder)}"),'


def main(argv: Sequence[str] | None = None) -> None:
    """Profile and write."""
    args = arguments(argv)
    torch.set_num_threads(args.threads)
    settings = [f"corpus.texts={args.texts}", f"corpus.tokens={args.tokens}"]
    cell = asked(args.target, [f"dataset@corpus.dataset={args.dataset}", *settings, *args.more])
    decoder = dense(cell.folder)
    found = elastic_profile.profiled(decoder, cell.sequences, Measure())
    args.out.mkdir(parents=True, exist_ok=True)
    elastic_profile.save(found, args.out / PROFILE)
    said = about(cell, decoder, found, args)
    (args.out / "config.json").write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    print(f"loss {found.whole:.3f} nats; without each layer:")
    for layer, nats in enumerate(found.losses):
        print(f"  {layer:3d}  {nats:.3f}{'  anchor' if layer in said['anchors'] else ''}")
    print("For models/elastic_profile.COMMITTED:\n    " + noted(decoder, args.out, args.out.as_posix()))


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
