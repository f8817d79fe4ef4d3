"""A project in a temporary folder: a tiny target and draft that really compute, a dataset, room for results.

The draft is the target with noise on its weights, so that some of what it drafts is accepted and some is not.
"""

from __future__ import annotations

import copy
import io
import json
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import transformers as hf
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from rich.console import Console

from repro.core.overrides import override
from repro.core.paths import conf_dir, project_root
from repro.experiments import cli, plan
from repro.experiments.composing import publish
from repro.experiments.hydra_private import set_values
from repro.experiments.plan import plain
from repro.experiments.progress import Watcher
from repro.experiments.summaries.notes import Note
from repro.experiments.sweep import Sweep
from repro.experiments.tables import Asked, matter
from repro.experiments.unread import UnreadWords
from repro.records.record import Record
from repro.records.results import Results
from repro.reports.spec.spec import TableSpec
from repro.scenarios.registry import GROUPS
from tiny_checkpoints import CONTROL, write_tokenizer

METHODS = ("std", "flash_ar", "draft", "chain_sd", "edgellm")
PROMPTS = ("def add(a, b):\n", "def last(items):\n", "def twice(n):\n")
USUAL = ("draft.checkpoint.shares_embeddings_with=null", "prompts=2", "max_tokens=6", "wandb.mode=disabled")
"""Settings of every command of a test."""
DROPPED = (
    *("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "REPRO_DATA", "REPRO_MODELS", "COLUMNS", cli.FULL_ERROR),
)
"""Variables of the environment that a test's command does not see."""
SHAPE = {
    "vocab_size": len(CONTROL) + 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": 0,
}


publish()


@dataclass
class Project:
    """Folders of one test, and the overrides that make any command of ours use them.

    Attributes:
        root: where models, rows and caches lie.
        out: where results and outputs go.
        more: overrides beside the usual ones.
    """

    root: Path
    out: Path
    more: tuple[str, ...] = ()

    def apart(self, out: Path, *more: str) -> Project:
        """The same models, with results and outputs of their own."""
        return replace(self, out=out, more=(*self.more, *more))

    @property
    def folders(self) -> dict[str, str]:
        """The settings that differ from test to test: where models and rows are, and where results go."""
        return {
            "target.checkpoint.folder": f"{self.root}/target",
            "draft.checkpoint.folder": f"{self.root}/draft",
            "data_dir": f"{self.root}/data",
            "results": f"{self.out}/results",
            "outputs": f"{self.out}/outputs",
        }

    @property
    def overrides(self) -> list[str]:
        """Tiny models, invented rows, everything that is written below the root."""
        return [*(override(name, folder) for name, folder in self.folders.items()), *USUAL, *self.more]

    @property
    def store(self) -> Results:
        """Its records."""
        return Results(self.out / "results")

    def tables(self) -> dict[str, bytes]:
        """The tables that were written, by name, but for pictures, which carry their library's version."""
        folder = self.out / "results"
        texts = (path for path in sorted(folder.rglob("table.*")) if path.suffix in (".md", ".csv", ".tex"))
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in texts}

    def timelines(self) -> dict[str, bytes]:
        """The timelines by their place below `outputs/timelines`."""
        folder = self.out / "outputs" / "timelines"
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.json.gz"))}

    def composed(self, *overrides: str) -> Any:
        """What Hydra makes of all overrides. Folders are filled in, so that tests share compositions."""
        others = (*self.more, *overrides)
        if any(_touch(other, name) for other in others for name in self.folders):
            return composed(*self.overrides, *overrides)
        config = composed(*USUAL, *others)
        for name, folder in self.folders.items():
            OmegaConf.update(config, name, folder)
        return config

    def config(self, *overrides: str) -> dict[str, Any]:
        """The resolved configuration of one cell."""
        return plain(self.composed(*overrides))

    def cell(self, *overrides: str) -> Note:
        """Do one cell in this process, with nothing on the screen."""
        config = self.config(*overrides)
        return Sweep(config, Console(file=io.StringIO())).cell(config)

    def attempt(self, *overrides: str) -> Note:
        """Do one cell as a sweep does: whatever goes wrong fails that cell alone."""
        config, watched = self.composed(*overrides), Watcher()
        alone = plan.CellPlan(lambda _: config, lambda _: False)
        cell = plan.plan_cell(alone, 0, (), UnreadWords(()))
        Sweep(plain(config, "labels"), Console(file=io.StringIO())).run([cell], watched)
        return watched.finished[0]

    def record(self, *overrides: str) -> Record:
        """The record of one cell, computed if it is not there."""
        record = self.store.get(self.cell(*overrides).key)
        assert record is not None
        return record

    def layers(self, *overrides: str) -> tuple[int | None, int | None]:
        """Calls of decoder layers of a cell that is computed, and then computed again."""
        first, again = (self.record(*overrides, "sweep=force").provenance.layers for _ in range(2))
        return first, again

    def sweep(self, *overrides: str) -> Sweep:
        """A sweep in this process, with nothing on the screen."""
        return Sweep(self.config(*overrides), Console(file=io.StringIO()))

    def table(self, notes: list[Note], *overrides: str) -> tuple[dict[str, Path], str]:
        """The quickstart's table of these cells, with further overrides: its files, and the screen."""
        config = self.composed("experiment=quickstart")
        screen = io.StringIO()
        sweep = Sweep(plain(config), Console(file=screen, width=200))
        return sweep.finish(self.asked(*overrides), spec_of(config), notes), screen.getvalue()

    def asked(self, *overrides: str) -> Asked:
        """What the quickstart's command asks here."""
        return Asked("quickstart", matter("quickstart", [*self.overrides, *overrides]), frozenset({"method"}))

    @property
    def quickstart(self) -> Path:
        """The folder of the quickstart's table, whose name has the settings that differ here."""
        return self.out / "results" / self.asked().folder

    def command(self, *arguments: str) -> list[str]:
        """The command line of `python -m repro` here; a page without cells has places alone."""
        is_page = any(argument in PAGES for argument in arguments)
        words = [word for word in self.overrides if not is_page or word.partition("=")[0] in PLACES]
        return [sys.executable, "-m", "repro", *words, *arguments]

    def environment(self, *python_path: Path) -> dict[str, str]:
        """Of a process of its own: no hub, no caches but its own."""
        paths = [*map(str, python_path), str(project_root() / "src")]
        own = {
            "PYTHONPATH": os.pathsep.join(paths),
            "REPRO_CACHE": str(self.root / "cache"),
            "HF_HUB_OFFLINE": "1",
            "HOME": str(self.root / "home"),
        }
        return {name: value for name, value in os.environ.items() if name not in DROPPED} | own

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`python -m repro` to its end, with both outputs as text."""
        command, environment = self.command(*arguments), self.environment()
        return subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, encoding="utf-8"
        )

    def here(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What `run` does, in this process, where all that takes seconds to import is imported already."""
        return self.bare(self.root, *self.command(*arguments)[3:])

    def bare(self, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """What `python -m repro` does with these words alone, started in a folder; in this process."""
        out, err, code = io.StringIO(), io.StringIO(), 0
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            for name, value in {**self.environment(), cli.FULL_ERROR: ""}.items():
                patch.setenv(name, value)
            for name in DROPPED:
                patch.delenv(name, raising=False)
            patch.setattr(sys, "argv", ["repro", *words])
            # Hydra would close all handlers, and absl's one the stream of pytest.
            patch.setattr("hydra._internal.logging_config.configure_logging", lambda *_: None)
            patch.setattr(cli, "quiet", lambda: None)
            with redirect_stdout(out), redirect_stderr(err):
                try:
                    cli.main()
                except SystemExit as ended:
                    code = int(ended.code or 0)
        return subprocess.CompletedProcess([*words], code, out.getvalue(), err.getvalue())


PAGES = [f"experiment=edgellm/{name}" for name in ("every_claim", "table2")]
PLACES = ("results", "outputs", "data_dir", "wandb.mode")


def _touch(override: str, name: str) -> bool:
    """Whether an override sets or removes a setting, or one that holds it."""
    key = override.partition("=")[0].lstrip("~+")
    return f"{name}.".startswith(f"{key}.")


def composed(*overrides: str) -> Any:
    """What Hydra makes of overrides, `experiment=` among them; of the same ones again, a copy."""
    return copy.deepcopy(_composed(conf_dir(), overrides))


@cache
def _composed(folder: Path, overrides: tuple[str, ...]) -> Any:
    """Groups are chosen once for all tests, and settings are then written as Hydra does it."""
    settings = [override for override in overrides if not _chooses(folder, override)]
    if not settings:
        return composed_by_hydra(folder, overrides)
    config = copy.deepcopy(_composed(folder, tuple(o for o in overrides if o not in settings)))
    parsed = OverridesParser.create().parse_overrides(settings)
    set_values(parsed, config)
    return config


def composed_by_hydra(folder: Path, overrides: tuple[str, ...]) -> Any:
    """What Hydra alone makes of all overrides."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(folder), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def _chooses(folder: Path, override: str) -> bool:
    """Whether an override chooses a group's option, or is for Hydra itself."""
    group = override.partition("=")[0].lstrip("~+").partition("@")[0]
    return (
        "@" in override.partition("=")[0]
        or group.startswith("hydra")
        or group in GROUPS
        or (folder / group).is_dir()
    )


def spec_of(config: Any) -> TableSpec | dict[str, Any]:
    """The table of a composed configuration; of a page without cells its section, written out."""
    section = plan.table_section(config)
    assert section is not None
    return section


def write_project(root: Path) -> Project:
    """Fill a folder with checkpoints and rows, which a process makes once."""
    shutil.copytree(_checkpoints_and_rows().name, root, dirs_exist_ok=True)
    return Project(root, root)


@cache
def _checkpoints_and_rows() -> TemporaryDirectory[str]:
    folder = TemporaryDirectory()
    root = Path(folder.name)
    with torch.random.fork_rng():
        torch.manual_seed(0)  # the same model whatever tests ran before
        target = hf.LlamaForCausalLM(hf.LlamaConfig(**SHAPE))
    generator = torch.Generator().manual_seed(0)
    write_model(target, root / "target", generator, spread=1.0)
    write_model(target, root / "draft", generator, spread=0.1)
    (root / "data").mkdir()
    rows = [
        {"task_id": f"T/{i}", "prompt": p, "canonical_solution": "", "test": "", "entry_point": "f"}
        for i, p in enumerate(PROMPTS)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (root / "data" / "openai_humaneval.jsonl").write_text(text, encoding="utf-8")
    return folder


def write_model(model: hf.LlamaForCausalLM, folder: Path, generator: torch.Generator, spread: float) -> None:
    """Add noise to a model and save it with a tokenizer of bytes."""
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise * spread * parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    write_tokenizer(folder)
