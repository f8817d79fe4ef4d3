"""EAGLE-3 heads: the public format, their rows against a plain reference, losslessness, what they cost."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.device.emulated import Device, EmulatedDevice
from repro.methods.base import Generation, Method, Request
from repro.methods.edgellm.edgellm import EdgeLLM
from repro.methods.lever.lever import Lever
from repro.methods.speculative.chain_sd import ChainSD
from repro.methods.speculative.corrected import Corrected
from repro.methods.speculative.drafting import eagle_head
from repro.methods.speculative.drafting.calibrated_draft import MatchedNetwork
from repro.methods.speculative.drafting.eagle import EagleNetwork
from repro.methods.speculative.drafting.eagle_head import EagleConfig, EagleHead
from repro.methods.speculative.specinfer import SpecInfer
from repro.models.costs.model_cost import ModelCost, Shape, precision
from repro.models.forward.cached_features import CachedFeatures
from repro.models.forward.features import Captured, Features
from repro.models.forward.logit_cache import LogitCache, MemoNetwork
from repro.models.forward.network import DecoderNetwork, Logits, Network, NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.sampling import Sampling
from repro.models.transformer.decoder import Decoder
from tiny import DEVICES, SHAPE, answer, decoder, model_cost_of, plain, toy
from tiny_eagle import DRAFT_VOCAB, raw_config, said, tensors_of, write_head

FAMILY = "llama-2"
TOLERANCE = 1e-4
PROMPT = (3, 17, 92, 5, 40, 8)


def target() -> Decoder:
    return decoder(FAMILY)


@cache
def tensors(seed: int = 0) -> dict[str, Tensor]:
    return tensors_of(raw_config(target()), seed)


def config(**changes: Any) -> EagleConfig:
    found = eagle_head.config_of(raw_config(target(), **changes))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> EagleHead:
    folder = write_head(tmp_path_factory.mktemp("head"), raw_config(target()), tensors())
    return eagle_head.load(folder, config(), "float32", target().ends.embedding)


def remembered(memo: LogitCache | None = None) -> CachedFeatures:
    return CachedFeatures(config().depths(target().config.layers), target, memo)


def network(head: EagleHead, features: Features | None = None) -> EagleNetwork:
    return EagleNetwork(head.config, lambda: head, features or remembered(), capacity=4)


def rows(made: Network, wanted: list[Prefix]) -> list[Logits]:
    step = made.begin(wanted)
    step.layers(0, made.depth)
    return step.rows()


def require_rows(made: Network, wanted: list[Prefix], boundary: int) -> None:
    for prefix, row in zip(wanted, rows(made, wanted), strict=True):
        truth = said(raw_config(target()), tensors(), target(), prefix.tokens(), boundary)
        torch.testing.assert_close(row.logits, truth, atol=TOLERANCE, rtol=TOLERANCE)
        assert row.choice == int(truth.argmax())


def test_prompt_chain_tree_and_what_keep_makes_of_them(head: EagleHead) -> None:
    made, prompt = network(head), Prefix.of(PROMPT)
    made.start(prompt)
    root = prompt.then(11)
    require_rows(made, [root], 6)
    chain = [root.then(1), root.extend((1, 2)), root.extend((1, 2, 3))]
    for prefix in chain:
        require_rows(made, [prefix], 6)
    level = [root.then(4), root.then(5)]
    require_rows(made, level, 6)
    require_rows(made, [level[1].then(6), level[0].then(7), chain[0].then(9)], 6)
    text = chain[1].then(8)
    made.keep(text)
    require_rows(made, [text], text.length - 1)
    require_rows(made, [text.then(1), text.then(2)], text.length - 1)
    made.keep(text.then(3))
    require_rows(made, [text.extend((3, 4)), text.extend((3, 5))], text.length)
    made.keep(text.extend((3, 4)))
    require_rows(made, [text.extend((3, 4))], text.length + 1)
    made.start(prompt)
    require_rows(made, [prompt.extend((2, 3, 4))], 6)


def test_many_levels_in_one_pass(head: EagleHead) -> None:
    made, prompt = network(head), Prefix.of(PROMPT)
    made.start(prompt)
    require_rows(made, [prompt.extend((1, 2, 3)), prompt.extend((1, 2, 4)), prompt.extend((1, 5))], 6)


@pytest.mark.parametrize("seed", range(8))
def test_a_random_walk(head: EagleHead, seed: int) -> None:
    """Trees grow anywhere below the text, and texts are kept anywhere in them."""
    rng, made = random.Random(seed), network(head)
    text = Prefix.of(rng.randrange(131) for _ in range(rng.randint(1, 6)))
    made.start(text)
    boundary, text = text.length, text.then(rng.randrange(131))
    nodes = [text]
    for _ in range(12):
        grown = {
            rng.choice(nodes).extend(rng.randrange(3) for _ in range(rng.randint(0, 2))) for _ in range(3)
        }
        lineage = made.lineage
        new = [prefix for prefix in grown if prefix not in lineage]
        if new:
            require_rows(made, new, boundary)
        nodes += new
        if rng.random() < 0.4:
            text = rng.choice([n for n in nodes if n.length >= text.length]).then(rng.randrange(3))
            made.keep(text)
            boundary, nodes = text.length - 1, [text]


def test_a_memo_changes_no_row(head: EagleHead, tmp_path: Path) -> None:
    memo = LogitCache(tmp_path / "memo.sqlite")
    prompt = Prefix.of(PROMPT)
    root = prompt.then(11)

    def walk(made: Network) -> list[tuple[list[int], list[float]]]:
        made.start(prompt)
        out = (
            rows(made, [root]) + rows(made, [root.then(1)]) + rows(made, [root.extend((1, 2)), root.then(3)])
        )
        made.keep(root.extend((1, 2)))
        out += rows(made, [root.extend((1, 2))]) + rows(made, [root.extend((1, 2, 3))])
        return [row.top_ranks() for row in out]

    truth = walk(network(head))
    assert walk(MemoNetwork(network(head, remembered(memo)), memo)) == walk(network(head))
    forgotten = MemoNetwork(EagleNetwork(head.config, never, remembered()), memo)
    for (tokens, logps), (known, close) in zip(truth, walk(forgotten), strict=True):
        assert tokens == known
        assert logps == pytest.approx(close, abs=1e-6)


def never() -> EagleHead:
    raise AssertionError("a memo that knows all needs no weights")


def test_a_memo_that_knows_a_part(head: EagleHead, tmp_path: Path) -> None:
    """What was looked up is caught up with when something else is asked for."""
    memo = LogitCache(tmp_path / "memo.sqlite")
    prompt = Prefix.of(PROMPT)
    first = MemoNetwork(network(head, remembered(memo)), memo)
    first.start(prompt)
    rows(first, [prompt.then(1)])
    rows(first, [prompt.extend((1, 2))])
    second, alone = MemoNetwork(network(head, remembered(memo)), memo), network(head)
    second.start(prompt)
    alone.start(prompt)
    for prefix in (prompt.then(1), prompt.extend((1, 2)), prompt.extend((1, 2, 3))):
        (known,), (truth,) = rows(second, [prefix]), rows(alone, [prefix])
        assert known.top_ranks()[0] == truth.top_ranks()[0]
        assert known.top_ranks()[1] == pytest.approx(truth.top_ranks()[1], abs=1e-5)


# --- as a draft ---------------------------------------------------------------------------------------------

METHODS = [
    ChainSD(length=3),
    SpecInfer(expansion=(2, 1, 2)),
    EdgeLLM(limit=4, ahead=3, fallback=False, length=3),
    EdgeLLM(limit=4, ahead=3, provisional="naive", choices=3),
    EdgeLLM(limit=4, provisional="never"),
    Corrected(),
    Lever(pruning="off", depth=3, candidates=4),
    Lever(pruning="off", depth=3, candidates=4, reach=0.0, schedule="serial_cpu"),
]


def model_costs() -> dict[str, ModelCost]:
    return {"target": model_cost_of(target()), "draft": ModelCost(config().shape, precision("fp32"))}


def served(method: Method, device: Device, draft: Network, main: Network | None = None) -> Generation:
    request = Request("", PROMPT, 12)
    networks = {"target": main or DecoderNetwork(target()), "draft": draft}
    return answer(method, request, device, networks, model_costs())


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("probability", [0.0, 0.6, 1.0])
def test_lossless(head: EagleHead, method: Method, probability: float) -> None:
    """A random head accepts nothing by itself; where the target's choice is put first, paths are accepted."""
    draft = MatchedNetwork(network(head), DecoderNetwork(target()), probability, seed=1)
    generation = served(method, EmulatedDevice(toy()), draft)
    assert generation.tokens == plain(target(), Request("", PROMPT, 12))
    accepted = [r.accepted for r in generation.rounds]
    assert (max(accepted) > 0) == (probability > 0)


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("place", DEVICES)
def test_features_that_the_target_leaves_behind(head: EagleHead, method: Method, place: str) -> None:
    """Captured in the target's own passes they make the same rounds as computed apart."""
    captured = Captured(config().depths(target().config.layers))
    main = DecoderNetwork(target(), captured=captured)
    device = DEVICES[place]()
    own = served(method, device, network(head, captured), main)
    apart = served(method, EmulatedDevice(toy()), network(head))
    assert own.tokens == apart.tokens == plain(target(), Request("", PROMPT, 12))
    if place == "emulated":
        assert own.rounds == apart.rounds


def test_sampled(head: EagleHead) -> None:
    request = Request("", PROMPT, 6, sampling=Sampling(temperature=1.0))
    networks: dict[str, Network] = {"target": DecoderNetwork(target()), "draft": network(head)}
    generation = answer(ChainSD(length=2), request, EmulatedDevice(toy()), networks, model_costs())
    assert len(generation.tokens) == 6
    known = set((torch.arange(DRAFT_VOCAB) + tensors()["d2t"]).tolist())
    (row,) = rows(started(network(head)), [Prefix.of(PROMPT)])
    assert set(row.logits.isfinite().nonzero().flatten().tolist()) == known


def started(made: EagleNetwork) -> EagleNetwork:
    made.start(Prefix.of(PROMPT))
    return made


# --- what it costs ------------------------------------------------------------------------------------------

HEAD_SHAPE = Shape(1, 8, 4, 2, 2, 16, 10, features=24)
HEAD_BILL = ModelCost(HEAD_SHAPE, precision("fp32"))


@pytest.mark.parametrize(
    ("name", "millions", "megabytes"),
    [
        ("llama_3_1_8b", 424.7, 239),
        ("qwen3_4b", 218.2, 123),
        ("qwen3_8b", 399.5, 225),
        ("qwen3_14b", 609.5, 343),
    ],
)
def test_billed_heads_have_the_public_heads_parameters(name: str, millions: float, megabytes: int) -> None:
    """Without the embedding, which is the target's; bytes in Q4_0."""
    shape = Shape.parse(
        yaml.safe_load((conf_dir() / f"model/shape/eagle3_{name}.yaml").read_text(encoding="utf-8"))
    )
    assert round(shape.parameters / 1e6, 1) == millions
    assert round(ModelCost(shape, precision("q4_0")).model_bytes / 1e6) == megabytes


def test_a_head_is_billed_by_its_parts() -> None:
    assert HEAD_SHAPE.layer_weights == 8 * 2 * (2 * 4 + 2 * 2 * 2 + 4) + 3 * 8 * 16
    assert HEAD_BILL.table_bytes == 4 * (8 * 10 + 8 * 24)
    assert HEAD_BILL.fuse(3) == (2 * 3 * 8 * 24, 4 * (8 * 24 + 3 * 24))
    assert ModelCost(SHAPE, precision("fp32")).fuse(3) == (0, 0)


def ops(session: Session, device: EmulatedDevice, *wanted: Prefix) -> list[tuple[str, int]]:
    """Kind and rows of each op of one call."""
    before = len(device.trace.spans)
    device.play(session.forward(wanted))
    return [(span.kind, span.rows) for span in device.trace.spans[before:]]


def test_guesses_are_dropped_and_computed_again() -> None:
    device = EmulatedDevice(toy())
    session = Session(Engine("draft", device, HEAD_BILL, NoNetwork(), RESIDENT))
    prompt = Prefix.of(PROMPT)
    session.start(prompt)
    root = prompt.then(1)
    assert ops(session, device, root) == [("embed", 6), ("fuse", 6), ("layer", 6), ("head", 1)]
    assert ops(session, device, root.then(1)) == [("embed", 1), ("layer", 1), ("head", 1)]
    level = [root.extend((1, 2)), root.extend((1, 3))]
    assert ops(session, device, *level) == [("embed", 2), ("layer", 2), ("head", 2)]
    text, known = level[0], session.logits_of(level[0])
    session.keep(text)
    assert session.logits_of(text) is known, "what was said of it stays a guess"
    # Two tokens of the text were guessed; they come again before what follows the text is guessed.
    catch_up = [("embed", 2), ("fuse", 2), ("layer", 2)]
    assert ops(session, device, text.then(5)) == [*catch_up, ("embed", 1), ("layer", 1), ("head", 1)]
    assert session.passes[-1].rows == 1
    session.keep(text.extend((6, 7)))
    assert ops(session, device, text.extend((6, 7))) == [("embed", 2), ("fuse", 2), ("layer", 2), ("head", 1)]


def test_levels_that_are_guessed_one_after_the_other() -> None:
    device = EmulatedDevice(toy())
    session = Session(Engine("draft", device, HEAD_BILL, NoNetwork(), RESIDENT))
    session.start(Prefix.of((1, 2)))
    root = Prefix.of((1, 2, 3))
    found = ops(session, device, root.extend((1, 2)), root.then(4))
    grounded = [("embed", 2), ("fuse", 2), ("layer", 2)]
    levels = [("embed", 2), ("layer", 2), ("embed", 1), ("layer", 1)]
    assert found == [*grounded, *levels, ("head", 2)]
    below = root.extend((1, 2, 3)), root.extend((4, 4))
    assert ops(session, device, *below) == [("embed", 2), ("layer", 2), ("head", 2)]


# --- the format ---------------------------------------------------------------------------------------------


def loaded(folder: Path, raw: dict[str, Any], kept: dict[str, Tensor], dtype: str = "float32") -> EagleHead:
    found = eagle_head.config_of(raw)
    assert found is not None
    return eagle_head.load(write_head(folder, raw, kept), found, dtype, target().ends.embedding)


VARIANTS: dict[str, dict[str, Any]] = {
    "SpecForge": {},
    "AngelSlim": {"architectures": ["Eagle3LlamaForCausalLM"], "rope_theta": 1e6, "target_hidden_size": 64},
    "EAGLE": {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 64},
    "whole vocabulary": {"draft_vocab_size": None},
    "residual after its norm": {"norm_before_residual": True},
    "what says nothing": {"fc_norm": False, "norm_output": None, "max_window_layers": 36, "novel": []},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("prefixed", [False, True])
@pytest.mark.parametrize("embeds", [False, True])
def test_public_formats(variant: str, prefixed: bool, embeds: bool, tmp_path: Path) -> None:
    raw = raw_config(target(), **VARIANTS[variant])
    held = tensors_of(raw, seed=3)
    if embeds:
        vocab, hidden = target().ends.embedding.shape
        held["embed_tokens.weight"] = torch.randn(vocab, hidden, generator=torch.Generator().manual_seed(4))
    assert ("d2t" in held) == (variant != "whole vocabulary")
    stored = {f"model.{n}" if prefixed and "midlayer" in n else n: t for n, t in held.items()}
    made = network(loaded(tmp_path, raw, stored))
    made.start(Prefix.of(PROMPT))
    wanted = Prefix.of((*PROMPT, 1, 2))
    (row,) = rows(made, [wanted])
    truth = said(raw, held, target(), wanted.tokens(), len(PROMPT))
    torch.testing.assert_close(row.logits, truth, atol=TOLERANCE, rtol=TOLERANCE)


def test_bf16_weights_compute_too(tmp_path: Path) -> None:
    raw = raw_config(target())
    rounded = {name: t.bfloat16() if t.is_floating_point() else t for name, t in tensors().items()}
    made = loaded(tmp_path, raw, rounded, "bfloat16")
    (row,) = rows(started(network(made)), [Prefix.of(PROMPT)])
    truth = said(raw, tensors(), target(), PROMPT, len(PROMPT))
    known = truth.isfinite()
    assert torch.equal(row.logits.isfinite(), known)
    assert (row.logits[known] - truth[known]).abs().max() < 0.05 * truth[known].abs().max()


@pytest.mark.parametrize("name", sorted(tensors_of(raw_config(decoder(FAMILY)))))
def test_a_missing_or_misshapen_tensor_is_named(name: str, tmp_path: Path) -> None:
    raw = raw_config(target())
    wrong = {**tensors(), name: torch.cat((tensors()[name],) * 2)}
    with pytest.raises(InputError, match=name):
        loaded(tmp_path / "wrong", raw, wrong)
    if name != "t2d":
        with pytest.raises(InputError, match=name):
            loaded(tmp_path / "less", raw, {n: t for n, t in tensors().items() if n != name})


@pytest.mark.parametrize(
    "name",
    ["fc_norm.0.weight", "midlayer.self_attn.q_proj.bias", "layers.0.input_layernorm.weight", "fc.bias"],
)
def test_a_tensor_that_is_not_read_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"has tensor {name}, which is no part"):
        loaded(tmp_path, raw_config(target()), tensors() | {name: torch.ones(3)})


def test_d2t_must_lead_somewhere(tmp_path: Path) -> None:
    raw = raw_config(target())
    beyond = {**tensors(), "d2t": tensors()["d2t"] + 131}
    with pytest.raises(InputError, match=f"d2t must lead to {DRAFT_VOCAB} tokens of the target's 131"):
        loaded(tmp_path / "beyond", raw, beyond)
    other = {**tensors(), "t2d": ~tensors()["t2d"]}
    with pytest.raises(InputError, match="t2d and d2t"):
        loaded(tmp_path / "other", raw, other)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 2}, "num_hidden_layers=2"),
        ({"attention_bias": True}, "biases=True"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu"),
        ({"fc_norm": True}, "fc_norm=True"),
        ({"norm_output": True}, "norm_output=True"),
        ({"norm_before_fc": True}, "norm_before_fc=True"),
        ({"logit_scale": 0.5}, r"logit_scale=0\.5"),
        ({"norm_before_residual": "yes"}, "norm_before_residual='yes'"),
        ({"residual_scale": 2.0}, r"has residual_scale=2\.0, which is not read"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state=False"),
        ({"eagle_config": {"novel": 3}}, r"eagle_config\.novel=3"),
        ({"eagle_config": [1]}, r"eagle_config=\[1\]"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 1, 1]}, "must be one list of layers"),
        ({"eagle_aux_hidden_state_layer_ids": "0,1,2"}, "must be one list of layers"),
    ],
)
def test_a_head_of_another_build(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        config(**changes)


def test_an_ordinary_model_is_no_head() -> None:
    raw = raw_config(target(), architectures=["LlamaForCausalLM"], draft_vocab_size=None)
    assert eagle_head.config_of(raw) is None


def test_layers_are_named_in_either_place() -> None:
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 0, 2]}
    assert config(eagle_config=None, **ids).depths(6) == (2, 1, 3)
    assert config(eagle_config=ids).depths(6) == config(eagle_config=ids, **ids).depths(6) == (2, 1, 3)


def test_depths() -> None:
    public = config(eagle_config=None)
    assert [public.depths(layers) for layers in (30, 32, 36, 40)] == [
        (2, 15, 27),
        (2, 16, 29),
        (2, 18, 33),
        (2, 20, 37),
    ]
    assert config().depths(4) == (1, 3, 3)
    with pytest.raises(InputError, match="its target has 2"):
        public.depths(2)
