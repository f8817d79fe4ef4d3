"""T5, mT5 and BART: the rows are those of `transformers` run on one sequence at a time."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
import transformers as hf
from torch import Tensor

from repro.core.errors import InputError
from repro.models import encdec
from repro.models.encdec import EncoderDecoder, EncoderDecoderNetwork
from repro.models.network import Row
from repro.models.prefix import Prefix
from repro.models.stored import read_config
from tiny_encdec import ENDS, FAMILIES, VOCAB, write

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


def rows(
    network: EncoderDecoderNetwork, wanted: list[Prefix], branches: list[Prefix] | None = None
) -> list[Row]:
    step = network.begin(wanted, branches or ())
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
        assert text.tokens(after=SOURCE) == greedy(model, source(seed), 12)
        said |= set(text.tokens(after=SOURCE))
    assert len(said) > 8, "a text that stands still would agree with any fault in the cache"


@pytest.mark.parametrize("family", FAMILIES)
def test_branches_in_a_batch_equal_branches_alone(family: str) -> None:
    model, weights = made(family)
    network, chance = EncoderDecoderNetwork(weights), random.Random(family)
    batches = set()
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
            batches.add(len(encdec._ends(wanted)))
            if chance.random() < 0.4:
                network.keep(chance.choice(nodes))
    assert {1, 2, 3} <= batches


def test_branches_that_are_named_are_run() -> None:
    model, weights = made("t5")
    network = EncoderDecoderNetwork(weights)
    root = Prefix.of(source(0)).then(4)
    long, short = root.extend([5, 6, 7]), root.then(8)
    network.start(Prefix.of(source(0)))
    wanted = [root, short, long]
    for text, row in zip(wanted, rows(network, wanted, [short, long]), strict=True):
        torch.testing.assert_close(row.logits, alone(model, text), atol=TOLERANCE, rtol=0)


def test_it_must_be_told_its_prompt_and_says_nothing_of_the_prompts_own_tokens() -> None:
    network = EncoderDecoderNetwork(made("t5")[1])
    with pytest.raises(RuntimeError, match="told its prompt first"):
        network.begin([Prefix.of([1, 2])])
    network.start(Prefix.of([1, 2]))
    with pytest.raises(RuntimeError, match="asked for nothing shorter"):
        network.begin([Prefix.of([1])])


def test_only_what_can_be_read_is_read(tmp_path: Path) -> None:
    assert encdec.config_of({"model_type": "llama"}) is None
    with pytest.raises(InputError, match=r"model_type in config\.json 'pegasus'"):
        encdec.config_of({"model_type": "pegasus", "is_encoder_decoder": True})
    with pytest.raises(InputError, match=r"config\.json of bart lacks 'decoder_attention_heads'"):
        encdec.config_of({"model_type": "bart", "is_encoder_decoder": True})
    write("bart", tmp_path)
    config = encdec.config_of(read_config(tmp_path))
    assert config is not None
    with pytest.raises(InputError, match="dtype of an encoder-decoder 'q4_0'"):
        encdec.load(tmp_path, config, "q4_0")
