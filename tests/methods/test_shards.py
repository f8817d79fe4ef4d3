"""Shards of layers: which weights they have, what rounding loses, which matter; plans worked out by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import transformers as hf

from repro.methods.sti.shard_plan import (
    FULL_WIDTH,
    Layers,
    Sharding,
    ShardPlan,
    StagePace,
    layer_ranges,
    plan,
    stored_bits,
)
from repro.methods.sti.shard_rank import importance
from repro.methods.sti.sharded_model import sharded_decoder
from repro.models.quantization import dictionary_rounding as shards
from repro.models.runtime.model import Model, ModelConfig
from repro.models.transformer import weights
from repro.models.transformer.cache import KVCache
from repro.models.transformer.families import config_of
from repro.models.transformer.layer import LayerWeights
from repro.models.transformer.linear import PlainLinear
from tiny_checkpoints import write_tokenizer
from tiny_families import write

# 2 layers of 2 shards of 40 weights in fp32: a whole shard is 160 bytes, one of w bits 5 w + 0.32.
LAYERS = Layers(layer_bytes=320.0, bits=32.0)
FLAT = [[0.0, 0.0], [0.0, 0.0]]


def pace(load: float = 1.0, compute: float = 10.0, ahead: int = 1) -> StagePace:
    """Seconds a byte, seconds a layer."""
    return StagePace(lambda size: load * size, lambda more: compute, 0.0, 0.0, ahead)


def planned(latency: float, ranks: Sequence[Sequence[float]] = FLAT, preload: float = 0.0) -> ShardPlan:
    return plan(Sharding((2, 4), latency, preload), ranks, LAYERS, pace())


def test_both_stages_by_hand() -> None:
    assert stored_bits(4) == 4 + 0.001 * 64
    whole = 320 + 320 + 10
    # All at 4 bits: 40.64 a layer, 91.28 in all. One shard whole: 139.68 more. Two do not fit into 325.
    found = planned(0.5, [[0.2, 0.1], [0.3, 0.0]])
    assert found.target == 0.5 * whole
    assert found.widths == ((4, 4), (FULL_WIDTH, 4))
    assert found.loads == pytest.approx((40.64, 180.32))
    assert found.seconds == pytest.approx(230.96)
    assert found.bits == pytest.approx((3 * 4.064 + 32) / 4)
    assert found.unpacking == pytest.approx((2 * (20.32 + 160), 20.32 + 160))
    # The shard that matters most is the one that is whole.
    assert planned(0.5, [[0.2, 0.4], [0.3, 0.0]]).widths == ((4, FULL_WIDTH), (4, 4))


def test_no_prefix_of_loads_is_late() -> None:
    """STI's accumulated budgets: loads up to a layer are over when the layers after leave no time to wait."""
    for latency in (0.1, 0.3, 0.5, 0.7):
        found = planned(latency, [[0.2, 0.1], [0.3, 0.0]])
        for layer in range(2):
            budget = found.target - 10 * (2 - layer)
            assert sum(found.loads[: layer + 1]) <= budget + 1e-9


def test_too_little_time_gives_the_narrowest_and_says_so() -> None:
    found = planned(0.01)
    assert found.widths == ((2, 2), (2, 2))
    assert found.seconds > found.target


def test_the_buffer_holds_the_first_whole_shards_that_fit() -> None:
    # 0.53 of 640 bytes: 339.2. At 4 bits all four shards fit; whole, two of 160.
    assert planned(0.1, preload=0.53).loads[0] == 0
    found = planned(1.0, preload=0.53)
    assert found.widths == ((FULL_WIDTH, FULL_WIDTH), (FULL_WIDTH, FULL_WIDTH))
    assert found.loads == (0, 320)
    assert found.preloaded == 320
    # With a buffer for everything nothing is read, and 32 bits take the time of computing.
    assert planned(0.04, preload=1.0).loads == (0, 0)
    assert planned(0.04, preload=1.0).seconds == 20


def test_more_time_never_means_fewer_bits() -> None:
    ranks = [[float((3 * s + 5 * i) % 7) for s in range(3)] for i in range(6)]
    asked = [Sharding((2, 3, 4, 5, 6), 0.02 * step, 0.1) for step in range(1, 51)]
    plans = [plan(each, ranks, LAYERS, pace()) for each in asked]
    bits = [found.bits for found in plans]
    assert bits == sorted(bits)
    assert bits[0] < 3
    assert bits[-1] == 32
    assert all(found.seconds <= found.target * 1.001 for found in plans if found.bits > stored_bits(2))


def test_real_layers_stand_for_billed_ones() -> None:
    assert [list(r) for r in layer_ranges(4, 2)] == [[], [0], [], [1]]
    assert [list(r) for r in layer_ranges(2, 4)] == [[0, 1], [2, 3]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama of 4 layers and 2 shards each; those of layer 2 answer nothing in shard 1."""
    made = tmp_path_factory.mktemp("shards") / "llama-2"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        write("llama-2", made)
    model = hf.LlamaForCausalLM.from_pretrained(made)
    with torch.no_grad():
        layer = model.model.layers[2]
        layer.self_attn.o_proj.weight[:, 32:] = 0
        layer.mlp.down_proj.weight[:, 48:] = 0
    model.save_pretrained(made)
    write_tokenizer(made)
    return made


def layer_of(folder: Path) -> LayerWeights:
    return next(weights.layers(folder))


@pytest.mark.parametrize("family", ["llama-1", "llama-2", "qwen-3", "gpt-2", "phi-2", "gemma-1"])
def test_every_weight_is_in_one_shard(family: str, tmp_path: Path) -> None:
    write(family, tmp_path / family)
    config = config_of(weights.read_config(tmp_path / family))
    layer = layer_of(tmp_path / family)
    for shard in range(config.kv_heads):
        add = {shard: lambda _, weight: weight + 100}
        layer = shards.map_shards(layer, config, add)
    for before, after in zip(layer_of(tmp_path / family).linears, layer.linears, strict=True):
        assert isinstance(before, PlainLinear)
        assert isinstance(after, PlainLinear)
        torch.testing.assert_close(after.weight, before.weight + 100)


def test_a_shard_is_a_key_value_head_its_queries_and_a_slice_of_the_mlp(folder: Path) -> None:
    """Two of four heads of 16 share a key-value head; the MLP of 96 has 48 for each shard."""
    config = config_of(weights.read_config(folder))
    marked = shards.map_shards(
        layer_of(folder), config, {1: lambda _, weight: torch.full_like(weight, torch.nan)}
    )
    qkv, out, up, down = (linear.weight.isnan() for linear in marked.linears)  # type: ignore[attr-defined]
    queries, keys, values = [*range(32, 64)], [*range(80, 96)], [*range(112, 128)]
    assert qkv.all(1).nonzero().flatten().tolist() == queries + keys + values
    assert out.all(0).nonzero().flatten().tolist() == [*range(32, 64)]
    assert up.all(1).nonzero().flatten().tolist() == [*range(48, 96), *range(144, 192)]
    assert down.all(0).nonzero().flatten().tolist() == [*range(48, 96)]
    for part in (qkv, out, up, down):
        assert (part.all(1).sum() * part.shape[1] + part.all(0).sum() * part.shape[0]) == part.sum()


def test_rounding_errs_less_the_wider_it_is() -> None:
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    errors = [
        float((shards.round_to_dictionary(weight, bits) - weight).square().mean())
        for bits in (1, 2, 3, 4, 5, 6)
    ]
    # The least mean squared errors of Gaussian numbers (Max 1960) from 1 to 5 bits, outliers included.
    assert errors[:5] == pytest.approx([0.3634, 0.1175, 0.03454, 0.009497, 0.002499], rel=0.1)
    assert all(narrow > 3 * wide for narrow, wide in pairwise(errors))


def test_rounding_keeps_outliers_and_a_dictionary() -> None:
    weight = torch.randn(50, 80, generator=torch.Generator().manual_seed(1))
    weight[3, 7], weight[9, 0] = 40.0, -30.0
    narrow = shards.round_to_dictionary(weight, 2)
    kept = narrow == weight
    assert kept[3, 7]
    assert kept[9, 0]
    assert int(kept.sum()) == 4, "one in a thousand of 4000"
    assert len(narrow[~kept].unique()) == 4
    assert torch.equal(
        shards.round_to_dictionary(torch.tensor([[1.0, 2.0], [2.0, 1.0]]), 2),
        torch.tensor([[1.0, 2.0], [2.0, 1.0]]),
    )


def test_whole_shards_are_the_model_itself(folder: Path) -> None:
    config, whole = config_of(weights.read_config(folder)), weights.load(folder)
    tokens = torch.arange(20)

    def logits(widths: Sequence[Sequence[int]]) -> torch.Tensor:
        made = sharded_decoder(folder, "float32", whole.ends, widths, config)
        return made.forward(tokens, tokens, None, KVCache(config, 20))

    own = whole.forward(tokens, tokens, None, KVCache(config, 20))
    assert torch.equal(logits([[FULL_WIDTH, FULL_WIDTH]] * 4), own)
    off = [float((logits([[bits, FULL_WIDTH]] * 4) - own).abs().mean()) for bits in (2, 4, 6)]
    assert off[0] > off[1] > off[2] > 0


def test_shards_that_say_nothing_matter_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REPRO_CACHE", str(tmp_path))
    config, whole = config_of(weights.read_config(folder)), weights.load(folder)
    found = importance(folder, "float32", config, whole.ends, range(30), 2)
    assert [len(row) for row in found] == [2, 2, 2, 2]
    assert found[2][1] == 0
    assert all(score > 0 for i, row in enumerate(found) for s, score in enumerate(row) if (i, s) != (2, 1))
    assert importance(folder, "float32", config, whole.ends, range(30), 2) == found
    (kept,) = (tmp_path / "shards").glob("*.json")
    other = {"data": "[[7.0]]", "sha256": hashlib.sha256(b"[[7.0]]").hexdigest()}
    kept.write_text(json.dumps(other), encoding="utf-8")
    assert importance(folder, "float32", config, whole.ends, range(30), 2) == [[7.0]], "measured once"


def model_of(folder: Path, rounded: int | None) -> Model:
    place = {"name": "tiny", "folder": str(folder), "hub": None, "wheel": None, "store": "float32"}
    checkpoint = {**place, "shares_embeddings_with": None, "licence": "none"}
    given = {"name": "tiny", "checkpoint": checkpoint, "shape": None, "precision": None, "dtype": "float32"}
    return Model(ModelConfig.parse({**given, "rounded": rounded}))


def test_a_model_file_may_round_all_layers_and_is_then_another_model(folder: Path, tmp_path: Path) -> None:
    whole, coarse = (model_of(folder, bits) for bits in (None, 3))
    config, tokens = whole.decoder_config, torch.arange(20)
    rounded = sharded_decoder(folder, "float32", whole.decoder().ends, [[3, 3]] * 4, config)
    logits = [
        made.forward(tokens, tokens, None, KVCache(config, 20))
        for made in (whole.decoder(), rounded, coarse.decoder())
    ]
    assert torch.equal(logits[1], logits[2])
    assert not torch.equal(logits[0], logits[2])
    assert coarse.digest == f"3bit-{whole.digest}"
    for model in (whole, coarse, coarse):
        model.memo(tmp_path).close()
    assert len(list((tmp_path / "memo").glob("*.sqlite"))) == 2
