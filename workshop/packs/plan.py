"""The planned packs of `conf/observations.yaml`, each with the cell whose prompts and models it observes.

Must not know how observations are computed or stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import yaml

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.registry import unknown
from repro.experiments.plan import cell_config
from repro.methods.speculative.drafting.head_model import EagleModel, MedusaModel
from repro.models.observations.own_text import BEYOND
from repro.models.runtime.model import Model
from repro.models.tokens.prefix import Prefix
from repro.scenarios.generation.scenario import GenerationScenario


@dataclass(frozen=True)
class Planned:
    """One planned pack.

    Attributes:
        name: its name, and that of its text pack's file.
        overrides: the options of `python -m repro` that choose target, dataset, prompts and tokens.
        drafts: model files of the drafts whose rows are packed.
    """

    name: str
    overrides: tuple[str, ...]
    drafts: tuple[str, ...]

    @cached_property
    def cell(self) -> GenerationScenario:
        """The cell of the target alone."""
        return GenerationScenario(cell_config("method=std", *self.overrides))

    @property
    def prompts(self) -> list[Prefix]:
        """The prompts."""
        return [request.prefix for request in self.cell.requests]

    @property
    def tokens(self) -> int:
        """Length of each text: that of an answer, and what a verification looks at beyond it."""
        return int(self.cell.config["max_tokens"]) + BEYOND

    @property
    def places(self) -> int:
        """Number of places in each text after which a method drafts: the length of an answer."""
        return int(self.cell.config["max_tokens"])

    def models(self) -> Iterator[tuple[str, str, Model]]:
        """Name of the pack, its kind and the model, for each draft."""
        for draft in self.drafts:
            cell = GenerationScenario(cell_config("method=chain_sd", *self.overrides, f"model@draft={draft}"))
            yield f"{self.name}.{draft}", kind_of(cell.draft), cell.draft


def kind_of(draft: Model) -> str:
    """The kind of a draft's pack."""
    if isinstance(draft, EagleModel):
        return "eagle"
    return "medusa" if isinstance(draft, MedusaModel) else "draft"


def planned(names: Sequence[str], more: Sequence[str] = ()) -> list[Planned]:
    """The planned packs with these names or of these targets (the part before the dot), or all.

    Args:
        names: names and targets.
        more: further options of `python -m repro`, for all of them.

    Raises:
        InputError: a name is neither.
    """
    listed = yaml.safe_load((conf_dir() / "observations.yaml").read_text(encoding="utf-8"))
    known = {
        name: Planned(name, (*entry["cell"], *more), tuple(entry.get("drafts", ())))
        for name, entry in listed.items()
    }
    targets = {name.partition(".")[0] for name in known}
    for name in names:
        if name not in known and name not in targets:
            raise InputError(unknown("planned pack", name, [*known, *targets]))
    return [one for one in known.values() if not names or {one.name, one.name.partition(".")[0]} & set(names)]
