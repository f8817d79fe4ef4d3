"""The list of faults: each edit still has its place, each gate is there, and the last run found every one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from workshop.studies.faults import run
from workshop.studies.faults.run import Fault, read_faults, read_found

pytestmark = pytest.mark.quick

FAULTS = read_faults()


def functions(path: Path) -> set[str]:
    """The tests of a file as in their ids: `test_x`, `TestX::test_y`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        methods = node.body if isinstance(node, ast.ClassDef) else [node]
        before = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {before + one.name for one in methods if isinstance(one, ast.FunctionDef)}
    return found


def test_there_are_many_of_every_kind() -> None:
    assert len(FAULTS) >= 100
    assert len({fault.area for fault in FAULTS}) >= 18


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_its_place_and_its_gate_are_there(fault: Fault) -> None:
    text = (run.ROOT / fault.file).read_text(encoding="utf-8")
    assert text.count(fault.old) == 1, f"{fault.file} changed: write the edit of `{fault.name}` anew"
    assert fault.new != fault.old
    if not fault.gate.startswith("repro."):
        file, _, test = fault.gate.partition("::")
        assert test.partition("[")[0] in functions(run.ROOT / file), fault.gate


def test_the_last_run_found_every_fault() -> None:
    """Of this list: a line of another edit or gate is none of these."""
    found = read_found()
    for fault in FAULTS:
        assert run.is_found(fault, found), (
            f"run `python -m workshop.studies.faults.run --copy FOLDER`, which asks for {fault.name!r}"
        )
    assert len(found) == len(FAULTS)
    assert max(int(line["cpu_seconds"]) for line in found.values()) < 60


def test_a_fault_that_has_no_place_is_said(tmp_path: Path) -> None:
    fault = Fault("a", "n", "s", "x.py", "one", "two", "tests/x.py::test")
    (tmp_path / "x.py").write_text("one, one\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"fault 'n': its old text stands 2 times in x\.py"):
        fault.put_into(tmp_path)
    (tmp_path / "x.py").write_text("one, three\n", encoding="utf-8")
    fault.put_into(tmp_path)
    assert (tmp_path / "x.py").read_text(encoding="utf-8") == "two, three\n"
