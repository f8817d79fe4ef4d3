"""CONTRIBUTING.md's examples, as a user's own package, join what is there without a change to it.

pip builds and installs the package, into environments that see the packages of the one that runs the tests.
"""

import json
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from repro.core.paths import project_root
from tiny_project import Project, write_project

EXAMPLE = re.compile(r"`([\w./]+\.(?:toml|py|yaml|csv|bib))`[^`]*?:\n\n```\w+\n(.*?)```", re.DOTALL)
QUESTIONS = [{"question": f"Is {n} even? {n} {n} {n}", "answer": "yes"} for n in (2, 4)]
FIVE = [
    *("method=lookup", "device=my_phone", "dataset=my_questions", "model@target=my_model"),
    "metrics=[distinct]",
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = write_project(tmp_path_factory.mktemp("project"))
    lines = [json.dumps(row) + "\n" for row in QUESTIONS]
    (made.root / "data" / "my_questions.jsonl").write_text("".join(lines), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's package, file by file; it has no `__init__.py`."""
    folder = tmp_path_factory.mktemp("my_package")
    examples = dict(EXAMPLE.findall((project_root() / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    assert {
        "my_methods/conf/dataset/my_questions.yaml",
        "my_methods/conf/device/my_phone.yaml",
        "my_methods/conf/experiment/mine/lookups.yaml",
        "my_methods/conf/metric/mine.yaml",
        "my_methods/conf/model/my_model.yaml",
        "my_methods/conf/reference/cells.csv",
        "my_methods/conf/reference/names.yaml",
        "my_methods/conf/reference/papers.bib",
        "my_methods/distinct.py",
        "my_methods/lookup.py",
        "pyproject.toml",
    } <= examples.keys()
    for name, content in examples.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return folder


def installed(folder: Path, *what: str) -> Path:
    """The Python of a new environment in `folder`, into which pip has installed `what`, without an index."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    # Not `system_site_packages`: those would be of the Python that this environment was made by.
    (site / "shared.pth").write_text(
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n", encoding="utf-8"
    )
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--quiet"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "install", *offline, *what], check=True)
    return python


MAIN = """
import json, sys
from repro.experiments.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["repro", *arguments]
    main()
"""


def main(project: Project, python: Path, *commands: list[str]) -> str:
    """What several commands print, in one process since importing takes the time."""
    command = [str(python), "-c", MAIN, json.dumps(commands)]
    environment = project.environment()
    done = subprocess.run(
        command, cwd=project.root, env=environment, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    assert "warning: " not in done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def quickstart(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The same models, with two rows of the quickstart's table."""
    mine = project.apart(tmp_path_factory.mktemp("quickstart"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPRO_CACHE", str(project.root / "cache"))
        mine.table([mine.cell("experiment=quickstart", f"method={method}") for method in ("std", "flash_ar")])
    return mine


@pytest.fixture(scope="module")
def said(
    project: Project, quickstart: Project, package: Path, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """What two commands of the page print if the package is installed in place."""
    python = installed(tmp_path_factory.mktemp("environment"), "--editable", str(package))
    cell = [*project.overrides, *FIVE]
    return main(project, python, cell, [*quickstart.overrides, "experiment=quickstart", "method=lookup"])


@pytest.mark.slow
def test_a_wheel_has_all_files_of_the_package(project: Project, package: Path, tmp_path: Path) -> None:
    mine = project.apart(tmp_path)
    main(mine, installed(tmp_path / "environment", str(package)), [*mine.overrides, *FIVE])
    (record,) = mine.store.all()
    assert record.labels["device"] == "My phone"
    assert 0 < float(record.values["distinct"] or 0) <= 1


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
    made = quickstart.quickstart
    rows = [line.split(" | ")[0] for line in (made / "table.md").read_text(encoding="utf-8").splitlines()]
    assert rows.index("| lookup") > rows.index("| Flash-AR") > rows.index("| Std (resident)")
    assert len(quickstart.store.members(made.name)) == 3
    speeds = [
        line for line in (made / "table.csv").read_text(encoding="utf-8").splitlines() if ",speedup," in line
    ]
    assert float(next(line for line in speeds if line.startswith("lookup")).split(",")[5]) > 0
