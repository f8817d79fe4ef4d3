"""Imports point down, heavy libraries have one importer each, files stay short, errors are not swallowed.

Everything is read from the source itself, so a new file is covered when it is there.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

import repro
from repro.core.paths import project_root
from repro.experiments.hydra_private import TRIED_VERSIONS

SOURCE = Path(repro.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

BELOW = {
    "core": (),
    "device": ("core",),
    "records": ("core",),
    "models": ("core", "device", "records"),
    "data": ("core", "records", "models.checkpoints"),  # one way to fetch a package's file
    "metrics": ("core", "records"),
    "methods": ("core", "device", "records", "models"),
    "reports": ("core", "device", "records"),
    "scenarios": ("core", "device", "records", "models", "data", "metrics", "methods", "reports.reference"),
    "experiments": (
        "core",
        "device",
        "records",
        "models",
        "data",
        "metrics",
        "methods",
        "reports",
        "scenarios",
    ),
}
"""What each top room may import of `repro` beside itself. The commands beside the rooms may import all."""

LIBRARIES = "repro.libraries"
"""The module that binds slow libraries; what one imports of it is the library."""

ENTRANCES = {"__main__.py", "commands.py"}
"""Modules beside the rooms that users run."""

ONLY = {
    # tokenizers, configurations, quantized weights and GGUF; encoder-decoders; encoders and their tokenizers
    "transformers": {
        "models/checkpoints/checkpoint.py",
        "models/checkpoints/config_settings.py",
        "models/checkpoints/dequantizing.py",
        "models/checkpoints/gguf_file.py",
        "models/forward/encdec.py",
        "methods/elastilm/word_pieces.py",
    },
    "huggingface_hub": {"models/checkpoints/hub.py"},
    "gguf": {"models/checkpoints/gguf_file.py", "models/quantization/ggml_formats.py"},
    "safetensors": {"models/checkpoints/safetensors_io.py"},
    "datasets": {"data/sources.py"},
    "evaluate": {"metrics/evaluated.py"},
    "wandb": {f"experiments/tracking/{name}.py" for name in ("tracker", "contents")},
    "distributed": {"experiments/dask_engine.py"},
    "hydra": {
        f"experiments/{name}.py" for name in ("composing", "command_words", "plan", "cli", "hydra_private")
    },
    "numba": {"methods/ghidorah/tree_loops.py", "methods/speculative/drafting/tree_replay.py"},
    "scipy": {"models/calibration/fit.py"},
    # a download's deadline, what cells take here, the age of a file: none is a run's time
    "time": {
        *("device/clock.py", "models/checkpoints/wheels.py", "core/reading.py", "records/store.py"),
        "models/calibration/board_calibrator.py",  # which runs alone, where there is no clock of ours
        *(f"experiments/{name}.py" for name in ("dask_engine", "sweep")),
    },
}
"""Libraries that one file imports for all; every file named must really do so."""


TESTS = Path(__file__).resolve().parent


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(text(path), str(path))


@cache
def statements(module: ast.Module) -> tuple[ast.AST, ...]:
    """All imports, classes and handlers of a file, which is walked once."""
    kinds = ast.Import, ast.ImportFrom, ast.ClassDef, ast.ExceptHandler
    return tuple(node for node in ast.walk(module) if isinstance(node, kinds))


def imports(module: ast.Module) -> Iterator[str]:
    """Every module that is imported anywhere in a file, `from a import b` as `a.b`."""
    for node in statements(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import hides where it points"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def rooms() -> dict[str, set[str]]:
    """Which rooms each room imports from. A room is a folder of modules, named by its path."""
    found: dict[str, set[str]] = {}
    for path in FILES:
        if path.name != "__init__.py":
            own = room(name(path).removesuffix(".py").split("/"))
            found.setdefault(own, set()).update(
                room(i.split(".")[1:]) for i in imports(tree(path)) if ours(i)
            )
    return {one: others - {one} for one, others in found.items()}


def climbs(top: str, module: ast.Module) -> list[str]:
    """Imports of `repro` that a top room must not have."""
    own = [i.removeprefix("repro.") for i in imports(module) if ours(i)]
    return [i for i in own if not any(i == b or i.startswith(f"{b}.") for b in (top, *BELOW[top]))]


def ours(module: str) -> bool:
    return module.startswith("repro.") and not module.startswith(LIBRARIES)


def room(parts: Sequence[str]) -> str:
    """The folder of a module, or of a name within one."""
    at = SOURCE
    for part in parts:
        if not (at / part).is_dir():
            break
        at /= part
    return at.relative_to(SOURCE).as_posix()


def circle(arrows: Mapping[str, set[str]]) -> list[str]:
    """Rooms that import each other in a circle; none if there is no circle."""
    left = {one: set(others) & set(arrows) for one, others in arrows.items()}
    while free := [one for one, others in left.items() if not others & set(left)]:
        for one in free:
            del left[one]
    return sorted(left)


def swallowed(module: ast.Module) -> list[int]:
    """Lines of handlers that do nothing, and of bare ones."""
    handlers = [node for node in statements(module) if isinstance(node, ast.ExceptHandler)]
    return [h.lineno for h in handlers if h.type is None or all(_is_nothing(s) for s in h.body)]


def _is_nothing(statement: ast.stmt) -> bool:
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return constant or isinstance(statement, ast.Pass)


@cache
def libraries(path: Path) -> frozenset[str]:
    found = imports(tree(path))
    return frozenset(i.removeprefix(f"{LIBRARIES}.").split(".")[0] for i in found if i != LIBRARIES)


def importers(library: str) -> set[str]:
    """Files of the product."""
    return {name(p) for p in FILES if library in libraries(p) and name(p) != "libraries.py"}


def test_rooms_import_each_other_in_no_circle() -> None:
    found = rooms()
    assert len(found) >= 10
    assert circle(found) == []


def test_all_top_rooms_are_known() -> None:
    assert {name(p).split("/")[0] for p in FILES if "/" in name(p)} == set(BELOW)
    assert {name(p) for p in FILES if "/" not in name(p)} == {"__init__.py", "libraries.py", *ENTRANCES}


@pytest.mark.parametrize("top", BELOW)
def test_imports_point_down(top: str) -> None:
    wrong = {name(p): found for p in (SOURCE / top).rglob("*.py") if (found := climbs(top, tree(p)))}
    assert wrong == {}


def test_private_parts_of_hydra_are_imported_in_one_file_and_none_is_replaced() -> None:
    plugins = [path for path in (SOURCE.parent / "hydra_plugins").rglob("*.py")]
    private = re.compile(r"hydra\._internal|omegaconf\.(_\w+|base\b|grammar)")
    files = {path for path in (*FILES, *plugins) if any(map(private.match, imports(tree(path))))}
    assert files == {SOURCE / "experiments" / "hydra_private.py"}
    assigned = re.compile(r"\s*(hydra|omegaconf|defaults_list|ConfigStore)(\.\w+)+ = ")
    assert not [path for path in (*FILES, *plugins) if any(map(assigned.match, text(path).split("\n")))]


@pytest.mark.parametrize(("library", "tried"), TRIED_VERSIONS.items())
def test_private_parts_were_tried_with_the_version_that_is_installed(library: str, tried: str) -> None:
    assert version(library).split(".")[:2] == tried.split(".")[:2], "the last number is of mended faults"


def test_an_import_that_climbs_is_noticed() -> None:
    assert climbs("models", ast.parse("from repro import methods")) == ["methods"]
    assert climbs("core", ast.parse("def late():\n    import repro.models.tokens")) == ["models.tokens"]
    assert climbs("scenarios", ast.parse("from repro.reports.tables import table")) == [
        "reports.tables.table"
    ]
    assert climbs("scenarios", ast.parse("from repro.reports.reference import reference")) == []


def test_a_room_is_small_and_says_what_it_is_for() -> None:
    for folder in sorted({path.parent for path in FILES}):
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= 20, folder
        assert ast.get_docstring(tree(folder / "__init__.py")), f"{folder} has no purpose"


def test_every_module_is_imported_or_registers_something() -> None:
    commands = sorted((SOURCE.parents[1] / "scripts").rglob("*.py"))
    commands += sorted((SOURCE.parent / "hydra_plugins").rglob("*.py"))
    wanted = {i for path in (*FILES, *commands) for i in imports(tree(path))}
    wanted |= {i.rpartition(".")[0] for i in wanted}
    late = "".join(text(path) for path in FILES)
    unused = []
    for path in FILES:
        own = "repro." + name(path).removesuffix(".py").replace("/", ".")
        used = own in wanted or f'"{own}' in late or "register(" in text(path) or "__main__" in text(path)
        if not (used or path.name == "__init__.py" or name(path) in ENTRANCES):
            unused.append(own)
    assert unused == []


def test_a_public_class_is_defined_once() -> None:
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name(path))
    assert {cls: where for cls, where in homes.items() if len(where) > 1} == {}


def test_classes_have_the_field_s_words() -> None:
    """Names that were replaced by the field's do not come back."""
    gone = {"Flight", "Halt", "Sight", "Bill", "Writing", "Ask", "Unmet", "Respondents", "DenseCell"}
    nodes = [(name(path), node) for path in FILES for node in statements(tree(path))]
    assert [(where, n.name) for where, n in nodes if isinstance(n, ast.ClassDef) and n.name in gone] == []


def test_a_circle_of_rooms_is_noticed() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == ["a", "b", "c", "d"]
    assert room(["core", "errors", "InputError"]) == "core"


@pytest.mark.parametrize("library", ONLY)
def test_a_library_has_its_importers_and_no_others(library: str) -> None:
    assert importers(library) == ONLY[library]


def test_a_second_opinion_knows_nothing_of_us() -> None:
    files = [TESTS / "committed_results.py", *sorted((TESTS / "second_opinion").glob("*.py"))]
    assert len(files) > 5
    for path in files:
        assert not [i for i in imports(tree(path)) if ours(f"{i}.")], path


def test_the_product_imports_nothing_of_the_workshop() -> None:
    assert importers("workshop") == set()


PAPERS = ("edgellm", "elastilm", "ghidorah", "lever", "mllm_npu", "sti")
"""Folders of `methods/` that hold a paper's system."""

BASELINES = {
    "ghidorah": (),
    "elastilm": (
        "methods/compression/pruning/contextual_sparsity.py",
        "methods/compression/pruning/llm_pruner.py",
        "methods/serving/systems/services.py",
    ),
}
"""Files that may import a paper's system beside its own: the baselines that are built of its parts."""


@pytest.mark.parametrize("paper", PAPERS)
def test_no_shared_module_imports_a_paper_s_system(paper: str) -> None:
    wanted, own = f"repro.methods.{paper}.", f"methods/{paper}/"
    found = {name(p) for p in FILES if any(i.startswith(wanted) for i in imports(tree(p)))}
    assert {file for file in found if not file.startswith(own)} <= set(BASELINES.get(paper, ()))


def test_the_core_knows_no_torch() -> None:
    assert not {p for p in importers("torch") if p.startswith("core/")}


def test_no_test_imports_another() -> None:
    """What several need lies in modules without tests; each process of a parallel run would make it anew."""
    tests = sorted(Path(__file__).parent.rglob("*.py"))
    assert len(tests) >= 100
    another = re.compile(r"^\s*(from|import) (\w+\.)*test_", re.MULTILINE)
    assert another.search("    from scenarios.test_laws import decoded")
    assert [path.name for path in tests if another.search(text(path))] == []


def test_files_are_short() -> None:
    lines = {name(path): len(text(path).splitlines()) for path in FILES}
    assert {file: count for file, count in lines.items() if count > 600} == {}


def test_a_module_says_first_what_it_owns() -> None:
    modules = [path for path in FILES if path.name != "__init__.py"]
    assert [name(path) for path in modules if not ast.get_docstring(tree(path))] == []


def test_no_file_swallows_an_error() -> None:
    assert {name(path): lines for path in FILES if (lines := swallowed(tree(path)))} == {}


def unencoded(module: ast.Module) -> list[int]:
    """Lines of calls that read or write text in the encoding of the machine's locale."""
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if _is_text(call) and not _names_encoding(call)]


def _is_text(call: ast.Call) -> bool:
    """Whether a call opens, reads or writes a text; what is neither a path nor a file has no text mode."""
    function, named = ast.unparse(call.func), {word.arg for word in call.keywords}
    last = function.rpartition(".")[2]
    if last in ("read_text", "write_text"):
        return True
    if function.startswith("subprocess."):
        return "text" in named
    given = (*call.args, *(word.value for word in call.keywords))
    modes = {str(value.value) for value in given if isinstance(value, ast.Constant)}
    text = any(set(mode) <= set("rwaxt+") and mode for mode in modes)
    if function in ("gzip.open", "lzma.open", "tempfile.NamedTemporaryFile"):
        return text
    binary = any(set(mode) <= set("rwaxb+") and "b" in mode for mode in modes)
    return last == "open" and function not in NO_TEXT and not binary


NO_TEXT = ("os.open", "Image.open", "archive.open", "self.open")
"""Functions named `open` that open no text file."""


def _names_encoding(call: ast.Call) -> bool:
    where = {"read_text": 1, "write_text": 2}.get(ast.unparse(call.func).rpartition(".")[2], 9)
    return len(call.args) >= where or any(word.arg in ("encoding", None) for word in call.keywords)


def test_every_text_file_has_an_encoding() -> None:
    """In the C locale Python would read and write ASCII."""
    project = Path(__file__).parents[1]
    written = [p for top in ("tests", "scripts", "workshop") for p in (project / top).rglob("*.py")]
    assert {str(path): lines for path in (*FILES, *written) if (lines := unencoded(tree(path)))} == {}


def test_a_text_file_without_an_encoding_is_noticed() -> None:
    wrong = ("open(a)", "p.open('w')", "p.read_text()", "p.write_text(a)", "gzip.open(p, 'rt')")
    right = (
        "open(a, 'rb')",
        "p.open('w', encoding='utf-8')",
        "p.read_text('utf-8')",
        "gzip.open(p)",
        "os.open(p, 0)",
    )
    assert [source for source in (*wrong, *right) if unencoded(ast.parse(source))] == [*wrong]
    assert unencoded(ast.parse("subprocess.run(a, text=True)")) == [1]


def test_a_swallowed_error_is_noticed() -> None:
    assert swallowed(ast.parse("try:\n    f()\nexcept OSError:\n    pass")) == [3]
    assert swallowed(ast.parse("try:\n    f()\nexcept:\n    raise")) == [3]
    assert swallowed(ast.parse("try:\n    f()\nexcept OSError:\n    ...")) == [3]
    assert swallowed(ast.parse("try:\n    f()\nexcept OSError:\n    g()")) == []


def test_tests_that_are_run_as_other_hosts_are_there() -> None:
    """A name without a file would end that run with no test at all."""
    lists = '"${COMPUTING_TESTS[@]}" "${NAMING_TESTS[@]}" "${WRITING_TESTS[@]}"'
    script = f"source scripts/other_hosts.sh; printf '%s\\n' {lists}"
    said = subprocess.run(
        ["bash", "-c", script],
        cwd=project_root(),
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    )
    names = said.stdout.split()
    assert len(names) > 20
    assert [name for name in names if not (project_root() / name).exists()] == []
