"""Why predictions miss: reasons about one published cell, and rules over fields of published cells.

Owns the reading of `conf/reference/reasons.yaml` and which reason a miss gets. A reason says in which
direction it pushes our figure, so that a miss in the other direction contradicts it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import yaml

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.core.typed import typed
from repro.reports.comparison.comparison import Compared
from repro.reports.reference.reference import COLUMNS, PublishedCell, find


@dataclass(frozen=True)
class Reason:
    """Why our figures are off in one direction.

    Attributes:
        why: in a sentence.
        ours: whether it makes ours lie `above` the published value, or `below`.
        id: the only published cell that it is about; "" for a rule.
        rule: fields of published cells with the values that they must have.
    """

    why: str
    ours: Literal["above", "below"]
    id: str = ""
    rule: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def covers(self, cell: PublishedCell) -> bool:
        """Whether a published cell is in its scope."""
        if self.id:
            return cell.id == self.id
        return all(getattr(cell, name) in values for name, values in self.rule.items())

    def explains(self, one: Compared) -> bool:
        """Whether it covers a comparison and pushes it in its direction."""
        return self.covers(one.cell) and one.error is not None and (one.error > 0) == (self.ours == "above")

    @property
    def scope(self) -> str:
        """What it is about, in words."""
        return self.id or ", ".join(f"{name} {' or '.join(values)}" for name, values in self.rule.items())


def read_reasons(path: Path, cells: Mapping[str, PublishedCell]) -> list[Reason]:
    """The reasons in a file.

    Raises:
        InputError: an entry is malformed, names no published cell, or covers none.
    """
    entries = yaml.safe_load(path.read_text(encoding="utf-8")) or []
    if not isinstance(entries, list):
        raise InputError(f"{path.name} must be a list of reasons, each with `why`, `ours` and `id` or `rule`")
    return [_reason(entry, path.name, cells) for entry in entries]


def _reason(entry: object, where: str, cells: Mapping[str, PublishedCell]) -> Reason:
    if not isinstance(entry, dict):
        raise InputError(f"{where}: {entry!r} must be a mapping with `why`, `ours` and `id` or `rule`")
    rule = {str(k): (v,) if isinstance(v, str) else tuple(v) for k, v in (entry.get("rule") or {}).items()}
    reason = typed(Reason, {**entry, "rule": rule}, f"{where}, {entry.get('id') or entry.get('rule')}")
    if bool(reason.id) == bool(reason.rule):
        raise InputError(f"{where}: {entry!r} needs either `id` or `rule`")
    if reason.id:
        find(cells, reason.id)
    known = [name for name in COLUMNS if not name.startswith("value_")]
    for name, values in reason.rule.items():
        if name not in known:
            raise InputError(f"{where}: {unknown('field of a published cell', name, known)}")
        for value in values:
            if not any(getattr(cell, name) == value for cell in cells.values()):
                raise InputError(f"{where}: no published cell has {name} {value!r}")
    if not any(reason.covers(cell) for cell in cells.values()):
        raise InputError(f"{where}: no published cell has {reason.scope}")
    return reason


def reason_of(one: Compared, reasons: Sequence[Reason]) -> str:
    """Why a miss is off: by its own reason, or the rule with the most fields; "" if nobody knows."""
    if not one.missed:
        return ""
    fitting = [reason for reason in reasons if reason.explains(one)]
    fitting.sort(key=lambda reason: (not reason.id, -len(reason.rule)))
    return fitting[0].why if fitting else ""


def record(reason: Reason, comparisons: Sequence[Compared]) -> tuple[int, int]:
    """How many misses in its scope a reason explains, and how many contradict it."""
    misses = [one for one in comparisons if one.missed and reason.covers(one.cell)]
    explained = sum(map(reason.explains, misses))
    return explained, len(misses) - explained
