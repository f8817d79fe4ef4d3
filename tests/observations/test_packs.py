"""A pack made on one machine replaces computing on another; stale and damaged ones are named."""

from __future__ import annotations

import io
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from repro.core.errors import InputError
from repro.models.forward.logit_cache import LogitCache, row_key
from repro.models.forward.network import NotFiniteError
from repro.models.forward.side_by_side import GreedyText
from repro.models.observations import transfer
from repro.models.observations.pack import Facts, ObservedRow, Pack, digests, read, read_facts
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.decoder import Decoder
from repro.records.build_cache import cache_root
from repro.scenarios.generation.real_passes import RealPasses, UnfaithfulRowError
from repro.scenarios.generation.scenario import GenerationScenario
from tiny_project import Project
from workshop.packs import __main__ as command
from workshop.packs.compute import Piece, compute, export
from workshop.packs.plan import Planned, planned
from workshop.packs.verify import verify

QUIET = Console(file=io.StringIO())


@pytest.fixture(scope="module")
def made(shared: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine's cache and packs: of own texts, and of the rows that two methods asked of the draft."""
    out = tmp_path_factory.mktemp("made")
    project = shared.apart(out, "max_tokens=12")
    with pytest.MonkeyPatch.context() as patch:
        on(out / "here", patch)
        compute(plan(project), Piece(10), lambda done, total: None)
        for method in ("chain_sd", "edgellm"):
            assert project.cell(f"method={method}").state == "done"
        export(plan(project), out / "packs")
    return out


@pytest.fixture
def project(shared: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    on(tmp_path / "here", monkeypatch)
    return shared.apart(tmp_path, "max_tokens=12")


@pytest.fixture
def packs(made: Path, project: Project) -> list[Path]:
    """The packs, on the machine that made them."""
    shutil.copytree(made, project.out, dirs_exist_ok=True)
    return sorted((project.out / "packs").glob("*.parquet"))


def on(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on work with another machine's empty cache."""
    monkeypatch.setenv("REPRO_CACHE", str(machine))


def plan(project: Project) -> Planned:
    return Planned("tiny.humaneval", tuple(project.overrides), ("smollm2_135m_draft",))


def refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any pass of any decoder is an error."""

    def layer(*_: object) -> None:
        raise NotFiniteError("weights were asked")

    monkeypatch.setattr(Decoder, "layer", layer)


def test_another_machine_replays_a_cell_without_computing(
    project: Project, packs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [path.name for path in packs] == [
        "tiny.humaneval.parquet",
        "tiny.humaneval.smollm2_135m_draft.parquet",
    ]
    expected = {name: project.record(f"method={name}") for name in ("chain_sd", "edgellm")}
    on(tmp_path / "there", monkeypatch)
    assert command.bring(packs, QUIET) == 0
    refuse(monkeypatch)
    there = project.apart(tmp_path / "out", "max_tokens=12")
    for name, record in expected.items():
        assert there.cell(f"method={name}").error == ""
        assert there.record(f"method={name}").values == record.values
    asked_for_more = there.cell("method=opt_tree")  # which reads 50 ranks of a row
    assert "weights were asked" in asked_for_more.error


def test_a_pack_is_verified_row_by_row(project: Project, packs: list[Path]) -> None:
    for path in packs:
        tally = verify(path, plan(project), share=1)
        assert tally["equal"] == len(read(path).rows)
    assert len(read(path).rows) > 10


def test_what_was_tampered_with_differs(
    project: Project, packs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, _ = packs
    pack = read(texts)
    wrong = [row._replace(scores=[score - 0.5 for score in row.scores]) for row in pack.rows]
    Pack(pack.facts, wrong).write(texts.parent)
    tally = verify(texts, plan(project), share=1)
    assert tally["different"] == len(wrong)
    on(tmp_path / "there", monkeypatch)
    command.bring([texts], QUIET)
    for name in ("flash_ar", "chain_sd", "edgellm"):
        config = project.apart(tmp_path / "out", "max_tokens=12").config(f"method={name}")
        with pytest.raises(UnfaithfulRowError):
            RealPasses().compare(GenerationScenario(config))


def test_a_stale_pack_is_refused_and_never_read(
    project: Project, packs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, _ = packs
    pack = read(texts)
    other = Pack(replace(pack.facts, observed=pack.facts.observed.replace("runtime", "runtime9")), pack.rows)
    stale = other.write(tmp_path / "stale")
    with pytest.raises(InputError, match=f"{stale} is stale"):
        verify(stale, plan(project))
    on(tmp_path / "there", monkeypatch)
    command.bring([stale], QUIET)
    refuse(monkeypatch)
    assert "weights were asked" in project.apart(tmp_path / "out").cell("method=flash_ar").error


def test_a_damaged_pack_is_named_and_computed_instead(
    project: Project,
    packs: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    texts, _ = packs
    on(tmp_path / "there", monkeypatch)
    command.bring([texts], QUIET)
    (path,) = (cache_root() / "observations").glob("*.parquet")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=f"{path} is no whole pack"):
        read_facts(path)
    assert project.apart(tmp_path / "out", "max_tokens=12").cell("method=flash_ar").state == "done"
    assert str(path) in caplog.text


@pytest.mark.parametrize("bit", [0x01, 0x80])
def test_no_changed_byte_of_a_pack_is_believed(tmp_path: Path, bit: int) -> None:
    facts = Facts("p", "text", "model", 2, "cpu", (("ab" * 32, 3),), ((5,),))
    path = Pack(facts, [ObservedRow(0, 0, -1, -1, 0, [5, 6], [-0.5, -1.5])]).write(tmp_path)
    right, content = read(path), path.read_bytes()
    refused = 0
    for at in range(0, len(content), 11):
        path.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
        try:
            assert read(path) == right
        except InputError:
            refused += 1
    assert refused > len(content) / 11 / 2


def test_a_longer_text_continues_a_shorter_one(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute(plan(project), Piece(10), lambda done, total: None)
    longer = plan(project.apart(project.out, "max_tokens=20"))
    told: list[tuple[int, int]] = []
    texts = compute(longer, Piece(10), lambda done, total: told.append((done, total)))
    assert (told[0], told[-1]) == ((56, 72), (72, 72))
    on(tmp_path / "there", monkeypatch)
    at_once = compute(longer, Piece(10), lambda done, total: None)
    assert [text.tokens for text in texts] == [text.tokens for text in at_once]
    assert all([row.choice for row in text.rows] == text.tokens for text in texts)


def test_a_row_is_reached_by_rows_of_another_source(tmp_path: Path) -> None:
    """A head drafts on below a tree that it proposed when the target had verified less."""
    prompt = Prefix.of([5, 6])
    proposed = prompt.then(9)
    rows = {(prompt, 1): 9, (proposed, 1): 3, (proposed.then(3), 2): 4}
    known = {row_key(prefix.digest, number): ([token], [-0.5]) for (prefix, number), token in rows.items()}
    pack = transfer.branch_pack("tiny.head", "eagle", "observed", "cpu", [GreedyText(prompt, [7])], known)
    assert {row_key(*place) for place in digests(read(pack.write(tmp_path)))} == known.keys()
    assert [row.source for row in pack.rows] == [0, 0, 1]


def test_of_an_early_exit_every_score_is_kept_and_joins_those_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a head began decides how it goes on: more candidates than a row's ranks after one sequence."""
    on(tmp_path, monkeypatch)
    prompt = Prefix.of([5, 6])
    scores = {token: token / 64 for token in range(12)}
    known = {prompt.digest: ([*scores], [*scores.values()])}
    pack = transfer.branch_pack("tiny.exit", "exit", "observed", "cpu", [GreedyText(prompt)], known)
    assert (
        transfer.BRANCH_RANKS
        < len(scores)
        == len(read(pack.write(cache_root() / "observations")).rows[0].tokens)
    )
    with closing(LogitCache(tmp_path / "exits.sqlite")) as cache:
        cache.add_scores([(prompt.digest, {3: scores[3], 70: 0.5})])
        transfer.fill(cache, "observed")
        assert cache.scores(prompt.digest) == {**scores, 70: 0.5}


def test_no_prompt_is_in_a_pack(project: Project, packs: list[Path]) -> None:
    texts, _ = packs
    prompt = plan(project).prompts[0].tokens()
    stored = [token for row in read(texts).rows for token in row.tokens] + [
        token for text in read_facts(texts).texts for token in text
    ]
    assert not any(stored[i : i + len(prompt)] == prompt for i in range(len(stored)))


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"smollm2_135m\.humaneval"):
        planned(["smollm2_135m.humanevl"])
    assert {one.name for one in planned(["smollm2_135m"])} >= {"smollm2_135m.gsm8k"}


def test_committed_packs_are_small_and_current_in_form() -> None:
    paths = sorted(transfer.folders()[0].glob("*.parquet"))
    sizes = [path.stat().st_size for path in paths]
    assert sum(sizes) <= 25e6
    assert all(size <= 10e6 for size in sizes)
    assert all(read_facts(path).name == path.stem for path in paths)


def test_binaries_stay_below_a_hundred_megabytes() -> None:
    assets = transfer.folders()[0].parent
    assert sum(path.stat().st_size for path in assets.rglob("*") if path.is_file()) < 100e6
