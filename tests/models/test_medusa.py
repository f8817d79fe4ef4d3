"""Medusa heads: the public format, their rows against a plain reference, losslessness, what they cost."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.device.emulated import Device, EmulatedDevice
from repro.methods.base import Decoding, Generation, Method, Request
from repro.methods.speculative.chain_sd import ChainSD
from repro.methods.speculative.corrected import Corrected
from repro.methods.speculative.drafting import medusa_head
from repro.methods.speculative.drafting.calibrated_draft import MatchedNetwork
from repro.methods.speculative.drafting.medusa_head import MedusaHeads
from repro.methods.speculative.drafting.medusa_network import MedusaNetwork
from repro.methods.speculative.specinfer import SpecInfer
from repro.methods.speculative.speculative import Speculative
from repro.models.costs.model_cost import ModelCost, Shape, precision
from repro.models.forward.cached_features import CachedFeatures
from repro.models.forward.features import Captured, Features
from repro.models.forward.logit_cache import LogitCache, MemoNetwork
from repro.models.forward.network import DecoderNetwork, Logits, Network, NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT
from repro.models.runtime.session import Session
from repro.models.tokens.kv_slots import MedusaLineage
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.tree import TokenTree
from repro.models.transformer.decoder import Decoder
from tiny import DEVICES, answer, decoder, model_cost_of, plain, toy
from tiny_medusa import HEADS, raw_config, said, tensors_of, write_heads

FAMILY = "llama-2"
TOLERANCE = 1e-4
PROMPT = (3, 17, 92, 5, 40, 8)


def target() -> Decoder:
    return decoder(FAMILY)


def tensors(**changes: Any) -> dict[str, Tensor]:
    return tensors_of(target().config.hidden, target().config.vocab, **changes)


def opened(folder: Path, dtype: str = "float32") -> MedusaHeads:
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = medusa_head.config_of(folder, raw, target().config.vocab)
    return medusa_head.load(folder, config, dtype, target().ends)


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> MedusaHeads:
    return opened(write_heads(tmp_path_factory.mktemp("heads"), tensors(own=False)))


def remembered(memo: LogitCache | None = None) -> CachedFeatures:
    return CachedFeatures((target().config.layers,), target, memo)


def network(heads: MedusaHeads, features: Features | None = None) -> MedusaNetwork:
    return MedusaNetwork(heads.config.heads, lambda: heads, features or remembered())


def rows(made: Network, wanted: list[Prefix]) -> list[Logits]:
    step = made.begin(wanted)
    step.layers(0, made.depth)
    return step.rows()


def close(row: Logits, truth: Tensor) -> None:
    torch.testing.assert_close(row.logits, truth, atol=TOLERANCE, rtol=TOLERANCE)


# --- the format ---------------------------------------------------------------------------------------------

FORMS = [(1, True, True), (3, True, True), (1, True, False), (1, False, False), (2, False, False)]


@pytest.mark.parametrize(("layers", "own", "pickled"), FORMS)
def test_each_heads_row_is_that_of_the_tensors_in_the_file(
    tmp_path: Path, layers: int, own: bool, pickled: bool
) -> None:
    """Heads are counted in the file; the public code saves one repeated block under several names."""
    stored = tensors(layers=layers, own=own)
    made = opened(write_heads(tmp_path, stored, layers, pickled))
    assert made.config.heads == HEADS
    assert raw_config()["medusa_num_heads"] != HEADS
    started, text = network(made), Prefix.of(PROMPT)
    started.start(text)
    asked = [text.then(9).extend([0] * head) for head in range(HEADS)]
    for head, row in enumerate(rows(started, asked)):
        close(row, said(stored, target(), PROMPT, head, layers))
    mixed = [3, 0, 3, 1]
    for head, row in zip(mixed, rows(started, [asked[head] for head in mixed]), strict=True):
        close(row, said(stored, target(), PROMPT, head, layers))


def test_half_precision_files_compute_in_the_dtype_that_is_asked_for(tmp_path: Path) -> None:
    half = {name: tensor.half() for name, tensor in tensors().items()}
    made = opened(write_heads(tmp_path, half, pickled=True), "bfloat16")
    features = torch.randn(1, target().config.hidden, generator=torch.Generator().manual_seed(0))
    whole = opened(write_heads(tmp_path / "whole", {n: t.float() for n, t in half.items()}))
    found, exact = (made.logits(made.hidden(features, [1]), [1]) for made in (made, whole))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, atol=0.2, rtol=0.1)


def test_what_is_no_folder_of_heads(tmp_path: Path) -> None:
    t = tensors()
    lacking = {name: tensor for name, tensor in t.items() if name != "2.1.weight"}
    with pytest.raises(InputError, match=r"tensor 2\.1\.weight is missing from .*medusa_lm_head\.pt"):
        opened(write_heads(tmp_path / "a", lacking, pickled=True))
    narrow = t | {"1.0.linear.weight": torch.zeros(3, 3)}
    with pytest.raises(InputError, match=r"1\.0\.linear\.weight in .* has shape \[3, 3\], expected"):
        opened(write_heads(tmp_path / "b", narrow, pickled=True))
    with pytest.raises(InputError, match=r"holds no tensor 0\.0\.linear\.weight"):
        opened(write_heads(tmp_path / "c", {"other": torch.zeros(1)}, pickled=True))
    with pytest.raises(InputError, match="dtype 'int8'"):
        opened(write_heads(tmp_path / "d", t), "int8")
    with pytest.raises(InputError, match="medusa_num_layers is 0"):
        opened(write_heads(tmp_path / "e", t, layers=0))
    folder = write_heads(tmp_path / "f", t, pickled=True)
    torch.save({"0.0.linear.weight": Path("x")}, folder / "medusa_lm_head.pt")
    with pytest.raises(InputError, match="more than tensors"):
        opened(folder)
    (folder / "medusa_lm_head.pt").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(InputError, match=r"medusa_lm_head\.pt"):
        opened(folder)


def test_every_block_and_head_of_the_file_is_read_or_refused(tmp_path: Path) -> None:
    """Blocks that the configuration does not name are applied; numbers that contradict the file are not."""
    c, x = target().config, torch.randn(3, target().config.hidden, generator=torch.Generator().manual_seed(9))
    two = tensors_of(c.hidden, c.vocab, layers=2)
    folder = write_heads(tmp_path / "two", two, layers=2)
    expected = opened(folder)
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))

    def says(**changes: Any) -> MedusaHeads:
        said = {name: value for name, value in (raw | changes).items() if value is not None}
        (folder / "config.json").write_text(json.dumps(said), encoding="utf-8")
        return opened(folder)

    unnamed = says(medusa_num_layers=None)
    assert unnamed.config.layers == 2
    torch.testing.assert_close(unnamed.hidden(x, [0, 1, 2]), expected.hidden(x, [0, 1, 2]))
    assert says(hidden_size=c.hidden, torch_dtype="float16", medusa_fc_bias=None).config.heads == 4
    for changes, message in (
        ({"medusa_num_layers": 1}, r"4 heads with 2 blocks each, .* medusa_num_layers=1"),
        ({"medusa_num_heads": 5}, "medusa_num_heads=5"),
        ({"medusa_num_heads": "5"}, "medusa_num_heads is '5'"),
        ({"hidden_size": 7}, f"hidden_size=7; its tensors have {c.hidden}"),
        ({"medusa_choices": [[0]]}, "medusa_choices"),
    ):
        with pytest.raises(InputError, match=message):
            says(**changes)
    for name, message in (
        ("6.0.linear.weight", "has tensor 6.0.linear.weight, which is no part"),
        ("0.1.linear.scale", "has tensor 0.1.linear.scale"),
    ):
        more = two | {name: torch.ones(c.hidden, c.hidden)}
        for pickled in (False, True):
            folder = write_heads(tmp_path / f"{name}{pickled}", more, layers=2, pickled=pickled)
            with pytest.raises(InputError, match=message):
                opened(folder)


# --- rows ---------------------------------------------------------------------------------------------------


def test_rows_follow_the_text(heads: MedusaHeads) -> None:
    made, prompt, t = network(heads), Prefix.of(PROMPT), tensors(own=False)
    made.start(prompt)
    root = prompt.then(11)
    tree = [root, root.then(1), root.then(2), root.extend((1, 7)), root.extend((2, 7))]
    for prefix, row in zip(tree, rows(made, tree), strict=True):
        close(row, said(t, target(), PROMPT, prefix.length - root.length))
    text = root.extend((1, 7))
    made.keep(text)
    for head in range(HEADS):
        (row,) = rows(made, [text.extend([5] * head)])
        close(row, said(t, target(), text.tokens()[:-1], head))
    (known,) = rows(made, [root])
    close(known, said(t, target(), PROMPT, 0))
    with pytest.raises(InputError, match=r"4 Medusa heads foresee 4 tokens, and token 5 was asked for"):
        made.begin([text.extend([5] * HEADS)])


def test_a_memo_changes_no_row(heads: MedusaHeads, tmp_path: Path) -> None:
    memo, prompt = LogitCache(tmp_path / "memo.sqlite"), Prefix.of(PROMPT)

    def walk(made: Network, filler: int) -> list[tuple[list[int], list[float]]]:
        made.start(prompt)
        root = prompt.then(11)
        out = rows(made, [root.then(filler), root])
        out += rows(made, [root.extend([filler] * head) for head in range(HEADS)])
        made.keep(root.then(4))
        out += rows(made, [root.extend([4, *[filler] * head]) for head in range(HEADS)])
        return [row.top_ranks() for row in out]

    truth = walk(network(heads), 0)
    assert walk(MemoNetwork(network(heads, remembered(memo)), memo), 0) == truth
    forgotten = MemoNetwork(MedusaNetwork(HEADS, never, remembered()), memo)
    for (tokens, logps), (known, near) in zip(truth, walk(forgotten, 9), strict=True):
        assert tokens == known
        assert logps == pytest.approx(near, abs=1e-6)


def never() -> MedusaHeads:
    raise AssertionError("a memo that knows all needs no weights")


def test_a_memo_that_knows_some_heads(heads: MedusaHeads, tmp_path: Path) -> None:
    memo, prompt = LogitCache(tmp_path / "memo.sqlite"), Prefix.of(PROMPT)
    asked = [prompt.extend([1] * (head + 1)) for head in range(HEADS)]
    truth = network(heads)
    truth.start(prompt)
    for some in ([1], [3, 0], [0, 1, 2, 3]):
        made = MemoNetwork(network(heads, remembered(memo)), memo)
        made.start(prompt)
        found = rows(made, [asked[head] for head in some])
        exact = rows(truth, [asked[head] for head in some])
        assert [row.top_ranks()[0] for row in found] == [row.top_ranks()[0] for row in exact]


# --- as a draft ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RandomTrees(Speculative):
    """Any tree whose nodes are ranks of the heads, another one each round."""

    seed: int = 0

    async def grow(self, decoding: Decoding, draft: Session) -> tuple[TokenTree, str]:
        """All rows in one pass, then a tree of chance."""
        text, rng = decoding.text, random.Random(self.seed + decoding.text.length)
        said = await draft.forward([text.extend([0] * head) for head in range(draft.heads)])
        tree, levels = TokenTree(text), [[0]]
        for row in said:
            level = []
            for parent in levels[-1]:
                ranks = rng.sample(range(6), rng.randint(0, 2))
                level += [tree.grow(parent, *row.top(6)[rank]) for rank in ranks]
            levels.append(level)
        return tree, "chance"


METHODS = [
    ChainSD(length=HEADS),
    SpecInfer(expansion=(2, 1, 2)),
    Corrected(),
    *(RandomTrees(seed=seed) for seed in range(6)),
]


def model_costs(heads: MedusaHeads) -> dict[str, ModelCost]:
    return {"target": model_cost_of(target()), "draft": ModelCost(heads.config.shape, precision("fp32"))}


def served(
    heads: MedusaHeads, method: Method, device: Device, draft: Network, main: Network | None = None
) -> Generation:
    networks = {"target": main or DecoderNetwork(target()), "draft": draft}
    return answer(method, Request("", PROMPT, 12), device, networks, model_costs(heads))


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_lossless(heads: MedusaHeads, method: Method) -> None:
    generation = served(heads, method, EmulatedDevice(toy()), network(heads))
    assert generation.tokens == plain(target(), Request("", PROMPT, 12))


def test_what_is_right_is_accepted(heads: MedusaHeads) -> None:
    """Where the target's own token is put first in each row that is asked for, a chain of it is accepted."""
    draft = MatchedNetwork(network(heads), DecoderNetwork(target()), 1.0, seed=1)
    generation = served(heads, ChainSD(length=3), EmulatedDevice(toy()), draft)
    assert generation.tokens == plain(target(), Request("", PROMPT, 12))
    assert {r.accepted for r in generation.rounds[:-1]} == {3}


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("place", DEVICES)
def test_features_that_the_target_leaves_behind(heads: MedusaHeads, method: Method, place: str) -> None:
    captured = Captured((target().config.layers,))
    main = DecoderNetwork(target(), captured=captured)
    own = served(heads, method, DEVICES[place](), network(heads, captured), main)
    apart = served(heads, method, EmulatedDevice(toy()), network(heads))
    assert own.tokens == apart.tokens == plain(target(), Request("", PROMPT, 12))
    if place == "emulated":
        assert own.rounds == apart.rounds


def test_more_tokens_than_heads(heads: MedusaHeads) -> None:
    with pytest.raises(InputError, match=r"drafts at most 4 \(method\.length=4\)"):
        served(heads, ChainSD(length=HEADS + 1), EmulatedDevice(toy()), network(heads))


# --- what it costs ------------------------------------------------------------------------------------------

SHARED = Shape.of_medusa(5, hidden=8, vocab=10, tied=True, blocks=2)
OWN = Shape.parse({"medusa": 5, "hidden": 8, "vocab": 10, "tied": False})


def test_the_public_heads_parameters() -> None:
    """739 million in fp16, as the file of Vicuna-7B's five heads has."""
    shape = Shape.parse(
        yaml.safe_load((conf_dir() / "model/shape/vicuna_7b_medusa.yaml").read_text(encoding="utf-8"))
    )
    assert shape.parameters == 5 * (4096**2 + 4096 * 32000)
    assert round(ModelCost(shape, precision("fp16")).model_bytes / 1e9, 2) == 1.48


def test_heads_are_billed_by_their_own_blocks_and_projections() -> None:
    shared, own = ModelCost(SHARED, precision("fp32")), ModelCost(OWN, precision("fp32"))
    assert SHARED.parameters == 5 * 2 * 64
    assert OWN.parameters == 5 * (64 + 80)
    assert shared.layers(1, rows=3, context=99) == (2 * 3 * 128, 4 * 3 * 128)
    assert own.layers(1, rows=3, context=99) == (2 * 3 * 64, 4 * 3 * 64)
    assert shared.head(3) == (2 * 3 * 80, 4 * 80)
    assert own.head(3) == (2 * 3 * 80, 4 * 3 * 80)
    assert shared.cache_bytes(1000) == own.cache_bytes(1000) == 0


def ops(session: Session, device: EmulatedDevice, *wanted: Prefix) -> list[tuple[str, int, float]]:
    """Kind, rows that meet the same weights, and FLOPs of each op of one call."""
    before = len(device.trace.spans)
    device.play(session.forward(wanted))
    return [(span.kind, span.rows, span.flops) for span in device.trace.spans[before:]]


@pytest.mark.parametrize(("shape", "together"), [(SHARED, (3, 2)), (OWN, (1, 1))])
def test_one_pass_pays_for_the_heads_that_are_asked_for(shape: Shape, together: tuple[int, int]) -> None:
    device = EmulatedDevice(toy())
    session = Session(Engine("draft", device, ModelCost(shape, precision("fp32")), NoNetwork(), RESIDENT))
    assert session.heads == 5
    prompt = Prefix.of(PROMPT)
    session.start(prompt)
    root, block, projection = prompt.then(1), 2 * shape.blocks * 64, 2 * 80
    chain = [root.extend([0] * head) for head in range(3)]
    found = ops(session, device, *chain)
    assert found == [("layer", 1, 3 * block), ("head", together[0], 3 * projection)]
    assert session.passes[-1].rows == 3
    assert ops(session, device, root.extend((4, 4)), root.then(9)) == [], "twins of what is known"
    assert session.logits_of(root.extend((4, 4))) is session.logits_of(chain[2])
    further = ops(session, device, root.extend((1, 1, 1)), root.extend((2, 1, 1)), root.extend([1] * 4))
    assert further == [("layer", 1, 2 * block), ("head", together[1], 2 * projection)]
    session.keep(chain[2])
    assert ops(session, device, chain[2]) == [("layer", 1, block), ("head", 1, projection)]
    with pytest.raises(InputError, match="token 6 was asked for"):
        ops(session, device, chain[2].extend([0] * 5))


def test_other_models_have_no_heads() -> None:
    device = EmulatedDevice(toy())
    assert Session(Engine("target", device, model_cost_of(target()), NoNetwork(), RESIDENT)).heads == 0


def test_a_place_is_the_last_feature_and_a_head() -> None:
    lineage, prompt = MedusaLineage(3, heads=2), Prefix.of((1, 2, 3))
    assert lineage.root_and_head(prompt.then(4)) == (prompt, 0)
    assert lineage.root_and_head(prompt.extend((4, 5))) == (prompt, 1)
    assert lineage.root_and_head(prompt) == (prompt.parent, 0)
    lineage.keep(prompt.extend((4, 5)))
    assert lineage.root_and_head(prompt.extend((4, 5))) == (prompt.then(4), 0)
