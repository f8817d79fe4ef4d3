"""Which cells a table has after a run, and which commands made them.

Owns the rules by which earlier cells stay. Must not know how cells are computed or where they are stored.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from repro.core.errors import InputError
from repro.records.members import Member
from repro.records.record import canonical


def require_apart(members: Sequence[Member]) -> None:
    """Check that no two cells of a sweep have the same labels, because a table would hide one of them.

    Raises:
        InputError: two cells have the same labels.
    """
    first_by_labels: dict[str, Member] = {}
    for member in members:
        first_member = first_by_labels.setdefault(canonical(member.labels), member)
        if first_member.key != member.key:
            raise InputError(
                f"two cells have the same labels, {' '.join(member.labels.values())}; name the setting in "
                'which they differ, as in labels: {length: "${method.length}"}'
            )


def join(
    run_cells: Sequence[Member], old_cells: Sequence[Member], is_full_sweep: bool = False
) -> list[Member]:
    """A run's own cells, and earlier ones with other keys and other labels.

    This way a method that is run alone is added to the existing rows, and empties none. If the run was the
    experiment's full sweep, only those earlier cells stay that another command had added. A cell that was in
    the table already keeps the shorter of both commands.
    """
    keys, labels = {member.key for member in run_cells}, {canonical(member.labels) for member in run_cells}
    earlier_by_labels = {(member.key, canonical(member.labels)): member for member in old_cells}
    by_identity = {(member.key, canonical(member.labels)): member for member in run_cells}
    current = [_shorter(member, earlier_by_labels.get(identity)) for identity, member in by_identity.items()]
    earlier_others = [m for m in old_cells if m.key not in keys and canonical(m.labels) not in labels]
    replaced_overrides = {member.overrides for member in run_cells} if is_full_sweep else set()
    return current + [member for member in earlier_others if member.overrides not in replaced_overrides]


def commands(experiment: str, members: Sequence[Member]) -> tuple[str, ...]:
    """The commands that made a table's cells, those with the fewest overrides first."""
    override_sets = {member.overrides for member in members} or {()}
    ordered = sorted(override_sets, key=lambda overrides: (len(overrides), overrides))
    return tuple(f"python -m repro {shlex.join(_arguments(experiment, overrides))}" for overrides in ordered)


def _arguments(experiment: str, overrides: Sequence[str]) -> list[str]:
    names_experiment = any(override.startswith("experiment=") for override in overrides)
    return [*overrides] if names_experiment else [f"experiment={experiment}", *overrides]


def shared_overrides(members: Sequence[Member]) -> tuple[str, ...]:
    """The overrides that all of a table's cells have, in their order."""
    first_overrides, *other_commands = [member.overrides for member in members] or [()]
    return tuple(
        override for override in first_overrides if all(override in overrides for overrides in other_commands)
    )


def _shorter(member: Member, earlier: Member | None) -> Member:
    return earlier if earlier and set(earlier.overrides) <= set(member.overrides) else member
