"""Our logits against those of `transformers`, for every family; and what a wrong checkpoint says."""

import json
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file, save_file

from repro.core.errors import InputError
from repro.models.transformer import attention, families, weights
from repro.models.transformer.attention import CAUSAL_ROWS
from repro.models.transformer.cache import KVCache
from tiny_families import FAMILIES, VOCAB, write

# fp32 keeps 6e-8 of a value. Logits reach about 15 here, after some 40 sums of up to 100 terms in another
# order than `transformers`' own: a few times 1e-5 is rounding, and a misplaced part moves logits by 1e-2.
TOLERANCE = 1e-4
PROMPT = CAUSAL_ROWS + 48


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Write each family's checkpoint once: name -> (folder, tokens, logits of `transformers`)."""
    made = {}

    def get(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            model = write(name, folder)
            tokens = torch.randint(VOCAB, (PROMPT,), generator=torch.Generator().manual_seed(1))
            with torch.no_grad():
                made[name] = folder, tokens, model(tokens[None]).logits[0]
        return made[name]

    return get


def run(decoder, tokens, cache, start=0, mask=None, positions=None):
    positions = torch.arange(start, start + len(tokens)) if positions is None else positions
    return decoder.forward(tokens, positions, mask, cache)


def test_every_supported_model_type_has_a_tiny_model():
    assert len(FAMILIES) >= 16
    kinds = {make().model_type for make in FAMILIES.values()}
    # The multimodal Gemma 3 differs from the text one in names only; it has a test of its own below.
    assert kinds | {"gemma3"} == set(families.FAMILIES)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_whole_prompt_and_tiled_chunks_over_a_cache_give_the_same_logits(tiny, name, monkeypatch):
    folder, tokens, expected = tiny(name)
    assert expected.abs().max() > 1.0  # else the tolerance would say nothing
    decoder = weights.load(folder)
    whole = run(decoder, tokens, KVCache(decoder.config, PROMPT))
    assert whole.dtype == torch.float32
    torch.testing.assert_close(whole, expected, atol=TOLERANCE, rtol=0)
    monkeypatch.setattr(attention, "TILED_ROWS", 16)
    cache = KVCache(decoder.config, 4)
    logits = [run(decoder, tokens[a:b], cache, a) for a, b in pairwise([0, 30, 60, PROMPT])]
    torch.testing.assert_close(torch.cat(logits), expected, atol=TOLERANCE, rtol=0)


def rewrite(folder, target, rename=lambda name: name, drop=(), change=None, **config):
    """A copy of a checkpoint with other tensor names, fewer tensors or another configuration."""
    target.mkdir(exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    kept = {rename(name): tensor for name, tensor in tensors.items() if name not in drop}
    save_file(kept | (change or {}), target / "model.safetensors")
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (target / "config.json").write_text(json.dumps(raw | config), encoding="utf-8")
    return target


@pytest.mark.parametrize(("name", "prefix"), [("gpt-2", "transformer."), ("opt", "model."), ("llama-2", "")])
def test_checkpoints_may_leave_the_outer_prefix_out(tiny, tmp_path, name, prefix):
    folder, tokens, expected = tiny(name)
    bare = rewrite(folder, tmp_path / name, lambda tensor: tensor.removeprefix(prefix))
    decoder = weights.load(bare)
    torch.testing.assert_close(run(decoder, tokens, KVCache(decoder.config, 8)), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_the_text_half_of_a_multimodal_gemma(tiny, tmp_path, prefix):
    folder, tokens, expected = tiny("gemma-3")
    target = rewrite(folder, tmp_path / "both", lambda name: prefix + name.removeprefix("model."))
    text = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (target / "config.json").write_text(
        json.dumps({"model_type": "gemma3", "text_config": text}), encoding="utf-8"
    )
    decoder = weights.load(target)
    torch.testing.assert_close(run(decoder, tokens, KVCache(decoder.config, 8)), expected, atol=1e-4, rtol=0)


def test_a_draft_borrows_its_targets_embeddings(tiny, tmp_path):
    folder, tokens, expected = tiny("llama-2")
    target = weights.load(folder)
    ends = ["model.embed_tokens.weight", "lm_head.weight"]
    draft_folder = rewrite(folder, tmp_path / "draft", drop=ends, shares_embeddings=True)
    draft = weights.load(draft_folder, embeddings_from=target)
    assert draft.ends.embedding is target.ends.embedding
    assert draft.ends.head is target.ends.head
    torch.testing.assert_close(run(draft, tokens, KVCache(draft.config, 8)), expected, atol=1e-4, rtol=0)
    with pytest.raises(InputError, match="embeddings_from"):
        weights.load(draft_folder)
    with pytest.raises(InputError, match="needs rotary positions and embeddings of 131 x 64"):
        weights.load(draft_folder, embeddings_from=weights.load(tiny("opt-350m")[0]))


def test_the_digest_follows_names_and_contents(tiny, tmp_path):
    folder, *_ = tiny("llama-2")
    copy = rewrite(folder, tmp_path / "one")
    first = weights.digest(copy)
    assert len(first) == 64
    assert weights.digest(copy) == first  # now from the hashes kept beside the files
    assert weights.digest(rewrite(folder, tmp_path / "two")) == first
    (copy / "config.json").write_text("{}", encoding="utf-8")
    changed = weights.digest(copy)
    assert changed != first
    (copy / "config.json").rename(copy / "other.json")
    assert weights.digest(copy) not in (first, changed)
