"""`conf/metric/` describes every value that a record may have, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.reports.spec.metric import load_metrics

OUTCOMES = Path(__file__).parents[1] / "outcomes.json"


def folder(root: Path, **files: str) -> Path:
    """A `conf/` folder of another package, with these files below `metric/`."""
    (root / "metric").mkdir(parents=True)
    for stem, text in files.items():
        (root / "metric" / f"{stem}.yaml").write_text(text, encoding="utf-8")
    return root


def test_every_value_of_every_component_is_described() -> None:
    metrics = load_metrics()
    outcomes = json.loads(OUTCOMES.read_text(encoding="utf-8")).values()
    values = {name for outcome in outcomes for name in outcome["found"].get("values", {})}
    assert len(values) > 20
    assert sorted(name for name in values if metrics.of_value(name) is None) == []


def test_a_value_is_described_by_its_own_metric() -> None:
    metric = load_metrics().of_value("draft_hidden")
    assert metric is not None
    assert (metric.heading, metric.unit, metric.scale, metric.group) == (
        "Drafting hidden",
        "%",
        100,
        "latency",
    )
    assert load_metrics().of_value("decode_speed") is None  # a ratio of two values
    assert load_metrics().of_value("served_accuracy") is None  # another name for `accuracy`


def test_a_name_with_a_star_stands_for_all_that_begin_so() -> None:
    metric = load_metrics().find("accuracy_GMail")
    assert (metric.heading, metric.value, metric.unit) == ("Accuracy, GMail", "accuracy_GMail", "%")
    assert load_metrics().find("accuracy_stderr").heading == "Its standard error"


def test_an_unknown_metric_is_answered_with_near_ones() -> None:
    with pytest.raises(InputError, match=r"no metric 'ttf'\. Did you mean ttft"):
        load_metrics().find("ttf")


def test_a_package_adds_metrics(tmp_path: Path) -> None:
    mine = folder(tmp_path, mine="hops: {heading: Hops, unit: hops, definition: jumps of a frog}")
    metrics = load_metrics([conf_dir(), mine])
    assert metrics.find("hops").group == "mine"
    assert "ttft" in metrics


def test_a_metric_that_two_files_define_is_an_error_at_home_and_a_warning_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = "ttft: {heading: First, definition: mine}"
    with pytest.raises(InputError, match=r"metric 'ttft' .*one\.yaml and in .*two\.yaml"):
        load_metrics([folder(tmp_path / "home", one=first, two=first)])
    mine = folder(tmp_path / "away", mine=first + "\nhops: {heading: Hops, definition: jumps}")
    metrics = load_metrics([conf_dir(), mine])
    assert metrics["ttft"].heading != "First"
    assert "hops" in metrics
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: metric 'ttft' is defined twice: in ")
    assert warning.endswith("mine.yaml; the second is left out")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hops: {heading: Hops}", "the field 'definition' is lacking"),
        ("hops: {heading: Hops, definition: d, colour: red}", "no field 'colour'"),
        ("hops: {heading: Hops, definition: d, total: hops}", "either `value`, or `total` and `per`"),
        ("- hops", "must be a mapping"),
        ("hops: {", "is not YAML"),
    ],
)
def test_a_broken_file_is_an_error_at_home_and_a_warning_elsewhere(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = folder(tmp_path, mine=text)
    with pytest.raises(InputError, match=reason):
        load_metrics([mine])
    metrics = load_metrics([conf_dir(), mine])
    assert "hops" not in metrics
    assert "ttft" in metrics
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: {mine / 'metric' / 'mine.yaml'} is left out")
