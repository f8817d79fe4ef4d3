"""The text of `python -m repro --help`: usage, groups with some names, main settings; it fits a screen.

Owns its wording. Names and defaults come from the registry and conf/config.yaml.
"""

from __future__ import annotations

import re

from repro.core.paths import conf_dir
from repro.experiments.guide.choices import DASK, GROUPS, names
from repro.experiments.guide.listing import run_settings

WIDTH = 100
SHOWN = (
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
SETTINGS = {
    "prompts": "rows of the dataset",
    "max_tokens": "tokens of an answer",
    "skip": "rows to skip first",
    "seed": "",
    "sweep": "run what is not done, list, retry what failed, force all",
    "results": "folder of records and tables",
    "outputs": "folder of timelines and wandb runs",
    "data_dir": "folder of datasets; $REPRO_DATA",
    "host": "cpu or cuda: where an emulated run computes",
    "wandb.mode": "offline, online, disabled",
}
"""Settings of the help, with few words each."""

USAGE = """\
Run language models on emulated phones and boards, or on this machine; compare with the papers.

  python -m repro GROUP=NAME SETTING=VALUE ...     one cell: method, device, models, dataset
  python -m repro -m GROUP=A,B SETTING=1,2 ...     a sweep: every combination
  python -m repro experiment=NAME                  a sweep with a table
"""
MORE = """\
  repro list                                 all groups; a group's names; a name's own settings
  repro check                                compute committed results again and compare
  repro table, show, compare                 a table again; a cell's answers; two records or tables
  repro cells                                all records with their settings as one file
  repro fetch, device, calibrate, errors     checkpoints; devices; this machine; errors of figures
  python -m repro ... --cfg job              all settings of a command, with their values
  eval "$(repro -sc install=bash)"           completion by Tab for the command `repro`
  README.md, docs/sweeps.md                  examples; launchers, progress, going on after a stop"""


def help_text() -> str:
    """At most 40 lines of at most `WIDTH` columns."""
    defaults = dict(
        re.findall(
            r"^  - ([\w@]+): (\w+)", (conf_dir() / "config.yaml").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    values = dict(name.split("=", 1) for name, _ in run_settings())
    lines = [USAGE, "Groups, some names, * the default:"]
    for group, some in SHOWN:
        option = GROUPS[group].option
        known = names(group)
        usual = next((name for key, name in defaults.items() if key.partition("@")[0] == option), "")
        own = [f"{usual}*" if usual in known else "", *(name for name in some if name in known)]
        shown = ", ".join(name for name in own if name)
        key = "model@target" if option == "model" else option
        lines.append(f"  {key:<13} {shown} ... ({len(known)} in all)")
    lines += ["", "Settings, with defaults:"]
    for name, meaning in SETTINGS.items():
        value = "" if "{" in values[name] else values[name]
        lines.append(f"  {f'{name}={value}':<25} {meaning}".rstrip())
    lines += ["", f"Several cells at once: hydra/launcher={DASK}, see docs/sweeps.md", "", "More:", MORE]
    return "\n".join(lines)
