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
from tiny_families import FAMILIES, VOCAB, WINDOW, write

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
def test_a_whole_prompt_gives_the_same_logits(tiny, name):
    folder, tokens, expected = tiny(name)
    decoder = weights.load(folder)
    logits = run(decoder, tokens, KVCache(decoder.config, PROMPT))
    assert logits.dtype == torch.float32
    assert expected.abs().max() > 1.0  # else the tolerance would say nothing
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_chunks_and_single_tokens_over_a_cache_give_the_same_logits(tiny, name):
    folder, tokens, expected = tiny(name)
    decoder = weights.load(folder, packed=False)
    cache = KVCache(decoder.config, 4)
    cuts = [0, 12, *range(13, 33), PROMPT - 3, PROMPT]
    logits = [run(decoder, tokens[a:b], cache, a) for a, b in pairwise(cuts)]
    assert cache.length == PROMPT
    assert cache.positions.tolist() == list(range(PROMPT))
    torch.testing.assert_close(torch.cat(logits), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_tiled_chunks_over_a_cache_give_the_same_logits(tiny, name, monkeypatch):
    monkeypatch.setattr(attention, "TILED_ROWS", 16)
    folder, tokens, expected = tiny(name)
    decoder = weights.load(folder)
    cache = KVCache(decoder.config, 4)
    logits = [run(decoder, tokens[a:b], cache, a) for a, b in pairwise([0, 30, 60, PROMPT])]
    torch.testing.assert_close(torch.cat(logits), expected, atol=TOLERANCE, rtol=0)


def random_tree(rows, generator):
    """Parents of a random tree, -1 for the root."""
    return [-1] + [int(torch.randint(row, (1,), generator=generator)) for row in range(1, rows)]


def branch(parents, node):
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def tree_mask(parents, cached):
    mask = torch.zeros(len(parents), cached + len(parents), dtype=torch.bool)
    mask[:, :cached] = True
    for node in range(len(parents)):
        mask[node, [cached + above for above in branch(parents, node)]] = True
    return mask


def tree_errors(decoder, parents, tokens, prompt, mask):
    """For each node, how far its logits in the tree are from those of its branch run alone."""
    base = KVCache(decoder.config, 64)
    run(decoder, prompt, base)
    depths = torch.tensor([len(branch(parents, node)) - 1 for node in range(len(parents))])
    together = run(decoder, tokens, base, mask=mask, positions=len(prompt) + depths)
    errors = []
    for node in range(len(parents)):
        base.truncate(len(prompt))
        alone = run(decoder, tokens[branch(parents, node)], base, len(prompt))[-1]
        errors.append(float((together[node] - alone).abs().max()))
    return errors


@pytest.mark.parametrize("name", FAMILIES)
def test_tree_rows_equal_each_branch_run_alone(tiny, name):
    folder, tokens, _ = tiny(name)
    decoder = weights.load(folder)
    # A chain below a bushy top, deeper than the window, so that windowed layers forget the prompt on the way.
    parents = random_tree(14, torch.Generator().manual_seed(2)) + list(range(13, 13 + WINDOW))
    mask = tree_mask(parents, 9)
    rows = tokens[20 : 20 + len(parents)]
    assert max(tree_errors(decoder, parents, rows, tokens[:9], mask)) < TOLERANCE


def test_a_wrong_tree_mask_is_noticed(tiny):
    folder, tokens, _ = tiny("llama-2")
    decoder = weights.load(folder)
    parents = [-1, 0, 0, 1]
    mask = tree_mask(parents, 9)
    mask[3, 9 + 2] = True  # an aunt
    errors = tree_errors(decoder, parents, tokens[20:24], tokens[:9], mask)
    assert max(errors[:3]) < TOLERANCE
    assert errors[3] > 10 * TOLERANCE


@pytest.mark.parametrize("name", FAMILIES)
def test_an_accepted_path_goes_on_as_if_it_had_been_the_only_one(tiny, name):
    folder, tokens, expected = tiny(name)
    decoder = weights.load(folder)
    cache = KVCache(decoder.config, 64)
    run(decoder, tokens[:9], cache)
    # Nodes 1, 3, 4 continue the prompt truly; 2, 5, 6 are wrong guesses between them.
    parents, right = [-1, 0, 0, 1, 3, 3, 2], {0: 0, 1: 1, 3: 2, 4: 3}
    drafted = torch.tensor([int(tokens[9 + right[node]]) if node in right else 5 for node in range(7)])
    positions = torch.tensor([len(branch(parents, node)) + 8 for node in range(7)])
    run(decoder, drafted, cache, mask=tree_mask(parents, 9), positions=positions)
    cache.keep(9, [9 + node for node in right])
    assert cache.positions.tolist() == list(range(13))
    logits = run(decoder, tokens[13:16], cache, 13)
    torch.testing.assert_close(logits, expected[13:16], atol=TOLERANCE, rtol=0)
    cache.truncate(11)
    logits = run(decoder, tokens[11:13], cache, 11)
    torch.testing.assert_close(logits, expected[11:13], atol=TOLERANCE, rtol=0)


def test_a_mask_of_another_shape_is_refused(tiny):
    decoder = weights.load(tiny("llama-2")[0])
    wrong = torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(InputError, match=r"bool \[2, 2\] for 2 rows over 0 cached"):
        run(decoder, torch.tensor([1, 2]), KVCache(decoder.config, 4), mask=wrong)


@pytest.mark.parametrize("name", ["qwen-3", "gemma-3"])
def test_rows_may_be_dropped_between_layers(tiny, name):
    folder, tokens, expected = tiny(name)
    decoder = weights.load(folder)
    cache, positions = KVCache(decoder.config, 64), torch.arange(12)
    x = decoder.embed(tokens[:12], positions)
    for i in range(decoder.config.layers):
        if i == decoder.config.layers - 1:
            x, positions = x[-1:], positions[-1:]
        x = decoder.layer(i, x, positions, None, cache)
    assert [cache.length_of(i) for i in range(4)] == [12, 12, 12, 1]
    assert cache.positions_of(3).tolist() == [11]
    assert x.shape == (1, 64)
    # The last layer now sees itself alone, so logits must differ from the full pass.
    assert (decoder.head(x)[0] - expected[11]).abs().max() > 10 * TOLERANCE


@pytest.mark.parametrize("name", ["llama-3.1", "vicuna", "gemma-3", "phi-2", "qwen-2.5"])
def test_configs_of_older_releases_mean_the_same(tiny, name):
    folder, *_ = tiny(name)
    raw = weights.read_config(folder)
    old = {key: value for key, value in raw.items() if key not in ("rope_parameters", "layer_types")}
    parameters = raw["rope_parameters"]
    if name == "gemma-3":
        old["sliding_window_pattern"] = 2
        old["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
        parameters = parameters["full_attention"]
    old["rope_theta"] = parameters["rope_theta"]
    if "partial_rotary_factor" in parameters:
        old["partial_rotary_factor"] = parameters["partial_rotary_factor"]
    if parameters["rope_type"] != "default":
        kept = ("rope_theta", "partial_rotary_factor", "rope_type")
        old["rope_scaling"] = {key: parameters[key] for key in parameters if key not in kept}
        old["rope_scaling"]["rope_type" if name == "gemma-3" else "type"] = parameters["rope_type"]
    assert families.config_of(old) == families.config_of(raw)


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


def test_an_unknown_model_type_lists_the_supported_ones(tiny, tmp_path):
    folder, *_ = tiny("llama-2")
    target = rewrite(folder, tmp_path / "other", model_type="mamba")
    with pytest.raises(InputError, match=r"'mamba'.*gemma, gemma2.*qwen3"):
        weights.load(target)


def test_a_switch_that_is_not_supported_is_named(tiny, tmp_path):
    folder, *_ = tiny("phi-2")
    with pytest.raises(InputError, match="qk_layernorm=True"):
        weights.load(rewrite(folder, tmp_path / "phi", qk_layernorm=True))
    with pytest.raises(InputError, match=r"'yarn'.*default, linear, llama3"):
        weights.load(rewrite(folder, tmp_path / "yarn", rope_parameters={"rope_type": "yarn", "factor": 2.0}))
    with pytest.raises(InputError, match=r"'mish'.*relu, silu"):
        weights.load(rewrite(folder, tmp_path / "mish", hidden_act="mish"))


def test_a_missing_tensor_is_named_with_its_file(tiny, tmp_path):
    folder, *_ = tiny("llama-2")
    name = "model.layers.2.mlp.up_proj.weight"
    target = rewrite(folder, tmp_path / "short", drop=[name])
    with pytest.raises(InputError, match=rf"{name} is missing .*short.model.safetensors"):
        weights.load(target)


def test_a_tensor_of_the_wrong_shape_is_named_with_its_file(tiny, tmp_path):
    folder, *_ = tiny("llama-2")
    name = "model.layers.1.self_attn.k_proj.weight"
    target = rewrite(folder, tmp_path / "bent", change={name: torch.zeros(16, 64)})
    with pytest.raises(InputError, match=rf"{name} in .*bent.*\[16, 64\], expected \[32, 64\]"):
        weights.load(target)


def test_folders_that_hold_no_checkpoint_say_so(tmp_path):
    with pytest.raises(InputError, match=r"no config\.json"):
        weights.load(tmp_path)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="not valid JSON"):
        weights.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}), encoding="utf-8")
    with pytest.raises(InputError, match="llama lacks vocab_size; it must be a whole number"):
        weights.load(tmp_path)


def test_a_cut_off_file_says_so(tiny, tmp_path):
    folder, *_ = tiny("llama-2")
    target = rewrite(folder, tmp_path / "cut")
    file = target / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InputError, match="is corrupt"):
        weights.load(target)


def test_an_unknown_dtype_lists_the_choices(tiny):
    with pytest.raises(InputError, match=r"'float16'.*bfloat16, int4"):
        weights.load(tiny("llama-2")[0], "float16")


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
