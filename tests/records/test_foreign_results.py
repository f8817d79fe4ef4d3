"""Results of others: what is damaged, too large or a link is named, and the rest is read; nothing runs."""

from __future__ import annotations

import gzip
import lzma
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from records import record
from repro.core import reading
from repro.core.errors import InputError
from repro.records.lines import part_content, write_line
from repro.records.members import Member
from repro.records.results import Results, open_results
from repro.reports.files import write_files

ROUNDS = [{"drafted": 4, "accepted": 2, "emitted": 3}]
DEEP = "[" * 200_000
OBJECT: list[object] = []
for _ in range(150):
    OBJECT = [OBJECT]
MEMBER = '{"key": "00000007", "labels": {"method": "std"}, "overrides": OVERRIDES}'
GIGABYTE = 1 << 30


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Two tables of one cell each, packed, and a cell that is not packed."""
    results = Results(tmp_path / "results")
    for number, table in enumerate(("paper/fig1", "quickstart")):
        cell = record("std", {"speed": 1.0 + number}, key=f"{number:08x}")
        results.put(cell, ROUNDS)
        results.set_members(table, [Member(cell.key, cell.labels)])
    results.pack()
    results.put(record("std", {"speed": 3.0}, key="00000002"), ROUNDS)
    return results


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Three gigabytes more than what the process has: what is read in full would not fit."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 3 * GIGABYTE, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


def speeds(results: Results) -> list[float]:
    """The speeds of all records, as a reader finds them that has not read before."""
    return [each.values["speed"] for each in open_results(results.root).all()]  # type: ignore[misc]


def problems(results: Results) -> list[str]:
    return open_results(results.root).problems()


# --- what is damaged ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        DEEP,
        '{"key": "00000007", "labels": ' + '{"a":' * 200_000 + "1" + "}" * 200_000 + "}",
        '{"key": 3}',
        MEMBER.replace("OVERRIDES", "5"),
        MEMBER.replace("OVERRIDES", '[{"a": 1}]'),
        "9" * 5000,
        "\0",
    ],
    ids=["deep", "deep object", "no key", "a number", "no texts", "digits", "no text"],
)
def test_a_line_that_is_no_cell_of_a_table_is_named(results: Results, line: str) -> None:
    path = results.root / "paper" / "fig1" / "members.jsonl"
    path.write_text(path.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    assert speeds(results) == [1.0, 2.0, 3.0]
    (problem,) = problems(results)
    assert problem.startswith(f"{path}, line 2, is damaged (")
    with pytest.raises(InputError, match="line 2, is damaged"):
        results.members("paper/fig1")


@pytest.mark.parametrize(
    "line",
    [
        write_line({"cell": "00000007", "status": "done", "provenance": {}}),
        write_line({"cell": "00000007", "provenance": 5}),
        write_line({"cell": "00000007"}),
        write_line(part_content("x", 1)).replace("1}", "2}"),
        write_line({"cell": "../../mine"}),
        write_line({"program": "x"}),
        f"1 {DEEP}\n",
        f"{'9' * 5000} {DEEP}\n",
        "\0\n",
        write_line(part_content("x", OBJECT)),
    ],
    ids=["record", "number", "empty", "changed", "path", "kind", "deep", "digits", "text", "object"],
)
def test_a_line_that_is_none_of_records_is_named(results: Results, line: str) -> None:
    path = results.folder / f"{0:020}-1-00000000.jsonl"
    path.write_text(line, encoding="utf-8")
    assert speeds(results) == [1.0, 2.0, 3.0]
    (problem,) = problems(results)
    assert problem.startswith(str(path))
    assert "is damaged (" in problem
    with pytest.raises(InputError, match="is damaged"):
        results.pack()


# --- what is too large --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("little_memory")
def test_a_bomb_of_details_is_named_and_the_records_are_read(results: Results) -> None:
    path = results.folder / "paper.details.xz"
    path.write_bytes(lzma.compress(bytes(GIGABYTE // 4), preset=1) * 16)
    assert path.stat().st_size < 700_000
    assert speeds(results) == [1.0, 2.0, 3.0]
    assert results.rounds("00000001") == ROUNDS
    with pytest.raises(InputError, match=r"paper\.details\.xz unpacks to more than 256 MB"):
        results.rounds("00000000")
    with pytest.raises(InputError, match="unpacks to more than"):
        results.pack()


def test_an_xz_file_that_asks_for_memory(tmp_path: Path) -> None:
    """Its header names a dictionary of 1.5 GB, for one byte."""
    path = tmp_path / "a.xz"
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 3 << 29}]
    path.write_bytes(lzma.compress(b"x", filters=filters))
    with pytest.raises(InputError, match=r"is damaged .*[Mm]emory"):
        reading.unpack(path)


def test_large_files_that_are_no_bombs_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is allowed grows with the file; several streams in a row are one."""
    monkeypatch.setattr(reading, "UNPACKED_BYTES", 1000)
    content = os.urandom(5000)
    for path, packed in (
        (tmp_path / "a.xz", lzma.compress(content)),
        (tmp_path / "a.gz", gzip.compress(content)),
    ):
        path.write_bytes(packed + packed)
        assert reading.unpack(path) == content + content
        path.write_bytes(packed[:-20])
        with pytest.raises(InputError, match="is damaged"):
            reading.unpack(path)


def test_files_of_lines_that_are_too_large(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro.records.store.LINES_BYTES", 10)
    assert speeds(results) == []
    said = problems(results)
    assert len(said) == 3
    assert all("at most 0 MB are read" in sentence for sentence in said)
    with pytest.raises(InputError, match="at most 0 MB are read"):
        open_results(results.root).pack()


def test_a_writer_begins_another_file_before_its_own_is_too_large(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repro.records.store.MOST_WRITER_BYTES", 3000)
    for number in range(3, 20):
        results.put(record("std", {"speed": 1.0 + number}, key=f"{number:08x}"), ROUNDS)
    files = [*results.folder.glob("0*.jsonl")]
    assert len(files) > 3
    assert all(path.stat().st_size < 6000 for path in files)
    assert speeds(results) == [1.0 + number for number in range(20)]


def test_damage_of_packed_details_is_named(results: Results) -> None:
    path = results.folder / "paper.details.xz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(InputError, match=r"paper\.details\.xz is damaged"):
        results.rounds("00000000")
    path.write_bytes(lzma.compress(lzma.decompress(whole).replace(b'"accepted"', b'"excepted"')))
    with pytest.raises(InputError, match=r"paper\.details\.xz, line 1, is damaged"):
        results.rounds("00000000")
    assert speeds(results) == [1.0, 2.0, 3.0]
    with pytest.raises(InputError, match="is damaged"):
        results.pack()


# --- links and what is no file ------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the user's, beside the results, with files that a table would replace."""
    folder = tmp_path / "outside"
    folder.mkdir()
    for name in ("members.jsonl", "paper.cells.jsonl", "paper.details.xz", "table.md"):
        (folder / name).write_text("mine", encoding="utf-8")
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


@pytest.mark.parametrize("link", ["mine", "mine/fig9"])
def test_a_table_is_not_written_through_a_link(results: Results, outside: Path, link: str) -> None:
    before = contents(outside)
    place = results.root / link
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(outside, target_is_directory=True)
    with pytest.raises(InputError, match=rf"{place} is a link, which is not followed"):
        results.set_members("mine/fig9", [Member("00000002", {"method": "std"})])
    with pytest.raises(InputError, match=rf"{place} is a link"):
        write_files("mine/fig9", results.root, {"md": "theirs"})
    assert contents(outside) == before
    assert speeds(results) == [1.0, 2.0, 3.0]
    assert problems(results) == [f"{place} is a link, which is not followed"]


def test_a_record_is_not_written_through_a_link(tmp_path: Path, outside: Path) -> None:
    before = contents(outside)
    results = Results(tmp_path / "theirs")
    results.root.mkdir()
    results.folder.symlink_to(outside, target_is_directory=True)
    acts: list[Callable[[], object]] = [
        results.check_writable,
        lambda: results.put(record("std", {"speed": 1.0}, key="00000002"), ROUNDS),
        lambda: results.begin("00000002"),
        results.pack,
    ]
    for act in acts:
        with pytest.raises(InputError, match=r"records.* is a link, which is not followed"):
            act()
    assert contents(outside) == before
    assert f"{results.folder} is a link, which is not followed" in problems(results)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Path.symlink_to, "is a link"),
        (lambda place, _: os.mkfifo(place), "is no regular file"),
        (lambda place, _: place.mkdir(), "is no regular file"),
    ],
    ids=["link", "pipe", "folder"],
)
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("paper/fig1/members.jsonl", [1.0, 2.0, 3.0]),
        ("records/paper.cells.jsonl", [2.0, 3.0]),
        ("records/paper.details.xz", [1.0, 2.0, 3.0]),
    ],
)
def test_what_is_no_file_is_named_and_neither_followed_nor_waited_for(
    results: Results, make: Callable[[Path, Path], None], said: str, name: str, found: list[float]
) -> None:
    place = results.root / name
    make(place, place.rename(results.root.parent / place.name))
    assert speeds(results) == found
    assert any(problem.startswith(f"{place} {said}") for problem in problems(results))
    with pytest.raises(InputError, match=f"{place} {said}"):
        results.pack()


def test_a_lock_is_not_made_through_a_link(results: Results, outside: Path) -> None:
    place = results.root / ".lock"
    place.unlink(missing_ok=True)
    place.symlink_to(outside / "new")
    acts: list[Callable[[], object]] = [
        results.pack,
        lambda: results.set_members("paper/fig3", [Member("00000002", {"method": "std"})]),
    ]
    for act in acts:
        with pytest.raises(InputError, match=r"\.lock is a link, which is not followed"):
            act()
    assert not (outside / "new").exists()


def test_results_as_a_whole_may_be_a_link(results: Results, tmp_path: Path) -> None:
    """Which folder holds them is the user's to say."""
    (tmp_path / "link").symlink_to(results.root, target_is_directory=True)
    linked = Results(tmp_path / "link")
    assert speeds(linked) == [1.0, 2.0, 3.0]
    linked.set_members("paper/fig3", [Member("00000002", {"method": "std"})])
    linked.pack()
    assert linked.problems() == []
