"""What `pairs.py` compares, which units that makes, and the file in which they are stored.

Must not know how a unit is measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from workshop.benchmarks.pair_run import NULL, Answer, Unit
from workshop.validation.this_machine.cells import OURS, CellGroup
from workshop.validation.this_machine.measuring import MeasuringPlan

CALIBRATION = "calibration"


class Part(NamedTuple):
    """A pair, where its target lies, and what is compared on it.

    Attributes:
        target: a file of conf/model.
        draft: a file of conf/model.
        dtype: in which both compute.
        budget: GB that models may hold; less than the target takes if it is streamed.
        arms: the arms, the base of all ratios first.
        pass_s: seconds of a pass of the target, for the first estimate.
        drafted: passes for a token of an arm that drafts, for the first estimate.
        memory_gb: that a process with all arms takes.
        plain: tokens that the base answers with at most.
    """

    target: str
    draft: str
    dtype: str
    budget: float
    arms: tuple[str, ...]
    pass_s: float
    drafted: float
    memory_gb: float
    plain: int = 1024

    @property
    def streamed(self) -> bool:
        """Whether the target is read from the disk in each pass."""
        return self.arms[0] == "flash_ar"

    def asked(self, arm: str, tokens: int) -> int:
        """Tokens that an arm is asked for."""
        return min(tokens, self.plain) if arm.removesuffix(NULL) == self.arms[0] else tokens


DRAFTING = ("prompt_lookup", "chain_sd", "opt_tree", "edgellm", "lever")
MEMORY = ("std", f"std{NULL}", *(f"{arm}:resident=1" for arm in DRAFTING))
STREAMED = ("flash_ar", f"flash_ar{NULL}", *DRAFTING[:3], "edgellm:memory=0.9", "lever")
MEDUSA = (
    "sequential",
    f"sequential{NULL}",
    *(f"medusa:width={w}" for w in (4, 8, 16)),
    "ghidorah:divided=false",
)
SMOLLM2 = Part("smollm2_135m", "smollm2_135m_eagle3", "float32", 4.0, MEMORY, 0.04, 0.4, 2.5)
DEEP = "lever:depth=16"
"""With this pair's agreement, as calibration rows say (conf/experiment/lever/fig10_own_pair.yaml)."""
QWEN = Part(
    "qwen2_5_coder_1_5b",
    "qwen2_5_coder_0_5b",
    "bfloat16",
    8.0,
    (*MEMORY, f"{DEEP}:resident=1"),
    0.14,
    0.2,
    6.5,
)
PARTS = {
    "smollm2_memory": SMOLLM2,
    "ghidorah": SMOLLM2._replace(draft="smollm2_135m_medusa", arms=MEDUSA),
    "smollm2_streamed": SMOLLM2._replace(budget=0.5, arms=STREAMED, pass_s=0.45, plain=8),
    "qwen_memory": QWEN,
    "qwen_streamed": QWEN._replace(budget=3.0, arms=(*STREAMED, DEEP), pass_s=2.8, memory_gb=5.0, plain=8),
}
"""EdgeLLM's `memory` reads layers ahead into the remaining budget (sec. III-D)."""

PROBED = (("smollm2_135m_instruct", "float32"), ("qwen2_5_coder_1_5b_instruct", "bfloat16"))
GROUPS = {
    group.id: group
    for model, dtype in PROBED
    for streamed in (False, True)
    for group in (CellGroup(OURS, model, dtype, streamed),)
}
"""What is calibrated on: probes and, to check them, passes of the two targets."""
PROBING = MeasuringPlan(rounds=1, threads=0, pace=1e9)


@dataclass(frozen=True)
class Plan:
    """What is asked for, see the command's options."""

    parts: Sequence[str]
    datasets: Sequence[str]
    prompts: int
    tokens: int
    rounds: int
    methods: Sequence[str] = ()
    overrides: Sequence[str] = ()

    def units(self) -> Iterator[Unit]:
        """All units, round after round."""
        for number in range(self.rounds):
            for name in self.parts:
                if name == CALIBRATION:
                    yield from (Unit(name, group, "", 0, 0, 0) for group in GROUPS if not number)
                    continue
                part = PARTS[name]
                for dataset in self.datasets:
                    for prompt in range(self.prompts):
                        for arm in self.methods or part.arms:
                            yield Unit(name, arm, dataset, prompt, number, part.asked(arm, self.tokens))

    def settings(self, name: str) -> list[str]:
        """Overrides of a part's cells; the user's own come last."""
        part = PARTS[name]
        models = [f"model@target={part.target}", f"model@draft={part.draft}"]
        size = [f"prompts={self.prompts}", f"max_tokens={self.tokens}"]
        return [*models, *size, f"device.dram.budget.value={part.budget}", *self.overrides]


class Stored(NamedTuple):
    """What a file of runs holds.

    Attributes:
        head: what all of it has in common.
        answers: measured answers.
        probes: calibrations.
        thrown: units that were measured while others took part of the processor.
        opened: parts, and seconds that their arms took to open.
    """

    head: Mapping[str, Any]
    answers: list[Answer]
    probes: list[Mapping[str, Any]]
    thrown: list[Mapping[str, Any]]
    opened: list[tuple[str, float]]

    @property
    def done(self) -> set[Unit]:
        """Units that need not be measured again."""
        probed = {Unit(CALIBRATION, CellGroup(**probe["group"]).id, "", 0, 0, 0) for probe in self.probes}
        return {answer.unit for answer in self.answers} | probed


def stored(file: Path) -> Stored:
    """Read a file of runs; the half line of a process that was killed is left out."""
    found = Stored({}, [], [], [], [])
    if not file.is_file():
        return found
    text = file.read_text(encoding="utf-8")
    for line in map(json.loads, text[: text.rfind("\n") + 1].splitlines()):
        if "head" in line:
            found = found._replace(head=line["head"])
        elif "probe" in line:
            found.probes.append(line["probe"])
        elif "thrown" in line:
            found.thrown.append(line)
        elif "opened" in line:
            found.opened.append((line["opened"], line["seconds"]))
        else:
            found.answers.append(Answer.parse(line))
    return found


def append(file: Path, line: str) -> None:
    """Append a line after the last whole one."""
    with file.open("a+b") as out:
        out.seek(0)
        out.truncate(out.read().rfind(b"\n") + 1)
        out.write(line.encode() + b"\n")
