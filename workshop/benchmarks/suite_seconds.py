"""CPU seconds of every test file: a pytest plugin, and the table of what it wrote.

    SECONDS_FOLDER=DIR OMP_NUM_THREADS=1 python -m pytest -p suite_seconds -n 2 --dist worksteal
    python -m workshop.benchmarks.suite_seconds DIR > workshop/benchmarks/suite_seconds.csv

A test's seconds are those of its process and of those that it started and waited for, with its fixtures. Wall
times say nothing on a busy machine. `(start and collection)` is what each process spends outside tests.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest


def cpu_s() -> float:
    """CPU seconds of this process and of its ended children so far."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def write_line(name: str, seconds: float) -> None:
    path = Path(os.environ["SECONDS_FOLDER"], f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps([name, seconds]) + "\n")


class Seconds:
    """Writes a line for every test, and one for what a process spends outside tests."""

    in_tests_s = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """A test with the fixtures that it sets up and tears down."""
        start_s = cpu_s()
        outcome = yield
        test_s = cpu_s() - start_s
        self.in_tests_s += test_s
        write_line(item.nodeid, test_s)
        return outcome

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """The rest of a process that runs tests: the one that hands them out to others runs none."""
        if os.environ.get("PYTEST_XDIST_WORKER") or not session.config.getoption("numprocesses", None):
            write_line("(start and collection)", cpu_s() - self.in_tests_s)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Seconds())


def print_table(folder: Path) -> None:
    """Files, dearest first: tests, CPU seconds, and the dearest test."""
    tests: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            name, seconds = json.loads(line)
            file, _, test = name.partition("::")
            tests[file].append((seconds, test))
    totals = {file: sum(seconds for seconds, _ in runs) for file, runs in tests.items()}
    print("file,runs,cpu_s,dearest_cpu_s,dearest_test")
    for file in sorted(totals, key=totals.__getitem__, reverse=True):
        seconds, test = max(tests[file])
        print(f'{file},{len(tests[file])},{totals[file]:.1f},{seconds:.1f},"{test.partition("[")[0]}"')
    print(f"all,{sum(map(len, tests.values()))},{sum(totals.values()):.1f},,")


if __name__ == "__main__":
    print_table(Path(sys.argv[1]))
