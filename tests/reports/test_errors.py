"""Errors over a paper's tables: what counts, why it misses, what it is worth; the page over all papers."""

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import records
from invented_tables import BIBTEX, CELLS, cell, spec, write_table, write_tables
from repro import commands
from repro.core.errors import InputError
from repro.core.paths import conf_dir, project_root
from repro.reports.claims.claims_page import write_claims
from repro.reports.comparison.comparison import Compared, Figure
from repro.reports.comparison.published import Published
from repro.reports.fidelity.choices import (
    Alternative,
    ClaimReading,
    PaperChoice,
    enveloped,
    read_choices,
    readings,
)
from repro.reports.fidelity.coverage import coverage, unnamed
from repro.reports.fidelity.errors_page import Evidence, report
from repro.reports.fidelity.fidelity_page import write_fidelity
from repro.reports.fidelity.headlines import read_headlines
from repro.reports.fidelity.reading import Comparisons, read_comparisons
from repro.reports.fidelity.reasons import read_reasons
from repro.reports.fidelity.skill import Skill, TrivialPredictor, read_floors, skill
from repro.reports.fidelity.winners import one_rate, orders, our_figure, races
from repro.reports.reference.reference import PublishedCell, load_cells


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: b", "must be a list of reasons"),
        ("[a]", "'a' must be a mapping"),
        ("[{why: x, ours: above}]", "needs either `id` or `rule`"),
        ("[{why: x, ours: up, id: edgellm.fig18.a}]", "above"),
        ("[{why: x, ours: above, id: edgellm.fig18.aa}]", "edgellm.fig18.a"),
        ("[{why: x, ours: above, rule: {papr: edgellm}}]", "Did you mean paper"),
        ("[{why: x, ours: above, rule: {paper: edgelm}}]", "no published cell has paper 'edgelm'"),
        ("[{why: x, ours: above, rule: {paper: lever, unit: ms}}]", "no published cell has paper lever"),
    ],
)
def test_a_wrong_reason_is_said(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "reasons.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=sentence):
        read_reasons(tmp_path / "reasons.yaml", CELLS)


def timed(model: str, value: float, name: str = "edgellm.table1.a", **texts: str) -> PublishedCell:
    return cell(name, value, value, "s", metric="e2e_latency", model=model, **texts)


def beside(published: PublishedCell, *ours: float) -> Compared:
    ends = Published(published.id, published.value_low, published.value_high)
    return Compared(published, ends, published.unit, tuple(map(Figure, ours)))


def of_engine(name: str, value: float, unit: str = "s", **texts: str) -> PublishedCell:
    texts = {"metric": "e2e_latency", "model": "A-2B", "condition": "prompt_length=1000"} | texts
    return cell(f"edgellm.table1.{name}", value, value, unit, **texts)


def width(number: int, value: float) -> PublishedCell:
    texts = {"metric": "acceptance_length", "condition": f"width={number}"}
    return cell(f"edgellm.table1.w{number}", value, value, "tokens/step", **texts)


RATES: dict[str, Any] = {
    "rates": {"edgellm": of_engine("rate", 1000.0, "tokens/s", metric="prefill_throughput")},
    "spellings": {"edgellm": {"otherscpu": "others", "edgellm": "own"}},
}
"""An abstract's 1,000 tokens a second of a model of two billion, and two engines."""

BASE = of_engine("base", 8.0, system="Others (CPU)")
OWN = of_engine("own", 1.5, model="B-4B", condition="prompt_length=400-600")
PART = of_engine("part", 300.0, "tokens/s", metric="prefill_throughput", system="a part")
RATIO = cell("edgellm.fig1.a", 5.0, 5.0, relative_to="Others-CPU", metric="prefill_speedup")
CHAIN = timed("LLaMA-7B", 3.0, "edgellm.table1.chain", system="Chain", dataset="MBPP")
GSM8K = timed("LLaMA-7B", 9.0, "edgellm.table1.other", system="Chain", dataset="GSM8K")
TREE = timed("LLaMA-7B", 2.0, "edgellm.table1.tree", system="Tree", dataset="MBPP")
NEAR = timed("LLaMA-7B", 10.0, "edgellm.table1.near", device="phone")
FAR = timed("LLaMA-7B", 99.0, "edgellm.table1.far", device="board")
SHORT = of_engine("short", 4.0, system="Others", condition="prompt_length=500")
DECODE = of_engine("decode", 2.0, system="Others", metric="decode_latency", condition="output_length=10")
LONG = of_engine("long", 9.0, system="Others")
ANSWERED = replace(LONG, condition="prompt_length=1000; output_length=20")
READ = cell("edgellm.table1.read", 500.0, 500.0, "ms", metric="weight_io_latency", model="A-2B")
HALF = {"metric": "decode_throughput", "model": "A-2B", "condition": "dram_fraction=0.5"}


class TestSkill:
    @pytest.mark.parametrize(
        ("published", "fitted", "rule", "others", "value"),
        [
            # an engine of its own: twice the weights at the abstract's rate, never a baseline's time
            (OWN, [BASE], "nearest", RATES, 1.0),
            (OWN, [], "nearest", {**RATES, "weights": {"a2b": 1.2, "b4b": 3.0}}, 1.25),
            (PART, [BASE], "nearest", RATES, 1000.0),
            # a baseline: the nearest fitted time of its engine, by weights
            (of_engine("x", 20.0, model="B-4B", system="Others-CPU"), [OWN, BASE], "nearest", RATES, 16.0),
            # a ratio: 1,000 tokens a second over 1,000 in 8 seconds; 1 where no time is fitted
            (RATIO, [BASE], "nearest", RATES, 8.0),
            (RATIO, [], "nearest", RATES, 1.0),
            (cell("edgellm.fig1.a", 4.0, 4.0, relative_to="Std"), [], "nearest", {}, 1.0),
            # a method: the printed baseline on the same dataset, which is no method itself
            (TREE, [], "nearest", {"baselines": {"edgellm": [GSM8K, CHAIN]}}, 3.0),
            (CHAIN, [], "nearest", {"baselines": {"edgellm": [GSM8K, CHAIN]}}, None),
            # a time by weights from the same device; of a size that no name says, and itself, is none
            (timed("LLaMA-13B", 20.0, device="phone"), [FAR, NEAR], "nearest", {}, 10 * 13 / 7),
            (timed("T5-Large", 20.0), [NEAR], "nearest", {}, None),
            (NEAR, [NEAR], "nearest", {}, None),
            (width(16, 3.1), [width(2, 1.7), width(4, 2.4)], "nearest", {}, 2.4),
            # by 500 tokens in 4 s, 1,000 take 8; by an answer of 10 tokens in 2 s, one of 20 takes 4
            (LONG, [SHORT, DECODE], "lengths", {}, 8.0),
            (ANSWERED, [SHORT, DECODE], "lengths", {}, 12.0),
            # half of the weights in memory: two tokens in the time of one read
            (cell("edgellm.table1.x", 3.0, 3.0, "tokens/s", **HALF), [READ], "bytes", {}, 4.0),
        ],
    )
    def test_the_trivial_figure(
        self,
        published: PublishedCell,
        fitted: list[PublishedCell],
        rule: str,
        others: dict[str, Any],
        value: float | None,
    ) -> None:
        trivial = TrivialPredictor(fitted, **others).compared(beside(published, 1.0), rule)
        assert (trivial and trivial.ours[0].value) == (None if value is None else pytest.approx(value))

    def test_weights_are_those_of_the_layers(self) -> None:
        """Two of the five, from their published shapes: layers of (4 x 2048 + 3 x 5504) x 2048 weights, and
        of (2 x 2048 + 2 x 256 + 3 x 16384) x 2048 with Gemma's one key-value head."""
        headlines = read_headlines(conf_dir() / "reference" / "headlines.yaml", load_cells())
        known = {model: float(billions) for model, billions in headlines.weights.items()}
        assert known["Qwen1.5-1.8B"] == pytest.approx(24 * (4 * 2048 + 3 * 5504) * 2048 / 1e9, abs=5e-4)
        gemma = 18 * (2 * 2048 + 2 * 256 + 3 * 16384) * 2048 / 1e9
        assert known["Gemma-2B"] == pytest.approx(gemma, abs=5e-4)

    def test_skill_is_against_the_best_rule_over_what_has_one(self) -> None:
        ours = [beside(timed("LLaMA-7B", 10.0), 11.0), beside(timed("T5-Large", 10.0), 99.0)]
        near = timed("LLaMA-7B", 12.0, "edgellm.table1.near", dataset="MBPP")
        far = timed("LLaMA-7B", 19.2, "edgellm.table1.far")
        here = beside(replace(ours[0].cell, dataset="MBPP"), 11.0)
        worth = skill([here, ours[1]], TrivialPredictor([near, far]))
        assert worth == Skill("nearest", 1, pytest.approx(0.1), pytest.approx(0.2))
        assert worth.value == pytest.approx(0.5)
        assert skill(ours, TrivialPredictor()) is None

    def test_a_floor_is_how_far_the_paper_is_from_itself(self, tmp_path: Path) -> None:
        """From 2.9 to 9.3 it printed 2.9 to 18.6 elsewhere, and 1.5 beside its 3."""
        path = tmp_path / "contradictions.csv"
        for range_ends, floor in (("2.9,18.6", 1.0), ("2.9,9.3", 0.0), (",", None)):
            other = "edgellm.text.over,1.5,,a figure\n"
            text = f"id,low,high,where\nedgellm.text.range,{range_ends},a table\n{other}"
            path.write_text(text, encoding="utf-8")
            if floor is None:
                with pytest.raises(InputError, match=r"edgellm\.text\.range"):
                    read_floors(path, CELLS)
            else:
                floors = {"edgellm.text.range": pytest.approx(floor), "edgellm.text.over": pytest.approx(0.5)}
                assert read_floors(path, CELLS) == floors


def test_every_contradiction_has_its_proof_in_the_errata() -> None:
    entries = re.findall(
        r"\*\*(.+?)\.\*\*", (project_root() / "docs" / "errata.md").read_text(encoding="utf-8")
    )
    proofs = {one.contradicted for one in load_cells().values()} - {""}
    assert len(proofs) > 5
    assert proofs <= set(entries)


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


def seconds_of(system: str, printed: float, ours: float, model: str = "LLaMA-7B") -> Compared:
    return beside(timed(model, printed, f"edgellm.table1.{system}{model}", system=system), ours)


EDGELLM, SP = seconds_of("EdgeLLM", 1.0, 2.0), seconds_of("SP", 3.0, 1.5)


def test_winners() -> None:
    (race,) = races([EDGELLM, SP, seconds_of("Std", 9.0, 8.0), seconds_of("STI", 9.05, 1.0)])
    found = orders([race], "EdgeLLM", our_figure)
    assert (found.agree, found.pairs, found.first, found.races) == (2, 5, 0, 1), "a printed tie is no pair"
    assert found.wrong == {"EdgeLLM and SP": 1, "EdgeLLM and STI": 1, "SP and STI": 1}
    assert orders([race], "SP", our_figure).races == 0, "the paper has another first"
    assert orders(races([replace(EDGELLM, ours=(Figure(0.5),)), SP]), "EdgeLLM", our_figure).first == 1
    fitted = races([replace(one, marks=("fitted",)) for one in (EDGELLM, SP)])
    assert orders(fitted, "EdgeLLM", our_figure).pairs == 0
    assert races([EDGELLM]) == races([replace(EDGELLM, certain="lossless"), SP]) == []


def test_one_rate_a_system_is_of_another_workload() -> None:
    """By the 13B's 2 s against 3 the 7B's order is the paper's; half the weights take half the time."""
    seconds = {("EdgeLLM", "A-7B"): 1.5, ("SP", "A-7B"): 1.2, ("EdgeLLM", "A-14B"): 2.0, ("SP", "A-14B"): 3.0}
    found = races([seconds_of(system, printed, 1.0, model) for (system, model), printed in seconds.items()])
    value = one_rate(found, TrivialPredictor())
    first = next(race for race in found if race.runners[0].cell.model == "A-7B")
    assert [value(runner) for runner in first.runners] == [pytest.approx(1.0), pytest.approx(1.5)]
    assert orders(found, "EdgeLLM", value).agree == 0


def compared(folder: Path) -> Comparisons:
    """A prediction, a fitted cell, a bound and an absent one in a table; claims beside them."""
    write_tables(folder)
    lines = []
    for name, ours, marks in (("fig18.a", 1.8, ""), ("fig18.b", 1.5, "fitted"), ("text.up_to", 1.5, "")):
        low, high = CELLS[f"edgellm.{name}"].value_low, CELLS[f"edgellm.{name}"].value_high
        ends = {"published_low": "" if low is None else low, "published_high": high}
        lines.append({"id": name, "reference": f"edgellm.{name}", "ours": ours, "marks": marks, **ends})
    lines.append({"id": "t5", "reference": "edgellm.table4.t5.draft", "ours": "", "published_low": 20})
    write_table(folder, "edgellm/fig18", *({"column": "c", "cell": line["id"], **line} for line in lines))
    write_claims(spec(), folder, CELLS, BIBTEX)
    return read_comparisons(folder, CELLS)


def test_the_page_over_all_papers(tmp_path: Path) -> None:
    """A choice made after a loss, with an alternative under which the first claim is met by 1.9."""
    found = compared(tmp_path)
    counts = coverage(CELLS, found, []).loc["edgellm"]
    assert {status: n for status, n in counts.items() if n} == {
        **{"predicted": 3, "bound": 1, "fitted": 2, "absent": 2, "unnamed": 1}
    }
    assert unnamed(CELLS, found) == ["edgellm.table4.mt5.draft", "lever.text.other"]
    line = {"id": "cpu", "column": "over", "ours": 1.9, "unit": "x", "marks": "", "reference": ""}
    write_table(tmp_path, "edgellm/placement", line)
    choices_file, headlines_file = tmp_path / "choices.yaml", tmp_path / "headlines.yaml"
    choices_file.write_text(
        "choices:\n"
        "  placement: {paper: edgellm, chosen: on the NPU, after_misses: 'yes', says: docs, "
        "claims: [edgellm.text.single], alternatives: ["
        "{name: on the CPU, overrides: engine.verifies=cpu, "
        "figures: {edgellm.text.single: {tables: edgellm/placement, columns: over}}}, "
        "{name: on the GPU, absent: no engine}]}\n",
        encoding="utf-8",
    )
    headlines_file.write_text(
        "systems: {edgellm: EdgeLLM}\n"
        "claims: [{id: edgellm.text.single, says: twice as fast}, "
        "{id: edgellm.text.range, says: much faster}]\n",
        encoding="utf-8",
    )
    headlines, choices = read_headlines(headlines_file, CELLS), read_choices(choices_file, CELLS)
    nothing = Evidence((), {}, TrivialPredictor())
    reports, run = [report("edgellm", found, CELLS, nothing)], records.record("std", {"prompts": 3})
    others = readings(choices, tmp_path, CELLS)
    path = write_fidelity(reports, found, CELLS, headlines, choices, others, [run], [run.key], {}, tmp_path)
    text = path.read_text(encoding="utf-8")
    assert "Of 2, over all alternatives: 1 undetermined, 1 holds; as chosen: 1 fails, 1 holds; alone:" in text
    decided = "`placement` (on the CPU: 1.9, holds)"
    assert f"| 50% above | fails | fails | 1.9–3 × | undetermined | {decided} |" in text
    headlines_file.write_text("systems: {edgellm: EdgLLM}\nclaims: []\n", encoding="utf-8")
    with pytest.raises(InputError, match="Did you mean EdgeLLM"):
        read_headlines(headlines_file, CELLS)


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


def test_a_verdict_is_over_the_least_and_the_most_of_the_alternatives() -> None:
    """A paper prints 2: ours fails at 3, an alternative holds at 1.9, another fails on the other side."""

    def at(value: float) -> Compared:
        return beside(timed("LLaMA-7B", 2.0), value)

    choice = PaperChoice("c", "edgellm", "", "yes", "", (), ())
    near, beyond = (ClaimReading(choice, Alternative("other", absent="x"), at(value)) for value in (1.9, 0.5))
    for ours, others, verdict in (
        (3.0, [], "fails"),
        (3.0, [near], "undetermined"),
        (3.0, [beyond], "undetermined"),  # the statement lies between them
        (1.9, [near], "holds"),
    ):
        assert enveloped(at(ours), others).verdict == verdict
