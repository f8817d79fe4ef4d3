"""Put one fault after another into a copy of the project, and ask the gate that has to find it.

Owns how faults of `faults.yaml` are read, put in and asked for. Must not know what a fault is about. A fault
is an edit of one place; its gate is a test of less than a minute, by its pytest id, or a command that begins
with `repro.`. A gate passes without its fault and fails with it, or it has not found it.

    python -m workshop.studies.faults.run --copy FOLDER               those that found.csv lacks or has other
    python -m workshop.studies.faults.run --copy FOLDER --again       all of them
    python -m workshop.studies.faults.run --copy FOLDER --only clock  those whose name has a word

Each gate runs in a fork of this process, which has imported what is heavy, and nothing of `repro`.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
FAULTS = FOLDER / "faults.yaml"
FOUND = FOLDER / "found.csv"
COLUMNS = ("area", "fault", "gate", "found", "cpu_seconds", "said", "edit")
HEAVY = (
    "torch",
    "pandas",
    "scipy.special",
    "transformers",
    "safetensors.torch",
    "hydra.main",
    "evaluate",
    "rich",
)
LIMIT = 900
"""Seconds after which a gate is stopped; it has found nothing then."""
FLAGS = ("-q", "-p", "no:cacheprovider", "--tb=line", "-m", "")  # also slow tests
FAILS = 1
"""Exit status of pytest with a failed test, and of `repro check` with a cell that differs."""
WORDS = 110
"""Characters of what a gate said that are kept."""


@dataclass(frozen=True)
class Fault:
    """A change that makes some figure, token or table wrong.

    Attributes:
        area: what it is about, as in the list.
        name: a few words, which no other fault has.
        says: what goes wrong, in a sentence.
        file: the file to change, from the project's root.
        old: text that stands in it once.
        new: what stands there with the fault.
        gate: what has to find it.
    """

    area: str
    name: str
    says: str
    file: str
    old: str
    new: str
    gate: str

    @property
    def edit(self) -> str:
        """Beginning of the hash of edit and gate: a line of `found.csv` with another is not of this fault."""
        return hashlib.sha256("\0".join((self.file, self.old, self.new, self.gate)).encode()).hexdigest()[:8]

    def put_into(self, root: Path) -> None:
        """Change the file below `root`; ValueError if the old text does not stand there exactly once."""
        path = root / self.file
        text = path.read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"fault {self.name!r}: its old text stands {count} times in {self.file}")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


def read_faults(path: Path = FAULTS) -> list[Fault]:
    """The faults of a file, area by area; ValueError for a name that two of them have."""
    areas = yaml.safe_load(path.read_text(encoding="utf-8"))
    faults = [Fault(area, **entry) for area, entries in areas.items() for entry in entries]
    names = [fault.name for fault in faults]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{path.name} names faults twice: {', '.join(sorted(repeated))}")
    return faults


@dataclass(frozen=True)
class Answer:
    """How gates ended: exit status, seconds of CPU, and the first error that they named."""

    status: int
    cpu_seconds: float
    said: str


def ask(gates: Sequence[str], root: Path, faulty: bool) -> Answer:
    """Run tests together, or one command, in a copy of the project; a faulty copy compiles no modules."""
    log = root / ".gate.log"
    pid = os.fork()
    if pid == 0:
        signal.alarm(LIMIT)
        os._exit(_asked(gates, root, faulty, log))
    _, status, usage = os.wait4(pid, 0)
    said = first_error(log.read_text(encoding="utf-8", errors="replace"), root)
    return Answer(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, said)


def _asked(gates: Sequence[str], root: Path, faulty: bool, log: Path) -> int:
    """The exit status of gates, in a process of their own, which writes to a file."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(out, stream)
    os.chdir(root)
    sys.path[:0] = [str(root / "src"), str(root)]
    for module in [name for name in sys.modules if name.partition(".")[0] == "workshop"]:
        del sys.modules[module]  # of this checkout
    sys.dont_write_bytecode = faulty
    os.environ |= {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "400"}
    try:
        if gates[0].startswith("repro."):
            module, *sys.argv[1:] = gates[0].split(" ")
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            return 0
        return int(pytest.main([*FLAGS, *(["-x"] if faulty else []), *gates]))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 2
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def first_error(output: str, root: Path) -> str:
    """What gates said of their first failure, in a line without folders of this machine."""
    found = re.search(r"^(?:FAILED|ERROR) \S.*? - (.*)$", output, re.M)
    found = found or re.search(r"^((?:different|error): .*)$", output, re.M)
    lines = output.strip().splitlines() or [""]
    text = (found[1] if found else lines[-1]).replace(f"{root}/", "")
    return re.sub(r"(?<![\w.])/(?:[\w.-]+/)+", "", text)[:WORDS].strip()


def copy_project(into: Path) -> None:
    """Copy the project's files into a folder, but those that are there already and the same."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    listed = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, encoding="utf-8"
    ).stdout
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, into / name
        if not source.is_file():
            target.unlink(missing_ok=True)
        elif not target.is_file() or _stamp(source) != _stamp(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _stamp(path: Path) -> tuple[int, int]:
    return path.stat().st_size, path.stat().st_mtime_ns


def require_sound(faults: Sequence[Fault], root: Path) -> None:
    """ValueError if a gate fails without a fault."""
    gates = list(dict.fromkeys(fault.gate for fault in faults))
    tests = [gate for gate in gates if not gate.startswith("repro.")]
    for group in (tests, *([gate] for gate in gates if gate not in tests)):
        if group and (answer := ask(group, root, faulty=False)).status:
            raise ValueError(f"a gate fails without a fault (exit {answer.status}): {answer.said}")


def found_by_gates(faults: Sequence[Fault], root: Path) -> Iterator[tuple[Fault, Answer]]:
    """Each fault with what its gate said; the copy is as before after each."""
    for fault in faults:
        fault.put_into(root)
        try:
            yield fault, ask([fault.gate], root, faulty=True)
        finally:
            shutil.copy2(ROOT / fault.file, root / fault.file)


def line_of(fault: Fault, answer: Answer) -> dict[str, str]:
    """The line of `found.csv`."""
    found = "yes" if answer.status == FAILS else f"no (exit {answer.status})"
    cells = (fault.area, fault.name, fault.gate, found, f"{answer.cpu_seconds:.0f}", answer.said, fault.edit)
    return dict(zip(COLUMNS, cells, strict=True))


def read_found(path: Path = FOUND) -> dict[str, dict[str, str]]:
    """The lines of an earlier run by fault; none if there is no file."""
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {line["fault"]: line for line in csv.DictReader(file)}


def is_found(fault: Fault, lines: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether these lines have that its gate found this fault."""
    line = lines.get(fault.name, {})
    return (line.get("found"), line.get("edit")) == ("yes", fault.edit)


def write_found(lines: Mapping[str, Mapping[str, str]], faults: Sequence[Fault]) -> None:
    """Write the lines of the faults that there are, in the order of the list."""
    with FOUND.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines[fault.name] for fault in faults if fault.name in lines)


def main() -> int:
    """The command line; the exit status is 1 if a gate did not find its fault, 2 for bad input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--copy", type=Path, required=True, help="a folder for the copy of the project")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="WORD", help="names with one of these words"
    )
    parser.add_argument("--again", action="store_true", help="also faults that found.csv has")
    parser.add_argument(
        "--sound", action="store_true", help="first run all gates without a fault, as the suite does"
    )
    given = parser.parse_args()
    try:
        faults, lines = read_faults(), read_found()
        chosen = [f for f in faults if any(word in f.name for word in given.only)]
        due = [f for f in chosen if given.again or not is_found(f, lines)]
        began = time.monotonic()
        copy_project(given.copy)
        for module in HEAVY:
            import_module(module)
        if given.sound:
            require_sound(due, given.copy)
        for fault, answer in found_by_gates(due, given.copy):
            lines[fault.name] = line = line_of(fault, answer)
            print(f"{line['found']:>4} {line['cpu_seconds']:>4} s | {fault.name} | {answer.said}", flush=True)
            write_found(lines, faults)
    except ValueError as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    missed = [f.name for f in chosen if not is_found(f, lines)]
    took = time.monotonic() - began
    print(f"{len(chosen) - len(missed)} of {len(chosen)} faults found; {len(due)} asked in {took:.0f} s")
    print("".join(f"not found: {name}\n" for name in missed), end="")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
