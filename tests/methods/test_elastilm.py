"""Levels: the published ratios, what is locked, and what lies with the project."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from repro.core.errors import InputError
from repro.methods.compression.pruning.llm_pruner import LLMPruner
from repro.methods.elastilm import elastic_profile, lora
from repro.methods.elastilm.elastic_levels import anchors_of, sizes_at
from repro.methods.elastilm.elastic_profile import ElasticProfile, Parts
from repro.methods.elastilm.elastication import ElastiLM
from repro.methods.elastilm.lora import Adapter, Lora
from repro.methods.elastilm.submodels import Order, reorder
from repro.methods.elastilm.unit_importance import importance
from repro.models.analysis.layers import block_elements, losses_without
from repro.models.checkpoints.checkpoint import open_checkpoint
from repro.models.checkpoints.digest import digest
from repro.models.transformer import weights
from repro.models.transformer.config import DecoderConfig
from repro.scenarios.serving.asked import read_model
from tiny_dense import CORPUS, dense
from tiny_elastic import apart, logits, masked
from tiny_families import FAMILIES

ROOT = Path(__file__).parents[2]


LLAMA_7B = DecoderConfig(32000, 4096, 32, 32, 32, 128, 11008, 2048)


LLAMA_3 = DecoderConfig(128256, 4096, 32, 32, 8, 128, 14336, 8192)


SMOLLM2 = DecoderConfig(49152, 576, 30, 9, 3, 64, 1536, 8192)


ANCHORS = (0, 1, 4, 5, 7, 31)


# Level, units and neurons of a layer, true ratio: from the release's arguments (32 layers, 6 locked).
RELEASED = [
    (LLAMA_7B, 0.2, 4, 1100, 0.275), (LLAMA_7B, 0.3, 4, 1376, 0.289), (LLAMA_7B, 0.5, 12, 4128, 0.492),
    (LLAMA_7B, 0.9, 28, 9632, 0.898), (LLAMA_3, 0.2, 1, 1433, 0.273), (LLAMA_3, 0.4, 2, 3584, 0.391),
    (LLAMA_3, 0.8, 6, 10752, 0.797),
]  # fmt: skip


@pytest.mark.parametrize(("config", "level", "units", "neurons", "ratio"), RELEASED)
def test_the_releases_rule(
    config: DecoderConfig, level: float, units: int, neurons: int, ratio: float
) -> None:
    kept = sizes_at(config, level, ANCHORS, "release")
    assert (kept.units[2], kept.neurons[2]) == (units, neurons)
    assert (kept.units[0], kept.neurons[31]) == (config.kv_heads, config.intermediate)
    assert kept.true_ratio(config) == pytest.approx(ratio, abs=5e-4)


@pytest.mark.parametrize("config", [LLAMA_7B, LLAMA_3, SMOLLM2])
@pytest.mark.parametrize("level", [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
def test_a_level_by_the_papers_rule_has_its_share(config: DecoderConfig, level: float) -> None:
    kept = sizes_at(config, level, range(6))
    neuron = 5e-4  # of a layer's share, at most: neurons are rounded down
    assert level - neuron < kept.true_ratio(config) <= level
    assert level - neuron < sizes_at(config, level, ()).true_ratio(config) <= level


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_level_is_the_model_without_its_least_important_units(family: str) -> None:
    made = dense(family)
    order = importance(made, CORPUS).order()
    locked = anchors_of(losses_without(made, CORPUS), 0.25)
    assert len(locked) == 1
    for system, left in ((ElastiLM(anchors=0.25), locked), (LLMPruner(), ())):
        kept = sizes_at(made.config, 0.5, left)
        out = system.compress(made, CORPUS)
        assert apart(logits(out.decoder), logits(masked(made, order, kept))) < 1e-4
        ratio = block_elements(out.decoder) / block_elements(made)
        assert out.figures["true_ratio"] == pytest.approx(ratio)
        assert out.figures["locked_layers"] == " ".join(map(str, left))
        assert out.figures["lora_share"] == 0


def other_order(config: DecoderConfig) -> Order:
    """All numbers backwards."""
    both = (torch.arange(count).flip(0) for count in (config.kv_heads, config.intermediate))
    units, neurons = ((one,) * config.layers for one in both)
    return Order(units, neurons)


@pytest.fixture
def kept_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a profile of llama-2 that no corpus would give."""
    made = dense("llama-2")
    profile = ElasticProfile(other_order(made.config), (3.0, 9.0, 3.0, 3.0), 2.0)
    elastic_profile.save(profile, tmp_path / elastic_profile.PROFILE_FILE)
    note(tmp_path, monkeypatch)
    return tmp_path


def note(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(str(folder), digest(folder))
    monkeypatch.setitem(elastic_profile.COMMITTED, elastic_profile.fingerprint(dense("llama-2")), parts)


@torch.no_grad()
def test_a_committed_profile_is_taken_for_its_checkpoint_alone(kept_parts: Path) -> None:
    made = dense("llama-2")
    out = ElastiLM(anchors=0.25).compress(made, ())
    assert (out.figures["profile"], out.figures["locked_layers"]) == ("committed", "1")
    wanted = masked(made, other_order(made.config), sizes_at(made.config, 0.5, (1,)))
    assert apart(logits(out.decoder), logits(wanted)) < 1e-4
    for system in (ElastiLM(order="corpus"), ElastiLM(aggregate="abs_sum")):
        assert system.compress(made, CORPUS).figures["profile"] == "corpus"
    assert ElastiLM().compress(dense("llama-1"), CORPUS).figures["profile"] == "corpus"


def test_parts_that_changed_are_refused(kept_parts: Path) -> None:
    (kept_parts / "more").write_text("x", encoding="utf-8")
    with pytest.raises(InputError, match="has digest"):
        ElastiLM().compress(dense("llama-2"), CORPUS)


@torch.no_grad()
def test_committed_adapters_are_attached_to_their_level_alone(
    kept_parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = dense("llama-2")
    for system, locked in (("elastilm", (1,)), ("llm_pruner", ())):
        kept = sizes_at(made.config, 0.5, locked)
        found = {
            site: Adapter(torch.full((2, into), 0.1), torch.full((of, 2), 0.1))
            for site, (into, of) in lora.shapes(made.config, kept).items()
        }
        made_here = Lora(found, kept, other_order(made.config).digest)
        lora.save(made_here, kept_parts / elastic_profile.lora_file(system, 0.5))
    note(kept_parts, monkeypatch)
    for recovered in (ElastiLM(anchors=0.25), LLMPruner()):
        out = recovered.compress(made, ())
        bare = replace(recovered, lora=False).compress(made, ())
        assert out.figures["lora_share"] > bare.figures["lora_share"] == 0
        assert apart(logits(out.decoder), logits(bare.decoder)) > 1e-2
        assert replace(recovered, level=0.6).compress(made, ()).figures["lora_share"] == 0
    assert ElastiLM(anchors=0.5).compress(made, ()).figures["lora_share"] == 0, "another sub-model"


@pytest.mark.parametrize("parts", elastic_profile.COMMITTED.values())
def test_what_is_noted_lies_with_the_project(parts: Parts) -> None:
    folder = ROOT / parts.folder
    assert digest(folder) == parts.digest
    found = elastic_profile.load(folder / elastic_profile.PROFILE_FILE)
    said = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert found.order.digest == said["order"]
    assert list(anchors_of(found.losses, 0.2)) == said["anchors"]
    assert elastic_profile.COMMITTED[said["fingerprint"]] == parts


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2_135m", "qwen2_5_coder_0_5b"])
@torch.no_grad()
def test_the_committed_order_of_a_checkpoint_leaves_it_what_it_is(name: str) -> None:
    checkpoint = read_model(name).checkpoint
    assert checkpoint is not None
    made = weights.load(open_checkpoint(checkpoint), "float32", is_packed=False)
    folder = elastic_profile.committed_folder(made)
    assert folder is not None
    order = elastic_profile.load(folder / elastic_profile.PROFILE_FILE).order
    assert any(not torch.equal(one, one.sort().values) for one in order.neurons)
    before, after = map(logits, (made, reorder(made, order)))
    assert apart(before, after) < 1e-3 * float(before.abs().max())
