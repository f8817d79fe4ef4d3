"""Results of others: what is damaged, too large or a link is named, and the rest is read; nothing runs."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import resource
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from records import record
from repro.core import reading
from repro.core.errors import InputError
from repro.records.blocks import read_blocks, write_blocks
from repro.records.packed import Member
from repro.records.results import Results
from repro.reports.files import write_files

ROUNDS = [{"drafted": 4, "accepted": 2, "emitted": 3}]
DEEP = "[" * 200_000
LINE = '{"key": "00000007", "labels": {"method": "std"}, "provenance": "x", "values": VALUES}'
GIGABYTE = 1 << 30


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Two tables of one cell each, and a loose record."""
    results = Results(tmp_path / "results")
    for number, table in enumerate(("paper/fig1", "paper/fig2")):
        cell = record("std", {"speed": 1.0 + number}, key=f"{number:08x}")
        results.put(cell, ROUNDS)
        results.pack(table, [Member(cell.key, cell.labels)])
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
    return [one.values["speed"] for one in results.all()]  # type: ignore[misc]


def bomb(suffix: str) -> bytes:
    """Four gigabytes of zeros, compressed."""
    if suffix == "xz":
        return lzma.compress(bytes(GIGABYTE // 4), preset=1) * 16
    return gzip.compress(bytes(GIGABYTE // 8), 9) * 32


# --- what is damaged ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        DEEP,
        '{"key": "00000007", "labels": ' + '{"a":' * 200_000 + "1" + "}" * 200_000 + "}",
        LINE.replace("VALUES", "[" * 150 + "]" * 150),
        '{"key": 3}',
        LINE.replace("VALUES", '{}, "overrides": 5'),
        LINE.replace("VALUES", '{}, "overrides": [{"a": 1}]'),
        "9" * 5000,
        "\0",
    ],
    ids=["deep", "deep object", "rather deep", "no key", "a number", "no texts", "digits", "no text"],
)
def test_a_line_that_is_no_cell_is_named_and_the_others_are_read(results: Results, line: str) -> None:
    path = results.root / "paper" / "fig1" / "cells.jsonl"
    path.write_text(path.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    assert speeds(results) == [1.0, 2.0, 3.0]
    (problem,) = results.problems()
    assert problem.startswith(f"{path}, line 2, is damaged (")


def test_a_deep_loose_record_is_named_and_the_others_are_read(results: Results) -> None:
    path = results.root / "records" / "00000009.json"
    path.write_text(DEEP, encoding="utf-8")
    assert speeds(results) == [1.0, 2.0, 3.0]
    assert results.problems() == [
        f"{path} is corrupt (not a record: it is nested deeper than 100 levels); move it away and its cell "
        "will run again"
    ]


@pytest.mark.parametrize("damage", [DEEP, "{", "\0"], ids=["deep", "cut", "no text"])
def test_a_damaged_block_costs_its_cells_only(results: Results, damage: str) -> None:
    """Blocks of the records of both tables are equal but for one, of the second."""
    changed = record("std", {"speed": 4.0}, key="00000004", config={"method": {"name": "m" * 200}, "x": 1})
    results.put(changed, ROUNDS)
    results.pack("paper/fig3", [Member(changed.key, changed.labels)])
    path = results.root / "provenance.jsonl.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    (number,) = (i for i, line in enumerate(lines) if "m" * 200 in line and '"block":"m' in line)
    lines[number] = damage
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    assert speeds(results) == [1.0, 2.0, 3.0]
    assert f"{path}, line {number + 1}, is damaged: it is not the block that it names" in results.problems()
    with pytest.raises(InputError, match="is damaged"):
        results.pack("paper/fig4", [Member("00000002", {"method": "std"})])


def chain(path: Path, links: int, width: int) -> str:
    """Blocks each of which holds the one before, `width` times; the name of the last."""
    texts, name = {}, ""
    text = json.dumps("x" * 200)
    for _ in range(links):
        name = sha256(text.encode()).hexdigest()[:16]
        texts[name] = text
        text = json.dumps([{"$block": name}] * width, separators=(",", ":"))
    write_blocks(path, texts)
    return name


@pytest.mark.parametrize(("links", "width"), [(5000, 1), (150, 1), (40, 3)])
def test_blocks_of_blocks_have_an_end(tmp_path: Path, links: int, width: int) -> None:
    """A chain of them is endless depth, and thrice the one before is 3 to the 40th."""
    name = chain(tmp_path / "b.jsonl.gz", links, width)
    blocks = read_blocks(tmp_path / "b.jsonl.gz")
    assert blocks.damaged == []
    with pytest.raises((ValueError, RecursionError)):
        blocks.joined({"$block": name})


def test_blocks_of_blocks_are_joined(tmp_path: Path) -> None:
    name = chain(tmp_path / "b.jsonl.gz", 20, 1)
    joined = read_blocks(tmp_path / "b.jsonl.gz").joined({"$block": name})
    for _ in range(19):
        (joined,) = joined
    assert joined == "x" * 200


# --- what is too large --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("little_memory")
def test_a_bomb_of_rounds_is_named_and_the_records_are_read(results: Results) -> None:
    path = results.root / "paper" / "fig1" / "rounds.jsonl.xz"
    path.write_bytes(bomb("xz"))
    assert path.stat().st_size < 700_000
    assert speeds(results) == [1.0, 2.0, 3.0]
    assert results.rounds("00000001") == ROUNDS
    with pytest.raises(InputError, match=r"rounds\.jsonl\.xz unpacks to more than 256 MB"):
        results.rounds("00000000")
    with pytest.raises(InputError, match="unpacks to more than"):
        results.pack("paper/fig1", [Member("00000000", {"method": "std"})])


@pytest.mark.usefixtures("little_memory")
def test_a_bomb_of_provenance_is_named_and_loose_records_are_read(results: Results) -> None:
    path = results.root / "provenance.jsonl.gz"
    path.write_bytes(bomb("gz"))
    assert path.stat().st_size < 4_500_000
    assert speeds(results) == [3.0]
    assert any("provenance.jsonl.gz unpacks to more than 256 MB" in said for said in results.problems())


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


def test_a_file_of_cells_that_is_too_large(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro.records.packed.LINES_BYTES", 10)
    for table in results.tables():
        os.utime(results.root / table / "cells.jsonl")
    assert speeds(results) == [3.0]
    assert all("at most 0 MB are read" in said for said in results.problems())


# --- links --------------------------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the user's, beside the results, with files that a table would replace."""
    folder = tmp_path / "outside"
    folder.mkdir()
    for name in ("cells.jsonl", "rounds.jsonl.xz", "table.md", "00000002.json"):
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
        results.pack("mine/fig9", [Member("00000002", {"method": "std"})])
    with pytest.raises(InputError, match=rf"{place} is a link"):
        write_files("mine/fig9", results.root, {"md": "theirs"})
    assert contents(outside) == before
    assert speeds(results) == [1.0, 2.0, 3.0]
    assert results.problems() == [f"{place} is a link, which is not followed"]


def test_a_record_is_not_written_through_a_link(tmp_path: Path, outside: Path) -> None:
    before = contents(outside)
    results = Results(tmp_path / "theirs")
    results.root.mkdir()
    (results.root / "records").symlink_to(outside, target_is_directory=True)
    mine = record("std", {"speed": 1.0}, key="00000002")
    actions: list[Any] = [
        lambda: results.check_writable(),
        lambda: results.put(mine, ROUNDS),
        lambda: results.put_answers("00000002", ROUNDS),
        lambda: results.alone("00000002").__enter__(),
    ]
    for act in actions:
        with pytest.raises(InputError, match=r"records.* is a link, which is not followed"):
            act()
    assert contents(outside) == before
    assert f"{results.root}/records is a link, which is not followed" in results.problems()


@pytest.mark.parametrize("name", ["cells.jsonl", "rounds.jsonl.xz"])
def test_a_file_of_a_table_is_not_read_through_a_link(results: Results, tmp_path: Path, name: str) -> None:
    place, elsewhere = results.root / "paper" / "fig1" / name, tmp_path / name
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    if name == "cells.jsonl":
        assert speeds(results) == [2.0, 3.0]
        assert any(said.startswith(f"{place} is a link") for said in results.problems())
    else:
        assert speeds(results) == [1.0, 2.0, 3.0]
        with pytest.raises(InputError, match="is a link, which is not followed"):
            results.rounds("00000000")


def test_a_loose_record_is_not_read_through_a_link(results: Results, tmp_path: Path) -> None:
    place = results.root / "records" / "00000002.json"
    place.rename(tmp_path / "elsewhere.json")
    place.symlink_to(tmp_path / "elsewhere.json")
    assert speeds(results) == [1.0, 2.0]
    (problem,) = results.problems()
    assert f"{place} is a link, which is not followed" in problem


def test_a_pipe_is_not_waited_for(results: Results) -> None:
    for place in (
        results.root / "records" / "00000009.json",
        results.root / "paper" / "fig1" / "cells.jsonl",
    ):
        place.unlink(missing_ok=True)
        os.mkfifo(place)
    assert speeds(results) == [2.0, 3.0]
    assert sum("is no regular file" in said for said in results.problems()) == 2


def test_a_folder_where_a_file_of_cells_should_be(results: Results) -> None:
    place = results.root / "paper/fig3/cells.jsonl"
    place.mkdir(parents=True)
    assert speeds(results) == [1.0, 2.0, 3.0]
    (problem,) = results.problems()
    assert str(place) in problem


def test_a_lock_is_not_made_through_a_link(results: Results, outside: Path) -> None:
    mine = record("std", {"speed": 1.0}, key="00000002")
    acts: dict[str, Any] = {
        ".lock": lambda: results.pack("paper/fig3", [Member(mine.key, mine.labels)]),
        "records/.lock": lambda: results.put(mine),
        "records/00000002.lock": lambda: results.alone(mine.key).__enter__(),
    }
    for name, act in acts.items():
        place = results.root / name
        place.unlink(missing_ok=True)
        place.symlink_to(outside / "new")
        with pytest.raises(InputError, match=rf"{name} is a link, which is not followed"):
            act()
        place.unlink()
    assert not (outside / "new").exists()


def test_results_as_a_whole_may_be_a_link(results: Results, tmp_path: Path) -> None:
    """Which folder holds them is the user's to say."""
    (tmp_path / "link").symlink_to(results.root, target_is_directory=True)
    linked = Results(tmp_path / "link")
    assert speeds(linked) == [1.0, 2.0, 3.0]
    linked.pack("paper/fig3", [Member("00000002", {"method": "std"})])
    assert linked.problems() == []
