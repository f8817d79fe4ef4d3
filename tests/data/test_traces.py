"""Traces: counts by skew, rows, order and times, and that a seed says all."""

from __future__ import annotations

import csv
import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.data.traces import TraceConfig, counts, parse_trace, trace

SIX = parse_trace(yaml.safe_load((conf_dir() / "trace" / "six_apps.yaml").read_text(encoding="utf-8")))
ROWS = {app.dataset: 1000 for app in SIX.apps}


def test_a_larger_alpha_relaxes_a_trace() -> None:
    assert counts(600, 0.0, 6) == (100,) * 6
    assert counts(600, 0.25, 6) == (49, 63, 81, 103, 133, 171)
    assert counts(600, -0.25, 6) == (171, 133, 103, 81, 63, 49)


@given(st.integers(1, 2000), st.floats(-2, 2), st.integers(1, 8))
def test_counts_sum_up_and_follow_alpha(requests: int, alpha: float, apps: int) -> None:
    found = counts(requests, alpha, apps)
    assert sum(found) == requests
    if abs(alpha) > 1e-6:  # below, shares are equal but for rounding, and any of equals may come first
        assert list(found) == sorted(found, reverse=alpha < 0)


def test_the_apps_are_those_of_table_3() -> None:
    with (conf_dir() / "reference" / "settings.csv").open(encoding="utf-8") as lines:
        printed = {
            row["name"]: float(row["value"]) / 100
            for row in csv.DictReader(lines)
            if row["component"] == "slo.table3" and not row["name"].endswith("dataset")
        }
    ours = {f"{app.name}.{what}": getattr(app, what) for app in SIX.apps for what in ("ttft", "tpot")}
    assert ours == printed
    order = [(app.ttft, app.tpot) for app in SIX.apps]
    assert order == sorted(order), "the tightest first"


def test_a_trace_is_its_seed() -> None:
    made = trace(SIX, ROWS)
    first = [(one.app.name, one.row, round(one.seconds, 3)) for one in made[:4]]
    assert first == [
        ("GMail", 746, 4035.975),
        ("Rewind", 370, 4530.872),
        ("Rewind", 991, 5028.209),
        ("Gboard", 127, 5255.452),
    ]
    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist()
    assert trace(SIX, ROWS) == made
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert [one.row for one in trace(replace(SIX, seed=43), ROWS)] != [one.row for one in made]


def test_rows_come_once_where_there_are_enough() -> None:
    made = trace(SIX, ROWS | {"octopus_5shot": 40})
    drawn = Counter((one.app.name, one.row) for one in made)
    assert {n for (name, _), n in drawn.items() if name != "Octopus"} == {1}
    of_octopus = [n for (name, _), n in drawn.items() if name == "Octopus"]
    assert Counter(of_octopus) == {2: 20, 3: 20}, "100 requests of 40 rows"
    assert Counter(one.app.name for one in made) == dict.fromkeys((app.name for app in SIX.apps), 100)


def test_an_apps_rows_depend_on_no_other_app() -> None:
    def of_gmail(config: TraceConfig) -> set[int]:
        return {one.row for one in trace(config, ROWS) if one.app.name == "GMail"}

    even, alone = of_gmail(SIX), of_gmail(replace(SIX, requests=100, apps=SIX.apps[4:5]))
    assert even == alone
    assert of_gmail(replace(SIX, alpha=-0.25)) < even, "fewer of the same"


def test_requests_come_in_a_poisson_process_and_shuffled() -> None:
    made = trace(replace(SIX, requests=6000), ROWS)
    moments = np.array([one.seconds for one in made])
    gaps = np.diff(moments, prepend=0.0)
    assert (gaps > 0).all()
    assert gaps.mean() == pytest.approx(720, rel=0.05), "5 an hour"
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05), "exponential"
    names = [one.app.name for one in made]
    same = sum(a == b for a, b in pairwise(names)) / len(names)
    assert same == pytest.approx(1 / 6, abs=0.02)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"requests": 0}, "trace.requests is 0"),
        ({"rate": 0.0}, "trace.rate is 0.0"),
        ({"apps": []}, r"trace.apps is \[\]; it must be a list that is not empty"),
        ({"skew": 1.0}, "skew"),
    ],
)
def test_an_impossible_trace_is_an_error(change: dict[str, object], says: str) -> None:
    raw = yaml.safe_load((conf_dir() / "trace" / "six_apps.yaml").read_text(encoding="utf-8"))
    with pytest.raises(InputError, match=says):
        parse_trace(raw | change)


def test_a_dataset_without_rows_is_an_error() -> None:
    with pytest.raises(InputError, match="Rewind takes its requests from openbookqa_5shot"):
        trace(SIX, {**ROWS, "openbookqa_5shot": 0})
