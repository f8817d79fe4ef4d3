"""Medusa heads: the public format, their rows against a plain reference, losslessness, what they cost."""

from __future__ import annotations

import json
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
from repro.methods.speculative.chain_sd import ChainSD
from repro.methods.speculative.corrected import Corrected
from repro.methods.speculative.drafting import medusa_head
from repro.methods.speculative.drafting.medusa_head import MedusaHeads, MedusaNetwork
from repro.methods.speculative.specinfer import SpecInfer
from repro.models.costs.model_cost import ModelCost, Shape, precision
from repro.models.forward.cached_features import CachedFeatures
from repro.models.forward.logit_cache import LogitCache
from repro.models.forward.network import Captured, DecoderNetwork, Features, Logits, Network
from repro.models.tokens.kv_slots import MedusaLineage
from repro.models.tokens.prefix import Prefix
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


TENSORS = tensors(layers=2)
WIDTH = target().config.hidden
SPOILT: list[tuple[dict[str, Tensor], str]] = [
    ({n: t for n, t in TENSORS.items() if n != "2.2.weight"}, r"tensor 2\.2\.weight is missing from"),
    (
        TENSORS | {"1.0.linear.weight": torch.zeros(3, 3)},
        r"1\.0\.linear\.weight in .* has shape \[3, 3\], exp",
    ),
    ({"other": torch.zeros(1)}, r"holds no tensor 0\.0\.linear\.weight"),
    (
        TENSORS | {"6.0.linear.weight": torch.ones(WIDTH, WIDTH)},
        "has tensor 6.0.linear.weight, which is no part",
    ),
    (TENSORS | {"0.1.linear.scale": torch.ones(1)}, "has tensor 0.1.linear.scale"),
]


@pytest.mark.parametrize(("stored", "message"), SPOILT)
@pytest.mark.parametrize("pickled", [False, True])
def test_every_tensor_of_the_file_is_read_or_refused(
    stored: dict[str, Tensor], message: str, pickled: bool, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        opened(write_heads(tmp_path, stored, layers=2, pickled=pickled))


def configured(folder: Path, **changes: Any) -> MedusaHeads:
    """Heads with two blocks each, beside a configuration with some entries more or, of None, fewer."""
    write_heads(folder, TENSORS, layers=2)
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8")) | changes
    entries = {name: value for name, value in raw.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(entries), encoding="utf-8")
    return opened(folder)


def test_blocks_that_the_configuration_does_not_name_are_applied(tmp_path: Path) -> None:
    rows_in = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(9))
    unnamed = configured(tmp_path / "unnamed", medusa_num_layers=None)
    expected = configured(tmp_path / "named", hidden_size=WIDTH, torch_dtype="float16")
    torch.testing.assert_close(unnamed.hidden(rows_in, [0, 1, 2]), expected.hidden(rows_in, [0, 1, 2]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"medusa_num_layers": 0}, "medusa_num_layers is 0"),
        ({"medusa_num_layers": 1}, r"4 heads with 2 blocks each, .* medusa_num_layers=1"),
        ({"medusa_num_heads": 5}, "medusa_num_heads=5"),
        ({"medusa_num_heads": "5"}, "medusa_num_heads is '5'"),
        ({"hidden_size": 7}, f"hidden_size=7; its tensors have {WIDTH}"),
        ({"medusa_choices": [[0]]}, "medusa_choices"),
    ],
)
def test_numbers_that_contradict_the_file_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        configured(tmp_path, **changes)


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


# --- as a draft ---------------------------------------------------------------------------------------------


METHODS = [ChainSD(length=HEADS), SpecInfer(expansion=(2, 1, 2)), Corrected()]


def model_costs(heads: MedusaHeads) -> dict[str, ModelCost]:
    return {"target": model_cost_of(target()), "draft": ModelCost(heads.config.shape, precision("fp32"))}


def served(
    heads: MedusaHeads, method: Method, device: Device, draft: Network, main: Network | None = None
) -> Generation:
    networks = {"target": main or DecoderNetwork(target()), "draft": draft}
    return answer(method, Request("", PROMPT, 12), device, networks, model_costs(heads))


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("place", DEVICES)
def test_features_captured_on_the_way_make_the_same_rounds(
    heads: MedusaHeads, method: Method, place: str
) -> None:
    captured = Captured((target().config.layers,))
    main = DecoderNetwork(target(), captured=captured)
    own = served(heads, method, DEVICES[place](), network(heads, captured), main)
    apart = served(heads, method, EmulatedDevice(toy()), network(heads))
    assert own.tokens == apart.tokens == plain(target(), Request("", PROMPT, 12))
    if place == "emulated":
        assert own.rounds == apart.rounds


# --- what it costs ------------------------------------------------------------------------------------------


def test_billed_heads_have_the_public_heads_parameters() -> None:
    """739 million in fp16, as the file of Vicuna-7B's five heads has."""
    shape = Shape.parse(
        yaml.safe_load((conf_dir() / "model/shape/vicuna_7b_medusa.yaml").read_text(encoding="utf-8"))
    )
    assert shape.parameters == 5 * (4096**2 + 4096 * 32000)
    assert round(ModelCost(shape, precision("fp16")).model_bytes / 1e9, 2) == 1.48


def test_a_place_is_the_last_feature_and_a_head() -> None:
    lineage, prompt = MedusaLineage(3, head_count=2), Prefix.of((1, 2, 3))
    assert lineage.root_and_head(prompt.then(4)) == (prompt, 0)
    assert lineage.root_and_head(prompt.extend((4, 5))) == (prompt, 1)
    assert lineage.root_and_head(prompt) == (prompt.parent, 0)
    lineage.keep(prompt.extend((4, 5)))
    assert lineage.root_and_head(prompt.extend((4, 5))) == (prompt.then(4), 0)
