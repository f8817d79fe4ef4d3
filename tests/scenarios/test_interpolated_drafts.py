"""A draft made of its target's weights: brought to an agreement, keyed apart from other drafts."""

from __future__ import annotations

import json
from typing import cast

import numpy as np
import pytest
import torch

from repro.core.errors import InputError
from repro.methods.base import Request
from repro.methods.speculative.drafting.calibrated_draft import calibration_error
from repro.methods.speculative.drafting.interpolated_model import interpolate
from repro.models.forward.network import Logits
from repro.models.forward.side_by_side import greedy_tokens
from repro.models.transformer.layer import LayerWeights
from repro.models.transformer.linear import PlainLinear
from repro.scenarios.generation.scenario import GenerationScenario
from tiny import alone
from tiny_project import Project, write_project

WEIGHTS = "draft_calibration=weights"
pytestmark = pytest.mark.usefixtures("cache_of_project")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = write_project(tmp_path_factory.mktemp("project"))
    blank = {"canonical_solution": "", "test": "", "entry_point": "f"}
    prompts = [f"def f{i * i}(x, y{i}):\n    return {i}" for i in range(14)]
    rows = [{"task_id": f"T/{i}", "prompt": prompt, **blank} for i, prompt in enumerate(prompts)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (made.root / "data" / "openai_humaneval.jsonl").write_text(text, encoding="utf-8")
    return made.apart(made.out, "max_tokens=24", "calibration_prompts=10")


def cell_of(project: Project, *more: str) -> GenerationScenario:
    return GenerationScenario(project.config(WEIGHTS, *more))


def agreement_by_hand(cell: GenerationScenario, requests: list[Request]) -> float:
    """The share of the target's own tokens, but the first, that its draft says from the same prefix."""
    target, draft, right, tokens = cell.target.network(), cell.draft.decoder(), 0, 0
    for request in requests:
        said = greedy_tokens(target, request.prefix, request.max_tokens, request.stop)
        for i in range(1, len(said)):
            right += int(alone(draft, [*request.prompt, *said[:i]]).argmax()) == said[i]
        tokens += len(said) - 1
    return right / tokens


@pytest.mark.parametrize("wanted", [0.5, 0.8, 0.95])
def test_the_draft_agrees_as_asked_for(project: Project, wanted: float) -> None:
    """On the last rows, by a count of its own; what it reaches on the evaluated rows stands beside."""
    asked = f"calibrate_draft_to={wanted}"
    record = project.record("method=chain_sd", asked, WEIGHTS)
    matched = record.provenance.matched
    assert matched is not None
    cell = cell_of(project, "method=chain_sd", asked)
    assert [request.prompt for request in cell.calibration] == [
        request.prompt
        for request in cell_of(project, "method=chain_sd", asked, "skip=4", "prompts=10").requests
    ]
    cell.take_share(matched["share"])
    reached = agreement_by_hand(cell, cell.calibration)
    assert reached == pytest.approx(wanted, abs=0.01)
    assert matched["native"] == pytest.approx(100 * reached)
    assert record.values["draft_agreement_calibration"] == pytest.approx(100 * reached)
    assert record.values["draft_agreement"] == pytest.approx(100 * agreement_by_hand(cell, cell.requests))
    assert record.values["draft_share"] == matched["share"]
    assert record.values["exact_match"] == 1.0
    assert record.provenance.weights == "proxy"
    assert not any(name.startswith("edgellm") for name in record.provenance.fitted)
    corrected = project.record("method=corrected", asked, WEIGHTS)
    assert corrected.values["draft_correctness"] == pytest.approx(record.values["draft_agreement"])


def test_rows_keep_their_norms_and_meet_halfway() -> None:
    """(1 - share) W + share P, row by row, with |P| = |W|: at share 1 the norms are W's, at 0.5 the mean."""
    drawn = torch.Generator().manual_seed(0)
    shapes = ((6, 8), (8, 4), (9, 8), (8, 9))
    layer = LayerWeights(*(PlainLinear(torch.randn(shape, generator=drawn)) for shape in shapes))
    whole, half, again = (interpolate(layer, share, [3, 0]) for share in (1.0, 0.5, 0.5))
    other = interpolate(layer, 1.0, [4, 0])
    for own, random, middle, repeated, apart in zip(
        *(cast(tuple[PlainLinear, ...], one.linears) for one in (layer, whole, half, again, other)),
        strict=True,
    ):
        assert torch.allclose(random.weight.norm(dim=1), own.weight.norm(dim=1), rtol=1e-5)
        assert torch.allclose(middle.weight, (own.weight + random.weight) / 2, atol=1e-6)
        assert torch.equal(middle.weight, repeated.weight)
        assert not torch.allclose(random.weight, apart.weight)


def test_its_key_is_its_own_and_the_share_is_no_part_of_it(project: Project) -> None:
    asked = ("method=chain_sd", "calibrate_draft_to=0.8")
    keys = {
        GenerationScenario(project.config(*asked, way)).key
        for way in (WEIGHTS, "draft_calibration=true", "draft_calibration=choices", "draft_calibration=false")
    }
    keys.add(cell_of(project, "method=chain_sd", "calibrate_draft_to=0.81").key)
    assert len(keys) == 5
    before, after = (cell_of(project, *asked) for _ in range(2))
    after.take_share(0.25)
    assert before.key == after.key
    plain = [cell_of(project, "method=std", f"calibrate_draft_to={wanted}").key for wanted in (0.5, 0.8)]
    assert plain[0] == plain[1]


def test_the_calibration_error_is_the_gap_in_each_bin() -> None:
    """Two rows at 0.9 of which one is right, one at 0.6 that is: |0.5 - 0.9| 2/3 + |1 - 0.6| 1/3."""
    sure, unsure = (Logits(None, ([1, 2], [float(np.log(p)), float(np.log(1 - p))])) for p in (0.9, 0.6))
    assert calibration_error([sure, sure, unsure], [True, False, True], 1.0) == pytest.approx(0.4, abs=1e-5)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("calibrate_draft_to=1.2",), r"calibrate_draft_to is 1\.2; .* a number above 0 and at most 0\.99"),
        ((WEIGHTS, "calibrate_draft_to=null"), "as often as calibrate_draft_to says, which is null"),
        ((WEIGHTS, "+target.rounded=4"), "they are rounded; choose target.rounded=null"),
    ],
)
def test_what_cannot_be_is_said(project: Project, more: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        _ = GenerationScenario(project.config("method=chain_sd", "calibrate_draft_to=0.8", *more)).key
