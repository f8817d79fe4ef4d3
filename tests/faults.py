"""Small changes of a cost, of acceptance and of a quantizer, each of which some command has to find."""

from __future__ import annotations

from typing import Any

import pytest

from repro.device import cost
from repro.methods.compression.quantization import per_group
from repro.models.tokens import acceptance


def dearer_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every launch takes a hundredth longer."""
    made = cost._demand
    monkeypatch.setattr(cost, "_demand", lambda launch, *rest: made(1.01 * launch, *rest))


def shorter_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last accepted token is taken for the bonus, which loses no text."""
    whole = acceptance.greedy

    def cut(tree: Any) -> Any:
        found = yield from whole(tree)
        path = found.path
        return found if len(path) == 1 else acceptance.Accepted(path[:-1], tree.token(path[-1]))

    monkeypatch.setattr(acceptance, "greedy", cut)


def longer_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups of weights share a scale."""
    made = per_group.symmetric
    monkeypatch.setattr(per_group, "symmetric", lambda x, bits, group: made(x, bits, 2 * group))
