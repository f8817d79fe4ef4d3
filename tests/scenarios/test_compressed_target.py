"""A method answers with a compressed target: its text, its schedule, its key, and what cannot be combined."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import pytest
import torch

from repro.core.errors import InputError
from repro.models.forward.network import rows_of
from repro.models.forward.side_by_side import greedy_tokens
from repro.models.quantization.w8a8 import W8A8Linear
from repro.scenarios.generation.scenario import GenerationScenario
from tiny_project import Project, write_project

PHONE = ("method=mllm_npu", "device=xiaomi_14", "engine=mllm_npu")
SHORT = ("corpus.texts=3", "corpus.tokens=96", "max_tokens=8", "memo=false")
SHADOW = ("compression@target.compression=shadow", "target.compression.quantile=0.99")
USED = (*PHONE, *SHORT, *SHADOW)
pytestmark = pytest.mark.usefixtures("cache_of_project")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = write_project(tmp_path_factory.mktemp("compressed"))
    texts = "".join(json.dumps({"text": f"word{i} and {i * i} more, " * 20}) + "\n" for i in range(9))
    (made.root / "data" / "wikitext-2-raw-v1_train.jsonl").write_text(texts, encoding="utf-8")
    return made


def cell(project: Project, *more: str, pruned: float = 0.5) -> GenerationScenario:
    both = f"method.pruned={pruned}", f"target.compression.pruned={pruned}"
    return GenerationScenario(project.config(*USED, *both, *more))


def run(made: GenerationScenario) -> tuple[dict[str, Any], list[list[int]]]:
    """The figures, and the tokens of all answers."""
    found = made.find(lambda what, done, total: None)
    return dict(found.values), [[*map(int, str(line["tokens"]).split())] for line in found.answers]


def by_hand(made: GenerationScenario) -> list[list[int]]:
    """The greedy texts of the compressed decoder, one token after the other."""
    network = made.target.network()
    return [greedy_tokens(network, r.prefix, r.max_tokens, r.stop) for r in made.requests]


@pytest.mark.parametrize("weights", ["row", "matrix"])
@pytest.mark.parametrize("pruned", [0.0, 0.5, 1.0])
def test_the_text_is_the_compressed_models_own(project: Project, weights: str, pruned: float) -> None:
    made = cell(project, f"target.compression.weights={weights}", pruned=pruned)
    values, texts = run(made)
    assert texts == by_hand(made)
    assert values["exact_match"] == 1.0
    assert values["shadowed_linears"] == 8 - round(8 * pruned)
    layer = made.target.decoder().layers[0]
    assert layer is not None
    assert isinstance(layer.qkv, W8A8Linear)


def test_chunks_change_nothing(project: Project) -> None:
    """Prompts of 15 or more tokens in chunks of 4 and whole."""
    small, whole = (run(cell(project, f"method.chunk={chunk}")) for chunk in (4, 256))
    assert small[1] == whole[1]
    assert small[0]["ttft"] != whole[0]["ttft"]


def test_the_schedule_keeps_the_linears_that_the_arithmetic_keeps(project: Project) -> None:
    made = cell(project, pruned=0.75)
    shares = made.target.outliers
    assert shares is not None
    shadows = {
        (i, part)
        for i, layer in enumerate(made.target.decoder().layers)
        for part in ("qkv", "out", "up", "down")
        if getattr(layer, part).shadow
    }
    assert shares.keys() == shadows
    assert len(shadows) == 2
    assert all(0 < share <= 1 for share in shares.values())
    timeline = made.find(lambda what, done, total: None).timeline
    assert timeline is not None
    names = {event["name"] for event in json.loads(timeline())["traceEvents"] if event.get("ph") == "X"}
    stages = {"qkv": "qkv", "out": "output", "up": "ffn_up", "down": "ffn_down"}
    expected = {f"layer {layer} {stages[part]} shadow" for layer, part in shadows}
    assert {name.partition("chunk 0 ")[2] for name in names if name.endswith("shadow")} == expected


def test_the_float_target_is_another_cell_with_another_text(project: Project) -> None:
    plain = GenerationScenario(project.config(*PHONE, *SHORT))
    kinds = [cell(project), cell(project, "target.compression.weights=row"), cell(project, pruned=1.0), plain]
    assert len({made.key for made in kinds}) == len({made.target.digest for made in kinds}) == 4
    assert len({made.target.outputs_key() for made in kinds}) == 4
    assert kinds[0].key == cell(project).key
    assert kinds[0].key != cell(project, "corpus.texts=2").key
    assert "compression shadow" in kinds[0].versions
    assert plain.target.outliers is None
    rows = [rows_of(made.target.network(), [made.requests[0].prefix])[0].logits for made in kinds]
    assert all(not torch.equal(one, two) for one, two in combinations(rows, 2))


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("method.pruned=0.25",), r"keeps the outliers of 4 of 8 linears; give 0\.5"),
        (("method.shadow=false",), "choose method.shadow=true"),
        (("+target.rounded=4",), "rounded=4, and a compression is of whole"),
    ],
)
def test_what_cannot_be_combined_is_said(project: Project, overrides: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        run(GenerationScenario(project.config(*USED, "target.compression.pruned=0.5", *overrides)))
