"""SpecInfer's trees: their form, what merging keeps; cells whose method has several drafts."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
import torch

from repro.core.errors import InputError
from repro.core.overrides import override
from repro.device.emulated import EmulatedDevice
from repro.methods.base import Decoding, Request
from repro.methods.speculative.specinfer import SpecInfer, merge
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.sampling import Sampling
from repro.models.tokens.tree import TokenTree
from repro.scenarios.generation.scenario import GenerationScenario
from tiny import TableNetwork, opened, toy
from tiny_checkpoints import write_tokenizer
from tiny_project import Project

VOCAB = 10
ASKED = Request("", (0, 1), 12)
DEFAULT = (1, 1, 3, 1, 1, 1, 1, 1)
Path_ = tuple[int, ...]


def tables(drafts: int = 1) -> dict[str, TableNetwork]:
    roles = ["target", "draft", *(f"draft_{i}" for i in range(2, drafts + 1))]
    return {role: TableNetwork(VOCAB, seed) for seed, role in enumerate(roles)}


def grown(method: SpecInfer, asked: Request = ASKED) -> tuple[TokenTree, TokenTree]:
    """The first draft's tree after a prompt, and the same grown once more."""
    device = EmulatedDevice(toy())
    sessions = opened(method, device, dict(tables()))
    decoding = Decoding(asked, device)

    async def twice() -> tuple[TokenTree, TokenTree]:
        first, _ = await method.grow(decoding, sessions["draft"])
        return first, (await method.grow(decoding, sessions["draft"]))[0]

    return device.play(twice())


def expand(model: TableNetwork, text: Path_, expansion: Path_) -> set[Path_]:
    """All drafted sequences after a text, by the definition."""
    if not expansion:
        return set()
    best = model.logits(Prefix.of(text)).topk(expansion[0]).indices.tolist()
    return {(t, *rest) for t in best for rest in [(), *expand(model, (*text, t), expansion[1:])]}


def sequences(tree: TokenTree) -> Counter[Path_]:
    return Counter(tuple(p.tokens(start=tree.root.length)) for p in tree.prefixes[1:])


@pytest.mark.parametrize("expansion", [(1,), (3, 2), (1, 3, 1, 2), DEFAULT])
def test_the_tree_is_the_expansion(expansion: Path_) -> None:
    tree, again = grown(SpecInfer(expansion=expansion))
    assert sequences(tree) == Counter(expand(tables()["draft"], ASKED.prompt, expansion))
    assert sequences(again) == sequences(tree)
    for node in range(1, len(tree)):
        before = tree.prefixes[tree.parents[node]]
        logps = tables()["draft"].logits(before).log_softmax(-1)
        assert tree.logps[node] == pytest.approx(float(logps[tree.token(node)]), abs=1e-6)


def random_tree(root: Prefix, chance: random.Random, drawn: bool) -> TokenTree:
    tree = TokenTree(root)
    for _ in range(chance.randint(0, 12)):
        parent = tree.find(tree.prefixes[chance.randrange(len(tree))])
        assert parent is not None
        tree.grow(parent, chance.randrange(3), -chance.random(), torch.rand(3) if drawn else None)
    return tree


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_a_merged_tree_has_the_sequences_of_all(seed: int, drawn: bool) -> None:
    chance = random.Random(seed)
    root = Prefix.of([5, 6])
    trees = [random_tree(root, chance, drawn) for _ in range(chance.randint(1, 4))]
    merged, before = merge(trees), [len(tree) for tree in trees]
    assert [len(tree) for tree in trees] == before, "the drafts' own trees stay as they are"
    each = [sequences(tree) for tree in trees]
    assert set(sequences(merged)) == set().union(*each)
    if drawn:
        assert sequences(merged) == sum(each, Counter()), "every draw counts"
        draws = sorted(id(d) for tree in trees for d in tree.distributions if d is not None)
        assert sorted(id(d) for d in merged.distributions if d is not None) == draws
    else:
        assert set(sequences(merged).values()) <= {1}
    for node in range(1, len(merged)):
        parent = merged.parents[node]
        assert merged.prefixes[parent] is merged.prefixes[node].parent
        assert merged.find(merged.prefixes[parent]) == parent, "children hang below a sequence's first node"


def test_a_token_that_was_drawn_twice_goes_on_once() -> None:
    asked = Request("", (0, 1), 12, sampling=Sampling(0.3), seed=3)
    tree, again = grown(SpecInfer(expansion=(8, 2)), asked)
    level = [node for node in range(1, len(tree)) if tree.depth(node) == 1]
    distinct = {tree.prefixes[node] for node in level}
    assert len(level) == 8 > len(distinct) > 1
    assert len(tree) - 1 == 8 + 2 * len(distinct)
    q = Sampling(0.3).probabilities(tables()["draft"].logits(tree.root))
    assert all(torch.equal(tree.distributions[node], q) for node in level)
    assert sequences(again) != sequences(tree), "every round draws anew"
    device = EmulatedDevice(toy())
    session = opened(SpecInfer(), device, dict(tables()))["target"]
    device.play(session.forward([tree.root.up_to(1)]))
    verification = device.play(session.verify(tree, Decoding(asked, device).chooser))
    assert verification.rows == len(set(tree.prefixes)) < len(tree), "a sequence is verified once"


# --- cells with several drafts ------------------------------------------------------------------------------

TWO = ("method=specinfer", "method.expansion=[1,2]", "method.drafts=2", "+model@draft_2=smollm2_135m_draft")


def second(folder: Path) -> tuple[str, ...]:
    """The second draft's checkpoint, as a command names it."""
    return (override("draft_2.checkpoint.folder", folder), "draft_2.checkpoint.shares_embeddings_with=null")


def test_two_drafts_in_one_cell(project: Project) -> None:
    record = project.record(*TWO, *second(project.root / "target"))
    assert record.status == "done", record.error
    assert set(record.provenance.inputs) == {"target", "draft", "draft_2", "dataset"}
    assert record.provenance.inputs["draft_2"] == record.provenance.inputs["target"]
    assert record.values["exact_match"] == 1.0
    assert record.values["acceptance_length"] == pytest.approx(10 / 4), "5 tokens in rounds of 3 and 2, twice"
    assert record.provenance.config["method"]["expansion"] == [1, 2]


def test_each_draft_counts_in_the_key_if_it_drafts(project: Project) -> None:
    def key(*overrides: str) -> str:
        return GenerationScenario(project.config(*overrides)).key

    both = key(*TWO, *second(project.root / "draft"))
    assert both != key(*TWO, *second(project.root / "target"))
    assert both != key(*TWO, *second(project.root / "draft"), "draft_2.dtype=bfloat16")
    one = (*TWO, *second(project.root / "draft"), "method.drafts=1")
    assert key(*one) == key("method=specinfer", "method.expansion=[1,2]") != both


def test_a_draft_too_few_is_said(project: Project) -> None:
    with pytest.raises(InputError, match=r"a model as draft_2, .* add \+model@draft_2=NAME"):
        GenerationScenario(project.config("method=specinfer", "method.drafts=2"))


def test_every_draft_is_checked(project: Project, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    write_tokenizer(tmp_path / "other", control=["<|answer|>", "<|user|>", "<|end|>"])
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "other" / name).symlink_to(project.root / "draft" / name)
    with pytest.raises(InputError, match=r"id 0 is '<.end.>' to the target, '<.answer.>' to the draft"):
        GenerationScenario(project.config(*TWO, *second(tmp_path / "other"))).check()
