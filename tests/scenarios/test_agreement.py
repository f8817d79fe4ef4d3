"""A cell matched to a published agreement: calibrated on other rows, keyed, marked, or refused."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from repro.core.errors import InputError
from repro.core.overrides import override
from repro.methods.base import Request
from repro.methods.speculative.drafting.calibrated_draft import coin
from repro.models.forward.side_by_side import greedy_tokens
from repro.models.tokens.prefix import Prefix
from repro.scenarios.generation import scenario as generation
from repro.scenarios.generation.scenario import GenerationScenario
from tiny import alone
from tiny_project import Project, write_project

TABLE1 = "edgellm.table1.truthful_qa"
MATCH = f"calibrate_draft_to={TABLE1}"
pytestmark = pytest.mark.usefixtures("cache_of_project")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = write_project(tmp_path_factory.mktemp("project"))
    blank = {"canonical_solution": "", "test": "", "entry_point": "f"}
    rows = [{"task_id": f"T/{i}", "prompt": f"def f{i}(x):\n", **blank} for i in range(9)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (made.root / "data" / "openai_humaneval.jsonl").write_text(text, encoding="utf-8")
    return made.apart(made.out, "max_tokens=40", "calibration_prompts=3")


def drafted(cell: GenerationScenario, requests: Sequence[Request]) -> Iterator[tuple[Prefix, int]]:
    """Each context on the target's own text in which a draft speaks, and what comes next there."""
    network = cell.target.network()
    for request in requests:
        tokens = greedy_tokens(network, request.prefix, request.max_tokens, request.stop)
        for i in range(1, len(tokens)):
            yield Prefix.of([*request.prompt, *tokens[:i]]), tokens[i]


def right_by_hand(cell: GenerationScenario, requests: Sequence[Request]) -> dict[Prefix, bool]:
    """In which of these contexts the draft as it is says what comes next."""
    draft = cell.draft.decoder()
    return {
        text: int(alone(draft, text.tokens()).argmax()) == token for text, token in drafted(cell, requests)
    }


def confidence(cell: GenerationScenario, temperature: float = 1.0) -> float:
    """The draft's mean confidence in its first choices before the tokens of the calibration answers."""
    draft, texts = cell.draft.decoder(), drafted(cell, cell.calibration)
    said = [(alone(draft, text.tokens()) / temperature).softmax(-1).max() for text, _ in texts]
    return float(sum(said)) / len(said)


def test_a_cell_is_matched_on_the_prompts_behind_its_own(project: Project) -> None:
    native = project.record("method=corrected")
    record = project.record("method=corrected", MATCH)
    cell = GenerationScenario(project.config("method=corrected", MATCH))
    assert native.key != record.key == cell.key
    assert (native.labels["agreement"], record.labels["agreement"]) == ("native", "matched")
    assert native.provenance.matched is None

    assert {r.prompt for r in cell.calibration}.isdisjoint(r.prompt for r in cell.requests)
    assert (len(cell.requests), len(cell.calibration)) == (2, 3)
    calibrated, used = right_by_hand(cell, cell.calibration), right_by_hand(cell, cell.requests)
    share = sum(calibrated.values()) / len(calibrated)
    probability = (0.871 - share) / (1 - share)
    assert record.provenance.matched is not None
    matched = dict(record.provenance.matched)
    assert confidence(cell, matched.pop("temperature")) == pytest.approx(0.871, abs=2e-3)
    assert matched == {
        "cell": TABLE1, "published": 87.1, "native": pytest.approx(100 * share),
        "probability": pytest.approx(probability),
        "confidence": pytest.approx(100 * confidence(cell), rel=1e-4),
    }  # fmt: skip
    assert TABLE1 in record.provenance.fitted
    assert TABLE1 not in native.provenance.fitted

    assert native.values["draft_correctness"] == pytest.approx(100 * sum(used.values()) / len(used))
    right = sum(own or coin(text, 0) < probability for text, own in used.items())
    assert record.values["draft_correctness"] == pytest.approx(100 * right / len(used))
    assert record.values["draft_correctness"] == pytest.approx(
        87.1, abs=300 * math.sqrt(0.87 * 0.13 / len(used))
    )
    assert "acceptance_length" not in record.values
    assert record.values["exact_match"] == 1.0


@pytest.mark.parametrize("method", ["chain_sd", "edgellm"])
def test_matched_speculation_is_lossless_and_accepts_more(project: Project, method: str) -> None:
    native = project.record(f"method={method}")
    record = project.record(f"method={method}", MATCH)
    assert record.values["exact_match"] == native.values["exact_match"] == 1.0
    assert float(record.values["acceptance_length"] or 0) > float(native.values["acceptance_length"] or 0)
    assert {"acceptance_length", "accepted_draft_tokens"} <= set(native.values)
    assert "draft_correctness" not in native.values


def test_what_it_is_matched_to_and_on_is_part_of_the_key(project: Project) -> None:
    def key(*more: str) -> str:
        return GenerationScenario(project.config("method=corrected", MATCH, *more)).key

    changes = "calibrate_draft_to=edgellm.table1.squad", "calibration_prompts=4", "seed=1"
    assert len({key(), *map(key, changes)}) == 4


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ((f"calibrate_draft_to={TABLE1}s",), f"'{TABLE1}s'.*{TABLE1}"),
        (("calibrate_draft_to=edgellm.text.ii_c.mt5_correct",), "single published agreement.*edgellm.table1"),
        ((MATCH, "device=local_cpu"), "real device would have to pay"),
        ((MATCH, "sampling.temperature=0.7"), r"temperature is 0\.7"),
        ((MATCH, "calibration_prompts=8"), "'humaneval' has 9 rows, and rows 2 to 9 were asked for"),
    ],
)
def test_what_cannot_be_matched_is_said(project: Project, overrides: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        _ = GenerationScenario(project.config("method=chain_sd", *overrides)).key


def test_of_several_drafts_the_first_alone_is_matched(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, matched_roles = generation._matched_network, []

    def noted(cell: Any, model: Any, role: str, matched: Any, network: Any) -> Any:
        matched_roles.extend([role] * (matched is not None))
        return made(cell, model, role, matched, network)

    monkeypatch.setattr(generation, "_matched_network", noted)
    second = override("draft_2.checkpoint.folder", project.root / "draft")
    alone = "draft_2.checkpoint.shares_embeddings_with=null"
    drafts = ("method.drafts=2", "method.expansion=[1,2]", "+model@draft_2=smollm2_135m_draft", second, alone)
    record = project.record("method=specinfer", *drafts, MATCH, "memo=false")
    assert set(matched_roles) == {"draft"}
    assert record.values["exact_match"] == 1.0


def test_a_draft_that_agrees_too_well_fails_its_cell_with_both_numbers(project: Project) -> None:
    note = project.cell(
        "method=corrected", MATCH, override("draft.checkpoint.folder", project.root / "target")
    )
    assert note.state == "failed"
    assert "100.0%" in note.error
    assert "87.1%" in note.error
