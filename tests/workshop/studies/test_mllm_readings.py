"""Statements on readings: differences over the same texts, and verdicts by whole intervals."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from records import record
from repro.records.members import Member
from repro.records.results import Results
from workshop.studies.mllm_readings import LARGE, SMALL, TABLE, Readings, Statement, statements

COST = {"all": 0.02, "ranked": 0.1, "ends": 0.3}
"""Nats a token that a reading loses of a model of cost 1, with a scale a row and rescaled."""


def nats(target: str, weights: str, keeps: str, rest: str, text: int) -> float:
    """Nats a token lost on one text; texts differ, readings differ by the same on each."""
    coarse = 0.0 if weights == "row" else 0.03 if target == SMALL else 0.5
    cost = COST[keeps] * (1.0 if target == SMALL else 0.25) + 0.2 * (rest == "clamp")
    return cost + coarse + 0.01 * (text % 3)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Ten texts of 100 tokens and ten words a cell; a scale a row with all shadows loses no word."""
    made, members = Results(tmp_path / "results"), []
    cells = product((SMALL, LARGE), ("row", "matrix"), COST, ("rescale", "clamp"))
    for target, weights, keeps, rest in cells:
        lines = {
            "wikitext2_texts": [
                {"id": f"w/{i}", "nats": 300 + 100 * nats(target, weights, keeps, rest, i), "tokens": 100}
                | {"baseline_nats": 300.0}
                for i in range(10)
            ],
            "lambada_openai": [
                {"id": f"l/{i}", "right": int(i < 5), "baseline_right": int(i < 5)} for i in range(10)
            ],
        }
        for dataset, own in lines.items():
            lost = (
                sum(float(line["nats"]) - 300 for line in own) / 1000 if dataset != "lambada_openai" else 0.0
            )
            labels = {"target": target, "weights_scale": weights, "keeps": keeps, "rest": rest}
            cell = record(
                "shadow", {"nats_lost": lost, "difference": 0.0}, labels=labels | {"dataset": dataset}
            )
            made.put(cell, own)
            members.append(Member(cell.key, cell.labels, ()))
    made.set_members(TABLE, members)
    return made


def test_statements_are_decided_by_differences_over_the_same_texts(results: Results) -> None:
    found = {one.says: one for one in statements(Readings(results))}
    pruning = found["pruning loses less of the larger model"]
    assert pruning.estimate[0] == pytest.approx((0.1 - 0.02) * 0.75)
    assert pruning.interval == pytest.approx((pruning.estimate[0],) * 2), "texts cancel out"
    assert found["one scale a matrix loses more of Qwen2.5"].estimate[0] == pytest.approx(0.47)
    clamping = found[f"{SMALL}: clamping loses more than rescaling"]
    assert clamping.estimate[0] == pytest.approx(0.2)
    assert {one.verdict for one in found.values()} == {"holds"}
    lost = Statement("", Readings(results).nats(SMALL, "row", "all"))
    assert lost.estimate[0] == pytest.approx(0.02 + 0.01 * 9 / 10)
    low, high = lost.interval
    assert low < lost.estimate[0] < high


def test_a_verdict_is_that_of_the_whole_interval(results: Results) -> None:
    one = next(statements(Readings(results)))
    value = one.estimate[0]
    assert one._replace(bound=value - 1e-6).verdict == "holds"
    assert one._replace(bound=value + 1e-6).verdict == "fails"
    assert one._replace(bound=value + 1e-6, below=True).verdict == "holds"
    wide = Readings(results).nats(SMALL, "row", "all")
    assert one._replace(estimate=wide, bound=wide[0]).verdict == "undetermined"
    assert one._replace(estimate=wide, bound=wide[0], below=True).verdict == "undetermined"
