"""T5, mT5 and BART: the rows are those of `transformers` run on one sequence at a time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
import transformers as hf
import yaml
from torch import Tensor

from repro.core.errors import InputError
from repro.core.overrides import override
from repro.core.paths import conf_dir
from repro.core.registry import registered
from repro.device.emulated import EmulatedDevice
from repro.methods.base import Generation, Method, Request
from repro.methods.edgellm.edgellm import EdgeLLM
from repro.methods.speculative.corrected import Corrected
from repro.methods.speculative.medusa import Medusa
from repro.models.checkpoints.weight_files import read_config
from repro.models.costs.model_cost import Shape
from repro.models.forward import encdec
from repro.models.forward.encdec import EncoderDecoder, EncoderDecoderNetwork
from repro.models.forward.logit_cache import LogitCache
from repro.models.forward.network import Logits, Network
from repro.models.runtime.model import Model, ModelConfig
from repro.models.tokens.prefix import Prefix
from repro.scenarios.generation.scenario import GenerationScenario
from tiny import toy
from tiny_checkpoints import NOWHERE
from tiny_encdec import ENDS, FAMILIES, VOCAB, write
from tiny_project import Project, write_project

SOURCE = 9
# Rounding moves logits, whose spread is 0.3 to 9, by up to 4e-5; a row that sees a sibling by 1e-1.
TOLERANCE = 2e-4


@cache
def made(family: str) -> tuple[hf.PreTrainedModel, EncoderDecoder]:
    """A tiny model as `transformers` has it, and as we read it back from its folder."""
    with TemporaryDirectory() as folder:
        model = write(family, Path(folder))
        config = encdec.config_of(read_config(folder))
        assert config is not None
        return model, encdec.load(Path(folder), config, "float32")


def source(seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(VOCAB) for _ in range(SOURCE)]


def greedy(model: hf.PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    """What `generate` says; its own cache would expect as many layers of the encoder as of the decoder."""
    tokens = torch.tensor([prompt])
    out = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        do_sample=False,
        num_beams=1,
        use_cache=False,
        max_new_tokens=count,
        eos_token_id=None,
    )
    return out[0, 1:].tolist()


def alone(model: hf.PreTrainedModel, text: Prefix) -> Tensor:
    """Logits `[vocab]` after a sequence that is run on its own."""
    tokens = text.tokens()
    answer = torch.tensor([[ENDS["decoder_start_token_id"], *tokens[SOURCE:]]])
    with torch.inference_mode():
        logits: Tensor = model(input_ids=torch.tensor([tokens[:SOURCE]]), decoder_input_ids=answer).logits
    return logits[0, -1]


def rows(network: Network, wanted: list[Prefix], branches: Sequence[Prefix] = ()) -> list[Logits]:
    step = network.begin(wanted, branches)
    step.layers(0, network.depth)
    return step.rows()


@pytest.mark.parametrize("family", FAMILIES)
def test_token_by_token_it_says_what_generate_says(family: str) -> None:
    model, weights = made(family)
    network = EncoderDecoderNetwork(weights)
    said = set()
    for seed in range(4):
        text = Prefix.of(source(seed))
        network.start(text)
        for _ in range(12):
            (row,) = rows(network, [text])
            text = text.then(row.choice)
            network.keep(text)
        assert text.tokens(start=SOURCE) == greedy(model, source(seed), 12)
        said |= set(text.tokens(start=SOURCE))
    assert len(said) > 8, "a text that stands still would agree with any fault in the cache"


@pytest.mark.parametrize("family", FAMILIES)
def test_branches_in_a_batch_equal_branches_alone(family: str) -> None:
    model, weights = made(family)
    network, chance = EncoderDecoderNetwork(weights), random.Random(family)
    for seed in range(3):
        prompt = Prefix.of(source(seed))
        network.start(prompt)
        nodes = [prompt]
        for _ in range(20):
            nodes.append(chance.choice(nodes[-8:]).then(chance.randrange(VOCAB)))
        for _ in range(8):
            wanted = chance.sample(nodes, chance.randint(1, 7))
            for text, row in zip(wanted, rows(network, wanted), strict=True):
                torch.testing.assert_close(row.logits, alone(model, text), atol=TOLERANCE, rtol=0)
            if chance.random() < 0.4:
                network.keep(chance.choice(nodes))


def test_only_what_can_be_read_is_read() -> None:
    assert encdec.config_of({"model_type": "llama"}) is None
    with pytest.raises(InputError, match=r"model_type in config\.json 'pegasus'"):
        encdec.config_of({"model_type": "pegasus", "is_encoder_decoder": True})
    with pytest.raises(InputError, match=r"config\.json of bart lacks 'decoder_attention_heads'"):
        encdec.config_of({"model_type": "bart", "is_encoder_decoder": True})


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Model]]:
    """Target and draft of each family, opened from their folders."""
    root, found = tmp_path_factory.mktemp("pairs"), {}
    for family in FAMILIES:
        found[family] = {}
        for seed, role in enumerate(("target", "draft")):
            write(family, root / family / role, seed)
            place = replace(NOWHERE, name=role, folder=str(root / family / role))
            found[family][role] = Model(ModelConfig(role, place, None, None, "float32"))
    return found


def answered(
    method: Method, models: dict[str, Model], seed: int, memos: dict[str, LogitCache] | None = None
) -> Generation:
    """A method's answer on an emulated device, each of its roles but the target a draft."""
    device, asked = EmulatedDevice(toy()), Request(f"{seed}", tuple(source(seed)), 12)
    sessions = {}
    for role, place in method.places().items():
        kind = role if role == "target" else "draft"
        model = models[kind]
        network = model.network(memos[kind] if memos else None)
        sessions[role] = model.session(role, device, place, network, 64)
        sessions[role].start(Prefix.of(asked.prompt))
    return device.play(method.serve(asked, device, sessions))


SETTINGS = {"lever": {"pruning": "off"}}
"""Of methods that judge a decoder's hidden rows, which an encoder-decoder's layers do not show."""
LOSSLESS = [
    name
    for name, method in registered("method").items()
    if method.lossless and not issubclass(method, Medusa)  # whose heads read a decoder's rows
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", LOSSLESS)
def test_every_lossless_method_says_what_generate_says(
    name: str, family: str, pairs: dict[str, dict[str, Model]]
) -> None:
    method = registered("method")[name](**SETTINGS.get(name, {}))
    for seed in range(2):
        assert answered(method, pairs[family], seed).tokens == generated(family, seed)


@cache
def generated(family: str, seed: int) -> list[int]:
    """What `generate` says, once for all methods."""
    return greedy(made(family)[0], source(seed), 12)


@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_are_partly_right(family: str, pairs: dict[str, dict[str, Model]]) -> None:
    """Else the texts above would not depend on what becomes of a branch."""
    rounds = [r for seed in range(4) for r in answered(Corrected(), pairs[family], seed).rounds]
    assert 0.1 < sum(r.accepted for r in rounds) / len(rounds) < 0.9


def test_a_memo_changes_no_token_and_tells_prompt_from_answer(
    pairs: dict[str, dict[str, Model]], tmp_path: Path
) -> None:
    models = pairs["t5"]
    memos = {role: models[role].memo(tmp_path) for role in models}
    for _ in ("cold", "warm"):
        assert answered(EdgeLLM(), models, 0, memos).tokens == greedy(made("t5")[0], source(0), 12)
    network, text = models["target"].network(memos["target"]), Prefix.of(source(0))
    ranked = []
    for length in (8, 9):
        network.start(text.up_to(length))
        ranked.append(rows(network, [text])[0].top_ranks())
    assert ranked[0] != ranked[1]
    for memo in memos.values():
        memo.close()


def test_a_models_own_shape_is_the_shape_files() -> None:
    """What real checkpoints say of themselves equals what is billed, so that they count as real."""
    published = {
        "t5_small": hf.T5Config(decoder_start_token_id=0).to_dict(),
        "mt5_small": hf.MT5Config().to_dict() | {"tie_word_embeddings": False},
        "bart_large": hf.BartConfig().to_dict(),
    }
    for name, raw in published.items():
        config = encdec.config_of(raw)
        assert config is not None
        billed = (conf_dir() / "model" / "shape" / f"{name}.yaml").read_text(encoding="utf-8")
        assert config.shape == Shape.parse(yaml.safe_load(billed))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("project")
    whole = write_project(root)
    for seed, role in enumerate(("target", "draft")):
        write("bart", root / "bart" / role, seed)
    folders = [override(f"{role}.checkpoint.folder", f"{root}/bart/{role}") for role in ("target", "draft")]
    return whole.apart(root, *folders)


@pytest.mark.usefixtures("cache_of_project")
def test_a_cell_of_an_encoder_decoder_is_real_and_exact(project: Project) -> None:
    record = project.record("method=edgellm", "device=jetson_tx2")
    assert record.status == "done"
    assert record.provenance.weights == "real"
    assert record.values["exact_match"] == 1.0


@pytest.mark.usefixtures("cache_of_project")
def test_on_this_machine_it_is_resident_or_refused(project: Project) -> None:
    local = ("device=local_cpu", "device.pace=null", "prompts=1", "repeats=1", "cooldown=0")
    assert project.record("method=std", *local).values["exact_match"] == 1.0
    with pytest.raises(InputError, match="would have to stream"):
        GenerationScenario(project.config("method=flash_ar", *local)).check()


@pytest.mark.usefixtures("cache_of_project")
def test_prompt_and_answer_each_have_the_positions_that_there_are(project: Project) -> None:
    GenerationScenario(project.config("max_tokens=160")).check()
    with pytest.raises(InputError, match="161 tokens of prompt and answer do not fit"):
        GenerationScenario(project.config("max_tokens=161")).check()
