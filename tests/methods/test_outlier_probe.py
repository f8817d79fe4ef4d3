"""The probe of outliers: what lies beyond a threshold, and figures of parts make those of all."""

from __future__ import annotations

import pytest
import torch

from repro.methods.probes import outliers
from repro.methods.probes.outliers import Outliers
from repro.models.analysis.activations import profile
from repro.models.analysis.hooks import PARTS, linears_of
from tiny import decoder

CORPUS = (tuple(range(8)), tuple(range(3, 11)))
TEXTS = (tuple(range(5, 21)),)


def look(**settings: float | str | None) -> dict[str, float]:
    found = Outliers(**{"quantile": 0.9, "tokens": 16, **settings}).look(decoder("vicuna"), CORPUS, TEXTS)  # type: ignore[arg-type]
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


def test_the_threshold_leaves_the_share_beyond_it_and_the_largest_is_at_least_as_large() -> None:
    corpus = [torch.tensor(text) for text in CORPUS]
    low, high = (profile(decoder("vicuna"), corpus, quantile) for quantile in (0.9, 1.0))
    for place, one in low.items():
        assert one.threshold < one.largest == high[place].threshold == high[place].largest
    counted = outliers.channels.count(decoder("vicuna"), {p: one.threshold for p, one in low.items()}, corpus)
    for one in counted.values():  # a token that the corpus has twice makes equals, which are not beyond
        assert 0.08 < outliers.channels.share_at_once([one]) <= 0.1


def test_parts_and_layers_are_means_of_the_whole() -> None:
    whole = look()
    assert whole["linears"] == len(list(linears_of(decoder("vicuna"))))
    for split in ([{"part": part} for part in PARTS], [{"depth": i / 3} for i in range(4)]):
        found = [look(**one) for one in split]
        assert sum(one["linears"] for one in found) == whole["linears"]
        for name in ("channels_at_once", "channels_a_pass", "importance", "bits"):
            assert sum(one[name] for one in found) / len(found) == pytest.approx(whole[name]), name


def test_a_copy_of_no_channel_saves_all_of_it_and_one_of_all_nothing() -> None:
    none, all_ = look(hot=0.0), look(hot=1.0)
    assert (none["copy_saved"], none["hot_outliers"]) == (1, 0)
    assert (all_["copy_saved"], all_["memory_saved"], all_["hot_outliers"]) == (0, 0, 1)
    assert 0 < none["memory_saved"] < 0.5
