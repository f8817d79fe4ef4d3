"""SpecInfer's trees: their form, their passes, what merging keeps; cells whose method has several drafts."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from repro.core.errors import InputError
from repro.core.overrides import override
from repro.device.emulated import EmulatedDevice
from repro.methods.base import Decoding, Generation, Method, Request
from repro.methods.speculative.bld import BigLittle
from repro.methods.speculative.chain_sd import ChainSD
from repro.methods.speculative.specinfer import SpecInfer, merge
from repro.models.forward.network import DecoderNetwork
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.sampling import Sampling
from repro.models.tokens.tree import TokenTree
from repro.scenarios.generation.scenario import GenerationScenario
from tiny import DEVICES, NoisedNetwork, TableNetwork, answer, decoder, opened, toy
from tiny_checkpoints import write_tokenizer
from tiny_project import Project, write_project

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
    return Counter(tuple(p.tokens(after=tree.root.length)) for p in tree.prefixes[1:])


@pytest.mark.parametrize("expansion", [(1,), (3, 2), (1, 3, 1, 2), DEFAULT])
def test_the_tree_is_the_expansion(expansion: Path_) -> None:
    tree, again = grown(SpecInfer(expansion=expansion))
    assert sequences(tree) == Counter(expand(tables()["draft"], ASKED.prompt, expansion))
    assert sequences(again) == sequences(tree)
    for node in range(1, len(tree)):
        before = tree.prefixes[tree.parents[node]]
        logps = tables()["draft"].logits(before).log_softmax(-1)
        assert tree.logps[node] == pytest.approx(float(logps[tree.token(node)]), abs=1e-6)


def test_the_default_has_twenty_draft_tokens() -> None:
    assert SpecInfer().expansion == DEFAULT
    assert len(grown(SpecInfer())[0]) - 1 == 20


def spans(
    method: SpecInfer, networks: dict[str, Any], asked: Request = ASKED
) -> tuple[Generation, list[Any]]:
    device = EmulatedDevice(toy())
    made = answer(method, asked, device, networks)
    heads = [s for s in device.trace.spans if s.kind == "head"]
    return made, [(s.name.split()[0], s.rows) for s in sorted(heads, key=lambda s: s.start)]


def test_a_step_is_one_pass_over_the_whole_level() -> None:
    """The prefill has the first step's row already; later rounds read the target's token first."""
    made, passes = spans(SpecInfer(), dict(tables()), Request("", (0, 1), 3))
    assert [r.emitted for r in made.rounds] == [1, 1]
    steps = [("draft", rows) for rows in (1, 1, 1, 3, 3, 3, 3, 3)]
    verification = ("target", 21)
    assert passes == [("target", 1), ("draft", 1), *steps[1:], verification, *steps, verification]


def test_several_drafts_run_in_turn_and_are_verified_together() -> None:
    networks = {**tables(), "draft_2": tables()["target"]}
    made, passes = spans(SpecInfer(expansion=(1, 2), drafts=2), networks, Request("", (0, 1), 7))
    turn = [("draft", 1), ("draft_2", 1)]
    assert passes[:3] == [("target", 1), *turn]
    assert passes[3:6] == [*turn, ("target", 7)]
    rounds = [(r.drafted, r.rows, r.accepted, r.emitted, r.reason) for r in made.rounds]
    assert rounds == [(6, 7, 2, 3, "depth"), (4, 5, 2, 3, "depth")], "then both guess the same first token"


def test_a_draft_that_says_the_same_adds_nothing() -> None:
    networks = {**tables(), "draft_2": tables()["draft"]}
    one = answer(SpecInfer(expansion=(2, 2)), ASKED, EmulatedDevice(toy()), networks)
    two = answer(SpecInfer(expansion=(2, 2), drafts=2), ASKED, EmulatedDevice(toy()), networks)
    assert two.tokens == one.tokens
    assert [r[:5] for r in two.rounds] == [r[:5] for r in one.rounds]


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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)])
def test_answers_are_as_long_as_asked_on_both_clocks(device: str, sampling: Sampling) -> None:
    machine = DEVICES[device]()
    asked = Request("", (0, 1), 20, sampling=sampling)
    made = answer(SpecInfer(drafts=3), asked, machine, dict(tables(3)))
    machine.close()
    assert len(made.tokens) == 20
    assert sum(r.emitted for r in made.rounds) == 19


@pytest.mark.parametrize(
    "method", [SpecInfer(drafts=3), ChainSD(length=6), BigLittle(fallback=0.0, rollback=0.5)]
)
def test_no_cache_keeps_what_was_not_accepted(method: Method) -> None:
    made, asked = decoder("llama-2"), Request("", (3, 1, 2), 40)
    caches = {role: DecoderNetwork(made) for role in method.places()}
    noised = {r: NoisedNetwork(n, 1.0, seed=i) for i, (r, n) in enumerate(caches.items()) if r != "target"}
    generation = answer(method, asked, EmulatedDevice(toy()), {**caches, **noised})
    longest = len(asked.prompt) + asked.max_tokens + max(r.emitted for r in generation.rounds)
    assert sum(r.drafted for r in generation.rounds) > 2 * longest
    assert all(network.lineage.length <= longest for network in caches.values())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"expansion": ()}, r"method.expansion .* number of nodes is 0; it must be a whole number from 1"),
        ({"expansion": (64, 64)}, "number of nodes is 4160; it must be a whole number from 1 to 1024"),
    ],
)
def test_impossible_settings_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        SpecInfer(**given)


# --- cells with several drafts ------------------------------------------------------------------------------

TWO = ("method=specinfer", "method.expansion=[1,2]", "method.drafts=2", "+model@draft_2=smollm2_135m_draft")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return write_project(tmp_path_factory.mktemp("project"))


@pytest.fixture(autouse=True)
def _own_cache(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "project" in request.fixturenames:
        monkeypatch.setenv("REPRO_CACHE", str(request.getfixturevalue("project").root / "cache"))


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
    with pytest.raises(InputError) as wrong:
        GenerationScenario(project.config("method=specinfer", "method.drafts=2"))
    said = "specinfer asks for a model as draft_2, and there is none; add +model@draft_2=NAME"
    assert str(wrong.value) == said


def test_every_draft_is_checked(project: Project, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    write_tokenizer(tmp_path / "other", control=["<|answer|>", "<|user|>", "<|end|>"])
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "other" / name).symlink_to(project.root / "draft" / name)
    with pytest.raises(InputError, match=r"id 0 is '<.end.>' to the target, '<.answer.>' to the draft"):
        GenerationScenario(project.config(*TWO, *second(tmp_path / "other"))).check()
    big = ("+model/shape@draft_2.shape=qwen3_8b", "draft_2.precision=fp32")
    with pytest.raises(InputError, match="draft_2 weights needs"):
        GenerationScenario(project.config(*TWO, *second(project.root / "draft"), *big)).check()
