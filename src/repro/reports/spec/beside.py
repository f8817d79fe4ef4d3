"""Settings of one component beside the rest: `chain_sd.length=2,4` holds where the method is chain_sd.

Hydra knows no such setting, so it travels as `++beside.chain_sd.length='2,4'` to the sweeper, which gives it
to the cells of that component. Owns both spellings and the labels of such cells. Must not know Hydra.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from repro.core.errors import InputError
from repro.core.overrides import unquote, word
from repro.core.registry import discover, lookup, names, unknown
from repro.reports.reference.names import ANY_PAPER, load_names

GROUPS = ("method", "service", "compression", "probe")
SECTIONS = ("target", "draft")
"""Sections of a configuration, one of which has a method's name."""

CARRIED_PREFIX = "++beside."
CARRIED_PATTERN = re.compile(r"\+\+beside\.([\w.]+)=(.*)")


@dataclass(frozen=True)
class BesideSetting:
    """A setting of a component, such as `length` of the method `chain_sd`."""

    group: str
    component: str
    setting: str

    @property
    def choice(self) -> str:
        """The override of a cell that chooses this component."""
        return f"{self.group}={self.component}"

    @property
    def override(self) -> str:
        """The setting of a cell of this component."""
        return f"{self.group}.{self.setting}"

    def is_default(self, value: str) -> bool:
        """Whether the component has this value by itself."""
        cls = lookup(self.group, self.component)
        return any(f.name == self.setting and word(f.default) == value for f in fields(cls))


def beside(key: str) -> BesideSetting | None:
    """What an override's key sets of one component; `None` if it names none.

    Raises:
        InputError: the component has no such setting.
    """
    component, dot, setting = key.partition(".")
    if not dot or component in SECTIONS or not component.isidentifier():
        return None
    discover("repro.methods")
    group = next((group for group in GROUPS if component in names(group)), None)
    if group is None:
        return None
    setting_names = [f.name for f in fields(lookup(group, component))]
    if setting.partition(".")[0] not in setting_names:
        sentence = unknown("setting", setting, setting_names)
        raise InputError(f"{group} {component} has no setting {setting!r}{sentence[sentence.index('.') :]}")
    return BesideSetting(group, component, setting)


def carry_all(overrides: Sequence[str], sweep: bool = True) -> list[str]:
    """The command's arguments, with those of single components as the sweeper takes them.

    Raises:
        InputError: there is one, and the command runs a single cell; or a component lacks the setting.
    """
    arguments = []
    for override in overrides:
        key, equals, value = override.partition("=")
        setting = beside(key) if equals else None
        if setting and not sweep:
            raise InputError(
                f"{override} is for sweeps and experiments, where it holds beside the rest; for one cell "
                f"write {setting.choice} {setting.override}={value}"
            )
        arguments.append(carry(override) if setting else override)
    return arguments


def carry(override: str) -> str:
    """An override as it travels to the sweeper, and not into the sweep's own configuration."""
    key, _, value = override.partition("=")
    return f"{CARRIED_PREFIX}{key}={word(value)}"


def as_typed(override: str) -> str:
    """An override as the command line has it, whether `carry` wrote it or not."""
    match = CARRIED_PATTERN.fullmatch(override)
    return f"{match[1]}={unquote(match[2])}" if match else override


def label(settings: Iterable[tuple[BesideSetting, str]], printed: bool = False) -> str:
    """The label of a component's cell with other settings, `chain_sd, length 2`, or with its printed name."""
    pairs = [*settings]
    owner = pairs[0][0]
    name = load_names().find(ANY_PAPER, owner.group, owner.component).name if printed else owner.component
    return ", ".join([name, *(f"{setting.setting} {value}" for setting, value in pairs)])
