"""What an error is worth: the best trivial rule's on the same cells, and the noise of the paper's numbers.

Owns the list of trivial rules, for error pages and validations alike. They know printed values and weights,
and nothing of any system.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from pathlib import Path
from statistics import geometric_mean, median

from repro.core.errors import InputError
from repro.reports.comparison.comparison import Comparison, Figure
from repro.reports.fidelity.evidence import Headlines
from repro.reports.reference.names import DisplayNames
from repro.reports.reference.reference import PublishedCell, find, select

RULES = {
    "nearest": "the nearest fitted cell, scaled by weights; a paper's own engine has the abstract's rate",
    "equal": "methods equal the printed baseline or the target's own text, and a part has no effect",
    "lengths": "the fitted cell of the nearest model, by weights and printed lengths of prompt and answer",
    "bytes": "bytes over bandwidth: the baseline's token, or one read of the weights, by the bytes read",
    "rate": "one rate an engine: the mean of its fitted cells, by weights and lengths",
    "mean": "the mean of all fitted cells of the metric, by weights and lengths",
}
"""The trivial rules, in the order in which one that has no figure is completed by the others."""

SIZE_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*B\b", re.IGNORECASE)
"""Billions of parameters in a model's name."""

COORDINATES = ("artifact", "device", "system", "dataset", "condition", "draft_model", "relative_to")
"""Fields by which a fitted cell is near a predicted one."""

GROWING_METRICS = ("energy", "memory")
"""Words of metrics that grow in proportion to a model's weights, as times do."""

UNIT_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "s/token": 1.0, "tokens/s": 1.0}
"""Units of times and rates, in seconds; of the last the reciprocal."""

TOKEN_UNITS = ("tokens/s", "s/token")
"""Units whose values are of one token."""

PHASE_METRICS = {
    "prompt": ("prefill_latency", "prefill_throughput", "e2e_latency", "npu_execution"),
    "token": ("decode_latency", "decode_throughput", "per_token_latency", "generation_latency"),
}
"""Metrics of times that go over the tokens of the prompt, or of the answer."""

LENGTH_CONDITIONS = {"prompt": "prompt_length", "token": "output_length"}
"""The conditions that have their numbers."""

READ_METRICS = ("io_latency", "verification_latency")
"""Metrics of a fitted read of the weights, the better one first."""

RETENTION_METRICS = ("retention", "kept")
"""Words of metrics that are 100% where a part has no effect."""


@dataclass(frozen=True)
class TrivialPredictor:
    """The rules with what they may read: cells that a fit used, and printed values.

    Attributes:
        fitted: published cells that a fit used.
        rates: of a paper whose system is an engine of its own, the abstract's rate in tokens a second.
        baselines: of a paper whose system is a method, the printed baseline that all methods equal.
        spellings: by paper, the engine that each spelling of a system means.
        weights: weights of models by plain name, in one unit, where names say another number or none.
    """

    fitted: Sequence[PublishedCell] = ()
    rates: Mapping[str, PublishedCell] = field(default_factory=dict)
    baselines: Mapping[str, Sequence[PublishedCell]] = field(default_factory=dict)
    spellings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)

    def compare(self, comparison: Comparison, rule: str = "nearest") -> Comparison | None:
        """The comparison with a rule's figure in place of ours; None if no rule has one.

        Where a rule has no figure, the first one that has is taken.
        """
        for name in (rule, *RULES):
            if (value := self.figure(comparison, name)) is not None:
                return replace(comparison, ours=(Figure(value),), certain="", n=None)
        return None

    def value(self, cell: PublishedCell, rule: str) -> float | None:
        """A cell's value by a rule, in the cell's unit; None if it has none."""
        match rule:
            case "equal":
                return 100.0 if cell.metric == "rouge_l" else self._infer(self._baselines(cell), cell, False)
            case "bytes":
                return self._by_bytes(cell)
            case "mean":
                return self._mean(self._pool(cell), cell)
            case "rate":
                return self._mean(self.of_engine(cell) or self._sources(cell), cell)
        return self._infer(self._sources(cell), cell, by_length=rule == "lengths")

    def scale(self, peer: PublishedCell, cell: PublishedCell, by_length: bool = True) -> float | None:
        """A cell's value from another one's, by weights and maybe lengths; None if these are not known."""
        ratio, value = self._size_ratio(cell.model, peer.model), _middle(peer)
        if cell.unit not in UNIT_SECONDS:
            is_growing = any(word in cell.metric for word in GROWING_METRICS) and cell.unit not in ("x", "%")
            return value * ratio if ratio and is_growing else value if not is_growing else None
        token_units_differ = (peer.unit in TOKEN_UNITS) != (cell.unit in TOKEN_UNITS)
        if by_length or token_units_differ:
            tokens, peer_tokens = _tokens(cell), _tokens(peer)
            if tokens and peer_tokens:
                ratio *= tokens / peer_tokens
            elif token_units_differ:
                return None
        return _in_unit(_seconds(peer) * ratio, cell.unit) if ratio else None

    def figure(self, comparison: Comparison, rule: str) -> float | None:
        """A rule's figure in the unit of ours; None if it has none."""
        cell, low = comparison.cell, comparison.cell.value_low
        if cell.relative_to and rule != "equal" and (ratio := self._quotient(comparison, rule)) is not None:
            return ratio
        if cell.relative_to and rule == "equal" and cell.metric != "rouge_l":
            is_retained = any(word in cell.metric for word in RETENTION_METRICS)
            return {"x": 1.0, "%": 100.0 * is_retained, "percentage_point": 0.0}.get(comparison.unit)
        value, printed_low = self.value(cell, rule), comparison.published.low
        return None if value is None or printed_low is None or not low else value * printed_low / low

    def _quotient(self, comparison: Comparison, rule: str) -> float | None:
        """A ratio of two engines' times by a rule, at the model of a fitted time of the other engine."""
        cell, rate = comparison.cell, self.rates.get(comparison.cell.paper)
        engine, base_engine = self._engine(cell, cell.system), self._engine(cell, cell.relative_to)
        if comparison.unit != "x" or not rate or not base_engine or engine == base_engine:
            return None
        if not cell.metric.endswith(("speedup", "reduction")) or rule not in ("nearest", "rate"):
            return None
        peers = [
            peer
            for peer in self.fitted
            if self._engine(peer, peer.system) == base_engine and _version(peer) == _version(cell)
            if _phase(peer) == "prompt" and _tokens(peer)
        ]
        if rule == "nearest" and peers:
            peers = [max(peers, key=lambda peer: (peer.model == cell.model, *_nearness(peer, cell)))]
        ratios = [
            _seconds(peer) / (_tokens(peer) or 1.0) * _middle(rate) * self._size_ratio(rate.model, peer.model)
            for peer in peers
        ]
        return geometric_mean(ratios) if ratios else None

    def _by_bytes(self, cell: PublishedCell) -> float | None:
        """Memory of 8-bit weights; or a token by the bytes that are read for it."""
        if cell.unit == "GB":
            return _size(cell.model) if "INT8 weights" in cell.condition else None
        share = 1 - float(cell.conditions.get("dram_fraction") or 0)
        if _phase(cell) != "token" or share <= 0 or cell.unit not in TOKEN_UNITS:
            return None
        value = self._infer(self._baselines(cell), cell, False)
        if value is None:
            value = self._one_read(cell)
        return value if value is None else value / share if cell.unit == "tokens/s" else value * share

    def _one_read(self, cell: PublishedCell) -> float | None:
        """A token in the time of the nearest fitted read of a whole model, by weights."""
        candidates = [peer for peer in self.fitted if _version(peer) == _version(cell)]
        candidates = [peer for peer in candidates if self._size_ratio(cell.model, peer.model)]
        cells_by_metric = [
            [peer for peer in candidates if peer.metric.endswith(metric)] for metric in READ_METRICS
        ]
        read_cells = next(filter(None, cells_by_metric), [])
        if not read_cells:
            return None
        read_cell = max(read_cells, key=lambda peer: (peer.device == cell.device, *_nearness(peer, cell)))
        return _in_unit(_seconds(read_cell) * self._size_ratio(cell.model, read_cell.model), cell.unit)

    def _infer(self, pool: Sequence[PublishedCell], cell: PublishedCell, by_length: bool) -> float | None:
        """From the nearest of some cells: by what is printed of them, or by weights and lengths first."""

        def closeness(peer: PublishedCell) -> tuple[float, ...]:
            model_gap = -abs(log(self._size_ratio(cell.model, peer.model) or 1e9))
            matches, number_gap = _nearness(peer, cell)
            return (model_gap, number_gap, matches) if by_length else (matches, model_gap, number_gap)

        candidates = [peer for peer in pool if self.scale(peer, cell, by_length) is not None]
        value = self.scale(max(candidates, key=closeness), cell, by_length) if candidates else None
        return value if value is None or not by_length else value + self._answer(cell)

    def _answer(self, cell: PublishedCell) -> float:
        """What a request of a printed answer takes beside its prompt; 0 if no decoding was fitted."""
        if cell.metric != "e2e_latency" or LENGTH_CONDITIONS["token"] not in cell.conditions:
            return 0.0
        decoding = replace(cell, metric="decode_latency")
        return self._infer(self._sources(decoding), decoding, True) or 0.0

    def _mean(self, pool: Sequence[PublishedCell], cell: PublishedCell) -> float | None:
        values = [value for peer in pool if (value := self.scale(peer, cell)) is not None and value > 0]
        return geometric_mean(values) + self._answer(cell) if values else None

    def _sources(self, cell: PublishedCell) -> list[PublishedCell]:
        """All comparable fitted cells; of a paper with engines those of the cell's, or of a part the rate."""
        rate = self.rates.get(cell.paper)
        if rate is None:
            return self._pool(cell)
        is_foreign_prompt = _phase(cell) == "prompt" and not self._engine(cell, cell.system)
        return self.of_engine(cell) or ([rate] if is_foreign_prompt else self._pool(cell))

    def _pool(self, cell: PublishedCell) -> list[PublishedCell]:
        """Fitted cells of the same phase, or of the same metric and unit."""
        return [peer for peer in self.fitted if peer.id != cell.id and _is_comparable(peer, cell)]

    def of_engine(self, cell: PublishedCell) -> list[PublishedCell]:
        """Fitted cells of the cell's engine; the abstract's rate for prompts of a paper's own engine."""
        engine, rate = self._engine(cell, cell.system), self.rates.get(cell.paper)
        if rate and _phase(cell) == "prompt" and engine == self._engine(rate, rate.system):
            return [rate]
        return [peer for peer in self._pool(cell) if engine and self._engine(peer, peer.system) == engine]

    def _baselines(self, cell: PublishedCell) -> list[PublishedCell]:
        baselines = self.baselines.get(cell.paper, ())
        return [base for base in baselines if base.system != cell.system and _is_comparable(base, cell)]

    def _size_ratio(self, model: str, other: str) -> float:
        """How many times as heavy one model is as another; 0 if that of one is not known."""
        if model == other:
            return 1.0
        listed = all(plain_name(name) in self.weights for name in (model, other))
        size, base = (self.weights[plain_name(name)] if listed else _size(name) for name in (model, other))
        return size / base if size and base else 0.0

    def _engine(self, cell: PublishedCell, system: str) -> str:
        """The engine that a system means; of a paper without engines of its own the system."""
        engines = self.spellings.get(cell.paper, {})
        return engines.get(plain_name(system), "" if cell.paper in self.rates else plain_name(system))


def trivial_predictor(
    cells: Mapping[str, PublishedCell], fitted_ids: Collection[str], headlines: Headlines, names: DisplayNames
) -> TrivialPredictor:
    """The predictor of all papers; `fitted_ids` are ids of cells that a fit used."""
    spellings = {
        paper: {plain_name(text): engine for text, engine in names.spellings(paper, "method").items()}
        for paper in headlines.rates
    }
    return TrivialPredictor(
        fitted=[cells[name] for name in sorted(fitted_ids) if name in cells and not cells[name].determined],
        rates={paper: cells[name] for paper, name in headlines.rates.items()},
        baselines={
            paper: select(cells, paper=paper, system=system) for paper, system in headlines.baselines.items()
        },
        spellings=spellings,
        weights={plain_name(model): float(billions) for model, billions in headlines.weights.items()},
    )


def plain_name(system: str) -> str:
    """A system's name without what papers spell differently: `llama.cpp (CPU)` as `llama.cpp-CPU`."""
    return re.sub(r"[^a-z0-9]", "", system.lower())


def _version(cell: PublishedCell) -> str:
    return cell.paper.removesuffix("_v2")


def _phase(cell: PublishedCell) -> str:
    """Over which tokens a time goes; its metric if it is another one."""
    phases = (name for name, metrics in PHASE_METRICS.items() if any(m in cell.metric for m in metrics))
    return next(phases, cell.metric) if cell.unit in UNIT_SECONDS else cell.metric


def _is_comparable(peer: PublishedCell, cell: PublishedCell) -> bool:
    same_unit = peer.unit == cell.unit or (peer.unit in UNIT_SECONDS and cell.unit in UNIT_SECONDS)
    has_values = peer.value_low is not None and peer.value_high is not None
    return has_values and same_unit and _version(peer) == _version(cell) and _phase(peer) == _phase(cell)


def _size(model: str) -> float | None:
    """Billions of parameters; None if the name does not say."""
    match = SIZE_PATTERN.search(model)
    return float(match[1]) if match else None


def _middle(cell: PublishedCell) -> float:
    """A printed value; of a range the geometric middle, of a bound the bound."""
    ends = {end for end in (cell.value_low, cell.value_high) if end}
    return geometric_mean(ends) if len(ends) == 2 else next(iter(ends), 0.0)


def _seconds(cell: PublishedCell) -> float:
    """A time in seconds, or the seconds that a rate takes for a token."""
    value = _middle(cell) * UNIT_SECONDS[cell.unit]
    return 1 / value if cell.unit == "tokens/s" else value


def _in_unit(seconds: float, unit: str) -> float:
    return 1 / seconds if unit == "tokens/s" else seconds / UNIT_SECONDS[unit]


def _tokens(cell: PublishedCell) -> float | None:
    """Tokens that a time is of, of a range the middle; 1 of a rate, None if they are not printed."""
    if cell.unit in TOKEN_UNITS:
        return 1.0
    length_text = cell.conditions.get(LENGTH_CONDITIONS.get(_phase(cell), ""), "")
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", length_text)
    return (float(match[1]) + float(match[2] or match[1])) / 2 if match else None


def _nearness(peer: PublishedCell, cell: PublishedCell) -> tuple[float, float]:
    """How many printed fields two cells share; how near the printed numbers of their conditions are."""
    match_count = sum(getattr(peer, name) == getattr(cell, name) for name in COORDINATES)
    pairs = [_numbers(peer, cell, key) for key in peer.conditions.keys() & cell.conditions.keys()]
    return match_count, -sum(
        abs(log(number / peer_number)) for number, peer_number in pairs if number and peer_number
    )


def _numbers(peer: PublishedCell, cell: PublishedCell, key: str) -> tuple[float, float]:
    """The first numbers of a condition of two cells; 0 without one."""
    numbers = [re.match(r"\d+(?:\.\d+)?", c.conditions[key]) for c in (peer, cell)]
    first, second = (float(match[0]) if match else 0.0 for match in numbers)
    return first, second


@dataclass(frozen=True)
class Skill:
    """Our median error beside a rule's, over the comparisons for which a rule has a figure."""

    rule: str
    n: int
    ours: float
    trivial: float

    @property
    def value(self) -> float:
        """1 less the ratio of the medians."""
        return 1 - self.ours / self.trivial


def skill(
    comparisons: Sequence[Comparison], predictor: TrivialPredictor, rules: Collection[str] = tuple(RULES)
) -> Skill | None:
    """Our median error beside that of the rule with the smallest one; None without a rule's figure.

    Of rules with the same median that one is named which has the most figures of its own.
    """
    predictable = [c for c in comparisons if c.error is not None and predictor.compare(c)]
    if not predictable:
        return None
    ranks = {
        rule: (
            _median([trivial for c in predictable if (trivial := predictor.compare(c, rule))]),
            -sum(predictor.figure(c, rule) is not None for c in predictable),
        )
        for rule in rules
    }
    best = min(rules, key=lambda rule: ranks[rule])
    return Skill(best, len(predictable), _median(predictable), ranks[best][0]) if ranks[best][0] else None


def _median(comparisons: Sequence[Comparison]) -> float:
    """Median of the errors' sizes; 0 of none."""
    errors = [abs(c.error) for c in comparisons if c.error is not None]
    return median(errors) if errors else 0.0


def read_floors(path: Path, cells: Mapping[str, PublishedCell]) -> dict[str, float]:
    """How far the paper's own other numbers are from printed values, relative, by id.

    The file has the id, the other number or range, and where it stands.

    Raises:
        InputError: an id is no published cell, or a number is missing.
    """
    floors: dict[str, float] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            cell = find(cells, line["id"])
            try:
                low, high = float(line["low"]), float(line["high"] or line["low"])
            except ValueError as wrong:
                raise InputError(f"{path.name}, {line['id']}: {wrong}") from None
            floors[cell.id] = _difference(cell, low, high)
    return floors


def _difference(cell: PublishedCell, low: float, high: float) -> float:
    """The farther relative difference of the ends; a bound is taken as a value."""
    ends = ((cell.value_low, low), (cell.value_high, high))
    return max(abs(floor / printed - 1) for printed, floor in ends if printed)
