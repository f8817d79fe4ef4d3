"""The text of `python -m repro --help`: usage, groups with some names, main settings; it fits a screen.

Owns its wording. Names, meanings and defaults come from the registry, `RunSettings` and conf/config.yaml.
"""

from __future__ import annotations

from repro.core.paths import conf_dir
from repro.core.reading import read_mapping
from repro.experiments.guide.choices import DASK_LAUNCHER, GROUPS, names
from repro.experiments.guide.listing import run_settings

HELP_WIDTH = 100
HELP_GROUPS = (
    ("methods", ("flash_ar", "edgellm", "lever", "ghidorah", "mllm_npu")),
    ("devices", ("xiaomi_14", "jetson_orin_nx", "local_cpu")),
    ("models", ("qwen3_8b_q4_0", "llama_2_7b_chat")),
    ("datasets", ("gsm8k", "mt_bench", "squad")),
    ("setups", ("lever_qwen3_8b", "llama2_cnn")),
    ("experiments", ("quickstart", "lever/fig10", "edgellm/table4")),
    ("compressions", ("shadow", "smooth_quant")),
    ("services", ("elastilm",)),
)
"""Groups of the help, with names that most people want."""
HELP_SETTINGS = (
    *("prompts", "max_tokens", "skip", "seed", "sweep", "results", "outputs", "data_dir", "host"),
    "wandb.mode",
)
"""Settings of the help, each with the first words of its meaning."""

USAGE = """\
Run language models on emulated phones and boards, or on this machine; compare with the papers.

  python -m repro GROUP=NAME SETTING=VALUE ...     one cell: method, device, models, dataset
  python -m repro -m GROUP=A,B SETTING=1,2 ...     a sweep: every combination
  python -m repro experiment=NAME                  a sweep with a table
"""
CLOSING_TEXT = """\
  repro list                                 all groups; a group's names; a name's own settings
  repro check                                compute committed results again and compare
  repro table, show, compare                 a table again; a cell's answers; two records or tables
  repro cells                                all records with their settings as one file
  repro fetch, device, calibrate, errors     checkpoints; devices; this machine; errors of figures
  python -m repro ... --cfg job              all settings of a command, with their values
  eval "$(repro -sc install=bash)"           completion by Tab for the command `repro`
  README.md, docs/run.md                     examples; launchers, progress, going on after a stop"""


def help_text() -> str:
    """At most 40 lines of at most `HELP_WIDTH` columns."""
    parts = [part for part in read_mapping(conf_dir() / "config.yaml")["defaults"] if isinstance(part, dict)]
    defaults = {key.partition("@")[0]: name for part in reversed(parts) for key, name in part.items()}
    lines = [USAGE, "Groups, some names, * the default:"]
    for group, examples in HELP_GROUPS:
        option, members = GROUPS[group].option, names(group)
        usual = [f"{name}*" for name in members if name == defaults.get(option)]
        listing = ", ".join([*usual, *(name for name in examples if name in members)])
        key = "model@target" if option == "model" else option
        lines.append(f"  {key:<13} {listing} ... ({len(members)} in all)")
    lines += ["", "Settings, with defaults:"]
    settings = {setting.name: setting for setting in run_settings()}
    for setting in map(settings.__getitem__, HELP_SETTINGS):
        value = "" if "{" in setting.default else setting.default
        meaning = setting.meaning.partition(";")[0].rstrip(".")
        lines.append(f"  {f'{setting.name}={value}':<25} {meaning}")
    lines += [
        "",
        f"Several cells at once: hydra/launcher={DASK_LAUNCHER}, see docs/run.md",
        "",
        "More:",
        CLOSING_TEXT,
    ]
    return "\n".join(lines)
