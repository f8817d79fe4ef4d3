"""CONTRIBUTING.md's examples, as a package of a user's own, join what is there without a change to it."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from repro.models.checkpoints.origin import PROJECT
from repro.reports.tables import members
from tiny_project import Project, write_project

EXAMPLE = re.compile(r"`([\w./]+\.(?:toml|py|yaml))`[^`]*?:\n\n```\w+\n(.*?)```", re.DOTALL)
QUESTIONS = [{"question": f"Is {n} even? {n} {n} {n}", "answer": "yes"} for n in (2, 4)]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = write_project(tmp_path_factory.mktemp("project"))
    lines = [json.dumps(row) + "\n" for row in QUESTIONS]
    (made.root / "data" / "my_questions.jsonl").write_text("".join(lines))
    return made


@pytest.fixture(scope="module")
def site(project: Project) -> Path:
    """A folder of packages with the one of the page in it, as an installer would leave it."""
    folder = project.root / "site"
    examples = dict(EXAMPLE.findall((PROJECT / "CONTRIBUTING.md").read_text()))
    assert sorted(examples) == [
        "my_methods/conf/dataset/my_questions.yaml",
        "my_methods/conf/device/my_phone.yaml",
        "my_methods/conf/model/my_model.yaml",
        "my_methods/distinct.py",
        "my_methods/lookup.py",
        "pyproject.toml",
    ]
    for name, content in examples.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    about = tomllib.loads(examples["pyproject.toml"])["project"]
    info = folder / "my_methods-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: 0.1\n")
    sections = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in about["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(sections))
    return folder


BOTH = """
import json, sys
from repro.experiments.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["repro", *arguments]
    main()
"""


@pytest.fixture(scope="module")
def quickstart(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The same models, with two rows of the quickstart's table."""
    mine = project.apart(tmp_path_factory.mktemp("quickstart"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPRO_CACHE", str(project.root / "cache"))
        mine.table([mine.cell("experiment=quickstart", f"method={method}") for method in ("std", "flash_ar")])
    return mine


@pytest.fixture(scope="module")
def said(project: Project, quickstart: Project, site: Path) -> str:
    """What two commands print, of a process that has the package; importing it all takes the time."""
    five = ["method=lookup", "device=my_phone", "dataset=my_questions", "model@target=my_model"]
    commands = [
        [*project.overrides, *five, "metrics=[distinct]"],
        [*quickstart.overrides, "experiment=quickstart", "method=lookup"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", BOTH, json.dumps(commands)],
        cwd=project.root,
        env=project.environment(site),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_five_in_one_cell(project: Project, said: str) -> None:
    (record,) = project.store.all()
    assert record.labels["method"] == "lookup"
    assert record.labels["device"] == "My phone"
    assert record.labels["dataset"] == "my_questions"
    assert record.labels["target"] == "My model"
    assert 0 < float(record.values["distinct"] or 0) <= 1
    assert record.values["exact_match"] == 1.0
    assert record.provenance.budget == 6e9
    assert record.provenance.config["method"] == {"name": "lookup", "length": 4}
    assert {r["reason"] for r in project.store.rounds(record.key)} == {"copied"}
    assert max(int(r["drafted"] or 0) for r in project.store.rounds(record.key)) > 0
    assert "distinct" in said


def test_a_method_of_one_s_own_joins_an_existing_table(quickstart: Project, said: str) -> None:
    tables = quickstart.out / "results" / "tables"
    rows = [line.split(" | ")[0] for line in (tables / "quickstart.md").read_text().splitlines()]
    assert rows.index("| lookup") > rows.index("| Flash-AR") > rows.index("| Std (resident)")
    assert len(members.read(tables, "quickstart", quickstart.store)) == 3
    speeds = [line for line in (tables / "quickstart.csv").read_text().splitlines() if ",speedup," in line]
    assert float(next(line for line in speeds if line.startswith("lookup")).split(",")[4]) > 0
