"""Errors over a paper's tables: trivial figures, headlines, alternatives, what the files of them must be."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from invented_tables import CELLS, cell
from repro import commands
from repro.core.errors import InputError
from repro.core.paths import conf_dir, project_root
from repro.reports.comparison.comparison import Comparison, Figure, Published
from repro.reports.fidelity.errata import read_errata, write_errata
from repro.reports.fidelity.evidence import (
    Alternative,
    ClaimReading,
    PaperChoice,
    envelop,
    read_choices,
    read_headlines,
    read_reasons,
    readings,
)
from repro.reports.fidelity.skill import TrivialPredictor, read_floors
from repro.reports.reference.reference import PublishedCell, load_cells


def timed(name: str, value: float, unit: str = "s", **texts: str) -> PublishedCell:
    """A printed time of a model of two billion weights for 1,000 tokens."""
    usual = {"metric": "e2e_latency", "model": "A-2B", "condition": "prompt_length=1000"}
    return cell(f"edgellm.table1.{name}", value, value, unit, **{**usual, **texts})


def beside(published: PublishedCell, *ours: float) -> Comparison:
    ends = Published(published.id, published.value_low, published.value_high)
    return Comparison(published, ends, published.unit, tuple(map(Figure, ours)))


PRINTED = timed("printed", 2.0)
RATES: dict[str, Any] = {
    "rates": {"edgellm": timed("rate", 1000.0, "tokens/s", metric="prefill_throughput")},
    "spellings": {"edgellm": {"otherscpu": "others", "edgellm": "own"}},
}
"""An abstract's 1,000 tokens a second, and two engines."""

BASE = timed("base", 8.0, system="Others (CPU)")
OWN = timed("own", 1.5, model="B-4B", condition="prompt_length=400-600")
RATIO = cell("edgellm.fig1.a", 5.0, 5.0, relative_to="Others-CPU", metric="prefill_speedup")
CHAIN = timed("chain", 3.0, system="Chain", dataset="MBPP")
GSM8K = timed("other", 9.0, system="Chain", dataset="GSM8K")
TREE = timed("tree", 2.0, system="Tree", dataset="MBPP")
NEAR = timed("near", 10.0, device="phone")
FAR = timed("far", 99.0, device="board")
SHORT = timed("short", 4.0, system="Others", condition="prompt_length=500")
DECODE = timed("decode", 2.0, system="Others", metric="decode_latency", condition="output_length=10")
ANSWERED = timed("long", 9.0, system="Others", condition="prompt_length=1000; output_length=20")
READ = timed("read", 500.0, "ms", metric="weight_io_latency")
HALF = {"metric": "decode_throughput", "condition": "dram_fraction=0.5"}


@pytest.mark.parametrize(
    ("published", "fitted", "rule", "others", "value"),
    [
        # an engine of its own: twice the weights at the abstract's rate, never a baseline's time
        (OWN, [BASE], "nearest", RATES, 1.0),
        (OWN, [], "nearest", {**RATES, "weights": {"a2b": 1.2, "b4b": 3.0}}, 1.25),
        # a baseline: the nearest fitted time of its engine, by weights
        (timed("x", 20.0, model="B-4B", system="Others-CPU"), [OWN, BASE], "nearest", RATES, 16.0),
        # a ratio: 1,000 tokens a second over 1,000 in 8 seconds; 1 where no time is fitted
        (RATIO, [BASE], "nearest", RATES, 8.0),
        (RATIO, [], "nearest", RATES, 1.0),
        # a method: the printed baseline on the same dataset, which is no method itself
        (TREE, [], "nearest", {"baselines": {"edgellm": [GSM8K, CHAIN]}}, 3.0),
        (CHAIN, [], "nearest", {"baselines": {"edgellm": [GSM8K, CHAIN]}}, None),
        # a time by weights from the same device; of a size that no name says, and itself, is none
        (timed("y", 20.0, device="phone", model="LLaMA-13B"), [FAR, NEAR], "nearest", {}, 10 * 13 / 2),
        (timed("z", 20.0, model="T5-Large"), [NEAR], "nearest", {}, None),
        (NEAR, [NEAR], "nearest", {}, None),
        # by 500 tokens in 4 s, 1,000 take 8; by an answer of 10 tokens in 2 s, one of 20 takes 4
        (ANSWERED, [SHORT, DECODE], "lengths", {}, 12.0),
        # half of the weights in memory: two tokens in the time of one read
        (timed("half", 3.0, "tokens/s", **HALF), [READ], "bytes", {}, 4.0),
    ],
)
def test_a_trivial_figure_is_a_printed_one_by_weights_and_lengths(
    published: PublishedCell, fitted: list[PublishedCell], rule: str, others: Any, value: float | None
) -> None:
    trivial = TrivialPredictor(fitted, **others).compare(beside(published, 1.0), rule)
    assert (trivial and trivial.ours[0].value) == (None if value is None else pytest.approx(value))


def test_weights_are_those_of_the_layers() -> None:
    """Two of the five, from their published shapes: layers of (4 x 2048 + 3 x 5504) x 2048 weights, and
    of (2 x 2048 + 2 x 256 + 3 x 16384) x 2048 with Gemma's one key-value head."""
    headlines = read_headlines(conf_dir() / "reference" / "headlines.yaml", load_cells())
    known = {model: float(billions) for model, billions in headlines.weights.items()}
    assert known["Qwen1.5-1.8B"] == pytest.approx(24 * (4 * 2048 + 3 * 5504) * 2048 / 1e9, abs=5e-4)
    gemma = 18 * (2 * 2048 + 2 * 256 + 3 * 16384) * 2048 / 1e9
    assert known["Gemma-2B"] == pytest.approx(gemma, abs=5e-4)


WRONG_REASONS = (
    ("a: b", "must be a list of reasons"),
    ("[a]", "'a' must be a mapping"),
    ("[{why: x, ours: above}]", "needs either `id` or `rule`"),
    ("[{why: x, ours: up, id: edgellm.fig18.a}]", "above"),
    ("[{why: x, ours: above, id: edgellm.fig18.aa}]", "edgellm.fig18.a"),
    ("[{why: x, ours: above, rule: {papr: edgellm}}]", "Did you mean paper"),
    ("[{why: x, ours: above, rule: {paper: edgelm}}]", "no published cell has paper 'edgelm'"),
    ("[{why: x, ours: above, rule: {paper: lever, unit: ms}}]", "no published cell has paper lever"),
)


@pytest.mark.parametrize(
    ("read", "text", "sentence"),
    [
        (read_headlines, "systems: {edgellm: EdgLLM}\nclaims: []\n", "Did you mean EdgeLLM"),
        (read_floors, "id,low,high,where\nedgellm.text.range,,,a table\n", r"edgellm\.text\.range"),
        *((read_reasons, text, sentence) for text, sentence in WRONG_REASONS),
    ],
)
def test_a_wrong_file_is_said(read: Any, text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=sentence):
        read(tmp_path / "wrong", CELLS)


def test_every_contradiction_has_its_proof_in_the_errata() -> None:
    errata = read_errata(conf_dir() / "reference" / "errata.csv")
    proofs = {one.contradicted for one in load_cells().values()} - {""}
    assert len(proofs) > 5
    assert proofs <= {erratum.entry for erratum in errata}


def test_the_page_of_contradictions_is_made_of_the_errata(tmp_path: Path) -> None:
    """An id in braces stands for a published value, with `:high` for the upper end of its range."""
    reference, cells = conf_dir() / "reference", load_cells()
    errata = read_errata(reference / "errata.csv")
    systems = read_headlines(reference / "headlines.yaml", cells).systems
    page = write_errata(errata, cells, systems, tmp_path).read_text(encoding="utf-8")
    assert page == (project_root() / "results" / "errata.md").read_text(encoding="utf-8")
    assert "2.01 to 2.56 against 1.34 to 1.97" in page
    with pytest.raises(InputError, match="Did you mean edgellm"):
        write_errata([replace(errata[0], says="{edgellm.fig21.provisiona}")], cells, systems, tmp_path)


def test_every_claim_of_the_abstracts_is_a_headline_or_says_why_not() -> None:
    """The list was copied from the papers by hand; its numbers are held to the published values."""
    cells = load_cells()
    claims = {one.id for one in read_headlines(conf_dir() / "reference" / "headlines.yaml", cells).claims}
    with (conf_dir() / "reference" / "abstracts.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    for line in lines:
        ends = [float(line[end]) if line[end] else None for end in ("low", "high")]
        printed = cells[line["id"]]
        assert [printed.value_low, printed.value_high] == ends, line["id"]
        assert printed.unit == line["unit"]
        assert bool(line["headline"]) != bool(line["reason"]), line["id"]
        assert not line["headline"] or line["headline"] in claims
        if line["headline"]:
            shown = cells[line["headline"]]
            for own, other in zip(ends, (shown.value_low, shown.value_high), strict=True):
                assert own == other or round(other or 0, 1) == own, line["id"]
    own = {name for name, one in cells.items() if ".abstract." in name and not one.paper.endswith("_v2")}
    assert own <= {line["id"] for line in lines}
    assert {one.paper for one in cells.values() if not one.paper.endswith("_v2")} == {
        x["paper"] for x in lines
    }


def test_what_a_fit_determines_has_no_verdict_as_a_headline() -> None:
    cells = load_cells()
    claims = read_headlines(conf_dir() / "reference" / "headlines.yaml", cells).claims
    assert cells["mllm_npu.abstract.prefill_throughput"].determined
    assert cells["edgellm.table5.t5.squad.sti"].determined
    assert [one.id for one in claims if cells[one.id].determined] == ["mllm_npu.abstract.energy"]
    page = (project_root() / "results" / "fidelity.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if "30.7 times the energy" in line and "watts" in line]
    assert line.count("| fitted |") == 2, "its GPU's watts are fitted to a cell of its figure"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["edgelm"], "no paper 'edgelm'. Did you mean edgellm"),
        (["lever", "--results", "empty"], "make tables first"),
    ],
)
def test_the_command_says_what_is_not_there(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.run("errors", ["--results", str(project_root() / "results"), *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_choices_name_pages_and_tables_that_are_there() -> None:
    """Each headline rests on a choice, and each alternative with figures has its table."""
    cells, root = load_cells(), project_root() / "results"
    choices = read_choices(conf_dir() / "reference" / "choices.yaml", cells)
    others = readings(choices, root, cells)
    named = sum(len(other.figures) for choice in choices for other in choice.alternatives)
    assert sum(map(len, others.values())) == named >= 50, "an alternative's table is not made"
    claims = {claim.id for claim in read_headlines(conf_dir() / "reference" / "headlines.yaml", cells).claims}
    assert claims == {claim for choice in choices for claim in choice.claims}
    assert not [choice.says for choice in choices if not (project_root() / choice.says).is_file()]
    assert sum(choice.after_misses != "no" for choice in choices) >= 24, (
        "review found 24 that followed misses"
    )


@pytest.mark.parametrize(
    ("claim", "choice", "printed"),
    [
        # what readers from outside computed by the same overrides (referees.md, choices.md)
        ("mllm_npu.abstract.prefill_speedup", "mllm_npu_rate_from_abstract", (6.9, 7.4)),
        ("mllm_npu.abstract.prefill_speedup", "mllm_sessions_beyond_4gb", (11.0,)),
        ("mllm_npu.abstract.prefill_speedup", "mllm_average_rule", (12.4, 11.1)),
        ("mllm_npu.abstract.prefill_speedup", "mllm_order_of_subgraphs", (16.0, 17.4)),
        ("mllm_npu.abstract.prefill_speedup", "mllm_engine_forms", (16.5,)),
        ("mllm_npu.text.4_4.avg_loss", "mllm_quantization_reading", (-0.93,)),
        ("edgellm.abstract.speedup_max", "edgellm_draft_confidences", (5.27,)),
        ("elastilm.abstract.switch_overhead", "elastilm_pointer_cost", (8.5, 5.6, 26.3)),
        ("ghidorah.fig9.speedup_max", "ghidorah_padded_rows", (6.60,)),
    ],
)
def test_alternatives_are_what_readers_from_outside_computed(
    claim: str, choice: str, printed: tuple[float, ...]
) -> None:
    cells, root = load_cells(), project_root() / "results"
    choices = read_choices(conf_dir() / "reference" / "choices.yaml", cells)
    own = [other for other in readings(choices, root, cells)[claim] if other.choice.id == choice]
    values = [other.comparison.ours[0].value for other in own]
    for value in printed:
        assert any(other == pytest.approx(value, rel=0.01) for other in values), (value, values)


@pytest.mark.parametrize(
    ("ours", "others", "verdict"),
    [
        (3.0, [], "fails"),
        (3.0, [1.9], "undetermined"),
        (3.0, [0.5], "undetermined"),  # the statement lies between them
        (1.9, [1.9], "holds"),
        (0.5, [3.0], "undetermined"),
    ],
)
def test_a_verdict_is_over_the_least_and_the_most_of_the_alternatives(
    ours: float, others: list[float], verdict: str
) -> None:
    """A paper prints 2."""
    choice = PaperChoice("c", "edgellm", "", "yes", "", (), ())
    other = Alternative("other", absent="x")
    alternatives = [ClaimReading(choice, other, beside(PRINTED, value)) for value in others]
    assert envelop(beside(PRINTED, ours), alternatives).verdict == verdict
