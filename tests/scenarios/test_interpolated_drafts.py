"""A draft made of its target's weights: brought to an agreement, lossless, keyed apart from other drafts."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import cast

import numpy as np
import pytest
import torch

from repro.core.errors import InputError
from repro.methods.base import Request
from repro.methods.speculative.drafting.calibrated_draft import calibration_error
from repro.methods.speculative.drafting.interpolated_model import InterpolatedModel, interpolate
from repro.models.forward.network import Logits
from repro.models.forward.side_by_side import greedy_tokens
from repro.models.transformer.layer import LayerWeights
from repro.models.transformer.linear import PlainLinear
from repro.scenarios.base import silent
from repro.scenarios.generation import prefixes
from repro.scenarios.generation.draft_calibration import Agreement, Goal, MatchedWeights, match_weights
from repro.scenarios.generation.scenario import GenerationScenario
from tiny import alone
from tiny_project import Project, write_project

WEIGHTS = "draft_calibration=weights"
SPECULATIVE = ("chain_sd", "sp", "specinfer", "opt_tree", "edgellm")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = write_project(tmp_path_factory.mktemp("project"))
    rows = [
        {
            "task_id": f"T/{i}",
            "prompt": f"def f{i * i}(x, y{i}):\n    return {i}",
            "canonical_solution": "",
            "test": "",
            "entry_point": "f",
        }
        for i in range(14)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (made.root / "data" / "openai_humaneval.jsonl").write_text(text, encoding="utf-8")
    return made.apart(made.out, "max_tokens=24", "calibration_prompts=10")


@pytest.fixture(autouse=True)
def _own_cache(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRO_CACHE", str(project.root / "cache"))


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


@pytest.mark.parametrize("method", SPECULATIVE)
def test_text_is_the_target_s_own(project: Project, method: str) -> None:
    for wanted in (0.6, 0.9):
        record = project.record(f"method={method}", f"calibrate_draft_to={wanted}", WEIGHTS)
        assert record.values["exact_match"] == 1.0


def test_confidences_are_what_agreement_is(project: Project) -> None:
    """The mean of softmax(logits / temperature)'s maximum over the calibration tokens."""
    record = project.record("method=chain_sd", "calibrate_draft_to=0.8", WEIGHTS)
    matched = dict(record.provenance.matched or {})
    cell = cell_of(project, "method=chain_sd", "calibrate_draft_to=0.8")
    cell.take_share(matched["share"])
    target, draft, said = cell.target.network(), cell.draft.decoder(), list[float]()
    for request in cell.calibration:
        tokens = greedy_tokens(target, request.prefix, request.max_tokens, request.stop)
        for i in range(1, len(tokens)):
            logits = alone(draft, [*request.prompt, *tokens[:i]])
            said.append(float((logits / matched["temperature"]).softmax(-1).max()))
    assert np.mean(said) == pytest.approx(matched["native"] / 100, abs=5e-3)


def test_a_larger_share_agrees_less_often(project: Project) -> None:
    """From all to nearly none; a draft of share 0 is the target, bit for bit."""
    cell = cell_of(project, "method=chain_sd", "calibrate_draft_to=0.8")
    (planned,) = (each for each in prefixes.plan(cell) if each.needed_for == prefixes.CALIBRATION)
    texts = prefixes.texts_after(cell, planned, silent)
    shares = []
    for share in (0.0, 0.02, 0.1, 0.3, 1.0):
        cell.take_share(share)
        shares.append(prefixes.agreement(cell, cell.calibration, texts).share)
    assert shares[0] == 1.0
    assert all(after <= before + 0.02 for before, after in pairwise(shares))
    assert shares[-1] < 0.2
    cell.take_share(0.0)
    prompt = list(cell.requests[0].prompt)
    assert torch.equal(alone(cell.draft.decoder(), prompt), alone(cell.target.decoder(), prompt))


def test_every_token_of_a_draft_of_share_0_is_accepted(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a chain of 4 emits 5 tokens a round: 20 after the first in 4 rounds."""
    target = MatchedWeights(
        "", 99.0, 100.0, share=0.0, seed=5, confidence=50, temperature=1, calibration_error=0
    )
    monkeypatch.setattr("repro.scenarios.generation.draft_calibration.match_weights", lambda *_: target)
    more = ("method=chain_sd", "method.length=4", "calibrate_draft_to=0.99", "max_tokens=21", "seed=5")
    record = project.record(*more, WEIGHTS)
    assert record.values["draft_agreement"] == 100.0
    assert record.values["acceptance_length"] == 5.0


def certain() -> Logits:
    return Logits(None, ([3, 5], [float(np.log(0.9)), float(np.log(0.1))]))


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


def test_rows_are_remembered_by_share_and_seed(project: Project) -> None:
    cells = [cell_of(project, "method=chain_sd", "calibrate_draft_to=0.8", f"seed={seed}") for seed in (0, 1)]
    digests = set()
    for cell in cells:
        for share in (0.25, 0.5):
            cell.take_share(share)
            digests.add(cell.draft.outputs_key())
    assert len({*digests, cells[0].target.outputs_key()}) == 5
    assert len({cell.key for cell in cells}) == 2


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


def test_a_published_agreement_is_marked_fitted(project: Project) -> None:
    name = "edgellm.table1.truthful_qa"
    record = project.record("method=corrected", f"calibrate_draft_to={name}", WEIGHTS)
    assert name in record.provenance.fitted
    assert record.values["draft_agreement_calibration"] == pytest.approx(87.1, abs=1.0)


def test_the_calibration_error_is_the_gap_in_each_bin() -> None:
    """Two rows at 0.9 of which one is right, one at 0.6 that is: |0.5 - 0.9| 2/3 + |1 - 0.6| 1/3."""
    sure, unsure = certain(), Logits(None, ([1, 2], [float(np.log(0.6)), float(np.log(0.4))]))
    assert calibration_error([sure, sure, unsure], [True, False, True], 1.0) == pytest.approx(0.4, abs=1e-5)


def test_a_share_that_no_draft_meets_is_said() -> None:
    def coarse(share: float) -> Agreement:
        right = share < 0.3
        return Agreement(right, 1, [certain()], [right])

    with pytest.raises(InputError, match=r"within a point of 80\.0%.*agrees in (100|0)\.0% of 1 tokens"):
        match_weights(Goal("", 80.0), 0, coarse)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("calibrate_draft_to=1.2",), r"calibrate_draft_to is 1\.2; .* a number above 0 and at most 0\.99"),
        (("calibrate_draft_to=80",), "calibrate_draft_to is 80; it must be a number above 0"),
        (
            ("draft_calibration=weight",),
            "is 'weight'; it must be true or false or weights or choices",
        ),
        ((WEIGHTS, "calibrate_draft_to=null"), "as often as calibrate_draft_to says, which is null"),
        ((WEIGHTS, "device=local_cpu"), "real device would have to pay"),
        ((WEIGHTS, "sampling.temperature=0.7"), r"temperature is 0\.7"),
        ((WEIGHTS, "+target.rounded=4"), "they are rounded; choose target.rounded=null"),
        ((WEIGHTS, "prompts=5"), "rows 5 to 14 were asked for: calibrate_draft_to needs more"),
    ],
)
def test_what_cannot_be_is_said(project: Project, more: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        _ = GenerationScenario(project.config("method=chain_sd", "calibrate_draft_to=0.8", *more)).key


def test_an_agreement_is_a_number_for_swapped_choices_too(project: Project) -> None:
    record = project.record("method=corrected", "calibrate_draft_to=0.9")
    assert record.provenance.matched is not None
    assert (record.provenance.matched["cell"], record.provenance.matched["published"]) == ("", 90.0)
    assert "" not in record.provenance.fitted


def test_the_draft_is_billed_as_the_file_says(project: Project) -> None:
    """The same ops and bytes as of the draft that it takes the place of."""
    cell = cell_of(project, "method=chain_sd", "calibrate_draft_to=0.8")
    assert isinstance(cell.draft, InterpolatedModel)
    plain = GenerationScenario(project.config("method=chain_sd", "draft_calibration=false"))
    assert cell.draft.model_cost == plain.draft.model_cost
    assert cell.draft.config.name == plain.draft.config.name


def test_a_cell_that_is_computed_again_calls_no_layer(project: Project) -> None:
    first, again = project.layers("method=edgellm", "calibrate_draft_to=0.77", WEIGHTS)
    assert first
    assert again == 0
