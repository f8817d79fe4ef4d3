"""Faults in what computes or accepts are reported by every method, although its rows are looked up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from repro.models.tokens import acceptance
from repro.models.tokens.kv_slots import Lineage
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder
from repro.scenarios.generation import run
from tiny_project import Project, write_project

METHODS = {
    "chain_sd": (),
    "specinfer": ("method.expansion=[3,2,2]",),
    "edgellm": (),
    "opt_tree": ("method.nodes=12",),
    "lever": ("method.pruning=off", "target.precision=q4_0", "draft.precision=q4_0"),
}
TREES = [name for name in METHODS if name != "chain_sd"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return write_project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def project(models: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with empty caches, in a process that has exercised no method yet."""
    monkeypatch.setenv("REPRO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(run, "_exercised", {})
    return models.apart(tmp_path, "max_tokens=12")


def outcome(project: Project, method: str) -> tuple[str, str]:
    note = project.cell(f"method={method}", *METHODS[method])
    return note.state, note.error


def siblings_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row sees all rows before it."""
    made = Lineage.mask

    def mask(self: Lineage, *groups: Sequence[Any]) -> torch.Tensor | None:
        found = made(self, *groups)
        return found if found is None else found | torch.ones_like(found).tril(self.length)

    monkeypatch.setattr(Lineage, "mask", mask)


def other_slots_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a tree each kept slot is the next one; after a chain the slot before the last is lost."""
    made = KVCache.keep

    def shifted(self: KVCache, base: int, slots: Sequence[int], layers: range | None = None) -> None:
        held = self.length
        made(self, base, [min(held - 1, slot + 1) for slot in slots], layers)
        if not slots and base > 2:
            self._data[:, :, base - 2] = self._data[:, :, base - 1]

    monkeypatch.setattr(KVCache, "keep", shifted)


def a_wrong_token_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The root's first child is accepted whatever the target says."""

    def lenient(tree: Any) -> Any:
        path = [0]
        choice = yield 0
        if children := tree.children(0):
            path.append(children[0])
            choice = yield path[-1]
        return acceptance.Accepted(path, choice)

    monkeypatch.setattr(acceptance, "greedy", lenient)


FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (siblings_are_seen, "UnfaithfulRowError"),
    (other_slots_are_kept, "UnfaithfulRowError"),
    (a_wrong_token_is_accepted, "NotLosslessError"),
]


@pytest.mark.parametrize("method", METHODS)
def test_without_a_fault_a_cell_is_done(project: Project, method: str) -> None:
    assert outcome(project, method) == ("done", "")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("fault", "error"), FAULTS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_fault_is_reported(
    project: Project,
    method: str,
    fault: Callable[[pytest.MonkeyPatch], None],
    error: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if fault is siblings_are_seen and method not in TREES:
        pytest.skip("a chain has no siblings")
    fault(monkeypatch)
    state, told = outcome(project, method)
    assert state == "failed"
    assert error in told


def test_nan_logits_stop_a_cell_and_leave_a_record(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Decoder.head
    monkeypatch.setattr(Decoder, "head", lambda self, x: made(self, x) * torch.nan)
    note = project.cell("method=chain_sd")
    assert note.state == "failed"
    assert "NotFiniteError: the largest logit is nan" in note.error
    record = project.store.get(note.key)
    assert record is not None
    assert not record.done
