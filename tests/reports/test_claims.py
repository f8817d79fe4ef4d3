"""Claims of a paper's prose beside our tables: which figures each takes, how they agree, what is said."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from invented_tables import BIBTEX, CELLS, CLAIMS, SPEEDUP, cell, spec, write_table, write_tables
from repro.core.errors import InputError
from repro.reports.claims.claims import ClaimsSpec, compare, is_prose
from repro.reports.claims.claims_page import page, to_csv, write_claims
from repro.reports.formats.render import to_markdown
from repro.reports.reference.reference import load_cells
from tiny_project import write_project

SAID = "EdgeLLM: per token latency speedup"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tables(tmp_path)
    return tmp_path


class TestClaims:
    def test_each_is_set_beside_the_figures_it_names(self, folder: Path) -> None:
        found = {claim.cell.id.rpartition(".")[2]: claim for claim in compare(spec(), folder, CELLS)}
        assert {name: claim.ours for name, claim in found.items()} == {
            "range": (3.0, 10.23),
            "single": (3.0, 3.0),
            "up_to": (10.23, 10.23),
            "over": None,
            "ms": (0.9, 0.9),
        }
        assert {name: claim.verdict for name, claim in found.items()} == {
            "range": "10% above",
            "single": "50% above",
            "up_to": "105% above",
            "over": "absent",
            "ms": "inside",
        }
        assert found["range"].ratio == pytest.approx(10.23 / 9.3)
        assert (found["range"].failed, found["range"].marks) == (1, ("proxy",))
        assert found["up_to"].ratio is None, "a bound is no prediction"
        assert (found["ms"].published.low, found["ms"].marks, found["ms"].predicted) == (
            0.9,
            ("fitted",),
            False,
        )

    @pytest.mark.parametrize(
        ("ends", "take", "verdict"),
        [
            ((2.9, 9.3), "min", "inside"),
            ((4.0, 5.0), "range", "105% above"),
            ((12.0, 30.0), "mean", "45% below"),
            ((None, 20.46), "max", "within, reaches 50% of it"),
            ((2.0, None), "min", "within"),
            ((6.0, None), "min", "50% below"),
        ],
    )
    def test_verdicts(
        self, ends: tuple[float | None, float | None], take: str, verdict: str, folder: Path
    ) -> None:
        cells = {"edgellm.text.range": cell("edgellm.text.range", *ends)}
        section = {
            "title": "T",
            "paper": "edgellm",
            "claims": [{"id": "edgellm.text.range", **SPEEDUP, "take": take}],
        }
        (claim,) = compare(ClaimsSpec.parse("c", section), folder, cells)
        assert claim.verdict == verdict

    @pytest.mark.parametrize(
        ("claims", "sentence"),
        [
            ({"edgellm.text.over": None}, "in edgellm/claims the claims lack edgellm.text.over$"),
            ({"lever.text.other": {"absent": "x"}}, "though it is no prose of the paper, lever.text.other"),
            (
                {"edgellm.text.rnage": {"absent": "x"}},
                "'edgellm.text.rnage'. Did you mean edgellm.text.range",
            ),
            ({"edgellm.text.over": {}}, "lack edgellm.text.over"),
            ({"edgellm.text.over": {"note": "x"}}, "needs either `tables` and `columns`, or `absent`"),
            ({"edgellm.text.over": {**SPEEDUP, "absent": "x"}}, "needs either `tables`"),
            ({"edgellm.text.over": SPEEDUP}, "takes the only figure of 3; name its row, or take others"),
            ({"edgellm.text.over": {**SPEEDUP, "rows": ["t6"]}}, "no row 't6'"),
            (
                {"edgellm.text.over": {**SPEEDUP, "columns": ["speed"]}},
                "no column 'speed'. Did you mean speedup",
            ),
            (
                {"edgellm.text.over": {"tables": ["edgellm/fig99", "edgellm/fig98"], "columns": ["a"]}},
                "make them first: experiment=edgellm/fig99; experiment=edgellm/fig98$",
            ),
            (
                {"edgellm.text.over": {**SPEEDUP, "columns": ["speedup", "tokens"], "take": "max"}},
                "takes figures in 'tokens', 'x'",
            ),
        ],
    )
    def test_bad_input(self, claims: dict[str, Any], sentence: str, folder: Path) -> None:
        with pytest.raises(InputError, match=sentence):
            compare(spec(claims=claims), folder, CELLS)

    def test_a_claim_that_comes_twice(self, folder: Path) -> None:
        twice = [{"id": name, "absent": "x"} for name in (*CLAIMS, "edgellm.text.range")]
        given = ClaimsSpec.parse("c", {"title": "T", "paper": "edgellm", "claims": twice})
        with pytest.raises(InputError, match=r"in c the claims repeat edgellm\.text\.range$"):
            compare(given, folder, CELLS)

    def test_markdown(self, folder: Path) -> None:
        fig15 = "edgellm/fig15 |"
        shown = to_markdown(page(spec(), compare(spec(), folder, CELLS)), [])
        lines = shown.splitlines()
        assert lines[2:9] == [
            "| claim | where | paper | ours | ratio | verdict | from |",
            "| --- | --- | ---: | ---: | ---: | --- | --- |",
            f"| {SAID} against Std; boards [1] | sec. IV-C | 2.9–9.3 × "
            "| 3–10.2 × † | 1.10 | 10% above | edgellm/fig15 |",
            f"| {SAID} [2] [3] | sec.  | 2 × | 3 × † | 1.50 | 50% above | {fig15}",
            f"| {SAID} [1] | sec.  | ≤ 5 × | 10.2 × † | — | 105% above | {fig15}",
            f"| {SAID} [4] | sec.  | ≥ 3 × | — | — | absent | — |",
            f"| {SAID} | sec.  | 0.9 s | 0.9 s ‡ | 1.00 | inside | edgellm/fig20 |",
        ]
        for line in (
            "- [1] without 1 of 3 figures, which are absent",
            "- [4] nothing of ours measures it",
            "- Of 5 claims 1 inside the published value or bound, 3 outside, 1 without a figure.",
            "- Over 2 predicted values and ranges: median error 30.0%, worst 50.0%. 1 fitted left out.",
            "- 2026-01-03, commit c1 c2, made by `python -m repro experiment=edgellm/claims`.",
        ):
            assert line in lines

    def test_csv(self, folder: Path) -> None:
        lines = list(csv.DictReader(io.StringIO(to_csv(compare(spec(), folder, CELLS)))))
        assert [line["reference"] for line in lines] == list(CLAIMS)
        assert (lines[0]["ours"], lines[0]["ours_low"], lines[0]["ours_high"]) == ("", "3.0", "10.23")
        assert (lines[1]["ours"], lines[1]["ratio"], lines[1]["note"]) == ("3.0", "1.5", "on a board a slip")
        assert (lines[4]["unit"], lines[4]["marks"]) == ("s", "fitted")

    def test_files_are_the_same_every_time(self, folder: Path) -> None:
        _, files = write_claims(spec(), folder, CELLS, BIBTEX)
        before = [path.read_bytes() for path in files.values()]
        assert {name: path.relative_to(folder).as_posix() for name, path in files.items()} == {
            name: f"edgellm/claims/table.{name}" for name in ("md", "csv", "tex")
        }
        _, again = write_claims(spec(), folder, CELLS, BIBTEX)
        assert [path.read_bytes() for path in again.values()] == before

    def test_the_prose_of_edgellm_is_79_values(self) -> None:
        prose = [c.id for c in load_cells().values() if c.paper == "edgellm" and is_prose(c)]
        assert len(prose) >= 79
        assert "edgellm.abstract.speedup_max" in prose

    def test_the_command_computes_no_cell(self, tmp_path: Path) -> None:
        """From a file of claims to its table, with the error of a claim that is forgotten."""
        project = write_project(tmp_path)
        write_table(
            project.out / "results",
            "edgellm/fig15",
            {"id": "t5", "ours": "3", "column": "speedup"},
        )
        conf = tmp_path / "conf" / "experiment" / "edgellm"
        conf.mkdir(parents=True)
        ids = [c.id for c in load_cells().values() if c.paper == "edgellm" and is_prose(c)]
        for name, some in (("every_claim", ids), ("forgetful", ids[1:])):
            claims = "".join(f"    - {{id: {each}, absent: a test}}\n" for each in some[1:])
            claims += f"    - {{id: {some[0]}, tables: [edgellm/fig15], columns: [speedup]}}\n"
            table = f"table:\n  title: T\n  paper: edgellm\n  claims:\n{claims}"
            (conf / f"{name}.yaml").write_text(f"# @package _global_\nname: edgellm/{name}\n{table}")
        search = f"hydra.searchpath=[file://{tmp_path}/conf]"
        done = project.here(search, "experiment=edgellm/every_claim")
        assert done.returncode == 0, done.stderr
        assert (project.out / "results" / "edgellm" / "every_claim" / "table.md").exists()
        assert f"Of {len(ids)} claims" in done.stdout
        assert project.store.all() == []
        done = project.here(search, "experiment=edgellm/forgetful")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"error: in edgellm/forgetful the claims lack {ids[0]}\n"
