"""Which cells a table has after a run, and which commands made them.

Owns the rules by which earlier cells stay. Must not know how cells are computed or where they are stored.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from repro.core.errors import InputError
from repro.records.members import Member
from repro.records.record import canonical


def require_apart(own: Sequence[Member]) -> None:
    """Check that no two cells of a sweep have the same labels, because a table would hide one of them.

    Raises:
        InputError: two cells have the same labels.
    """
    first: dict[str, Member] = {}
    for member in own:
        other = first.setdefault(canonical(member.labels), member)
        if other.key != member.key:
            raise InputError(
                f"two cells have the same labels, {' '.join(member.labels.values())}; name the setting in "
                'which they differ, as in labels: {length: "${method.length}"}'
            )


def join(own: Sequence[Member], earlier: Sequence[Member], whole: bool = False) -> list[Member]:
    """A run's own cells, and earlier ones with other keys and other labels.

    This way a method that is run alone is added to the existing rows, and empties none. If the run was the
    `whole` sweep of the experiment, only those earlier cells stay that another command had added. A
    cell that was in the table already keeps the shorter of both commands.
    """
    keys, labels = {member.key for member in own}, {canonical(member.labels) for member in own}
    before = {(member.key, canonical(member.labels)): member for member in earlier}
    once = {(member.key, canonical(member.labels)): member for member in own}
    kept = [_shorter(member, before.get(place)) for place, member in once.items()]
    others = [m for m in earlier if m.key not in keys and canonical(m.labels) not in labels]
    same = {member.overrides for member in own} if whole else set()
    return kept + [member for member in others if member.overrides not in same]


def commands(experiment: str, members: Sequence[Member]) -> tuple[str, ...]:
    """The commands that made a table's cells, those with the fewest overrides first."""
    found = {member.overrides for member in members} or {()}
    ordered = sorted(found, key=lambda overrides: (len(overrides), overrides))
    return tuple(f"python -m repro {shlex.join(_full(experiment, each))}" for each in ordered)


def _full(experiment: str, overrides: Sequence[str]) -> list[str]:
    named = any(one.startswith("experiment=") for one in overrides)
    return [*overrides] if named else [f"experiment={experiment}", *overrides]


def shared_overrides(members: Sequence[Member]) -> tuple[str, ...]:
    """The overrides that all of a table's cells have, in their order."""
    first, *others = [member.overrides for member in members] or [()]
    return tuple(one for one in first if all(one in other for other in others))


def _shorter(member: Member, earlier: Member | None) -> Member:
    return earlier if earlier and set(earlier.overrides) <= set(member.overrides) else member
