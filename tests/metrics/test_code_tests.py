"""Code that answers hold: what of it runs, what passes, and what it cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repro.core.errors import InputError
from repro.metrics import isolation
from repro.metrics.code_tests import PassAt1, code_of, program
from repro.metrics.isolation import Finished, ProgramLimits, run

BEFORE = 'import math\n\n\ndef up(x):\n    """The next whole number."""\n'
TESTS = "def check(candidate):\n    assert candidate(2.5) == 3\n"
SHORT = ProgramLimits(cpu_seconds=1, wall_seconds=20.0, memory=1 << 28, output=1 << 16)
isolated = pytest.mark.skipif(bool(isolation.unable()), reason=isolation.unable() or "isolation")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("So:\n```python\nx = 1\n```\nor\n```\nx = 2\n```", "x = 1\n"),
        ("```\nx = 1\nx += 1", "x = 1\nx += 1"),
        ("    return 1", "    return 1"),
        ("```Python\r\nx = 1\n```", "x = 1\n"),
    ],
)
def test_the_first_fenced_block_is_the_code(text: str, code: str) -> None:
    assert code_of(text) == code


def test_an_answer_continues_the_prompt_unless_it_defines_the_function() -> None:
    assert program("    return 3", BEFORE, "up", TESTS) == f"{BEFORE}    return 3\n\n{TESTS}\n\ncheck(up)\n"
    whole = "def up(x):\n    return 3"
    assert program(whole, BEFORE, "up", TESTS) == f"{BEFORE}\n{whole}\n\n{TESTS}\n\ncheck(up)\n"
    assert program("x = 1", "", "", "assert x") == "\nx = 1\n\nassert x\n"


@isolated
@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("    return math.ceil(x)\n", 100.0),
        ("Sure.\n```python\ndef up(x):\n    return math.ceil(x)\n```\nDone.", 100.0),
        ("    return x\n", 0.0),
        ("    return (", 0.0),
        ("", 0.0),
        ("    pass\nimport sys\nsys.exit(0)", 0.0),  # leaves with status 0 before a test
        ("    pass\nimport os\nos._exit(0)", 0.0),
        ("    return math.ceil(x)\nprint('\\u00e9' * 3)", 100.0),
    ],
)
def test_an_answer_passes_or_not(text: str, score: float) -> None:
    assert PassAt1().score(text, [BEFORE, "up", TESTS]) == score


@isolated
@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import socket\nsocket.create_connection(('127.0.0.1', 9), 1)", "Network is unreachable"),
        ("bytearray(1 << 29)", "MemoryError"),
        ("open('much', 'wb').write(bytes(1 << 20))", "File too large"),
        (
            "import ctypes\nassert not ctypes.CDLL(None).mount(b'x', b'/dev', b'tmpfs', 0, b'')",
            "AssertionError",
        ),
        ("import rich", "No module named 'rich'"),
        ("assert __import__('os').environ.get('WANDB_API_KEY')", "AssertionError"),
    ],
)
def test_a_program_is_kept_from(code: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    finished = run(code, SHORT)
    assert not finished.whole
    assert says in finished.said


@isolated
def test_a_program_writes_to_its_own_folder_only(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("as it was", encoding="utf-8")
    assert run("open('own', 'w').write('x')\nassert open('own').read() == 'x'") == Finished(True)
    for harm in (f"open('{tmp_path}/new', 'w')", f"import os\nos.remove('{tmp_path}/kept')"):
        assert "Read-only file system" in run(harm).said
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@isolated
def test_time_is_limited() -> None:
    assert not run("while True: pass", SHORT).whole
    late = ProgramLimits(wall_seconds=0.5)
    assert run("import time\ntime.sleep(30)", late) == Finished(False, "took more than 0.5 s")


@pytest.fixture
def asked_anew() -> Iterator[None]:
    """What this machine can do is found out in the test, and again after it."""
    isolation.unable.cache_clear()
    yield
    isolation.unable.cache_clear()


def test_without_the_tools_nothing_runs(monkeypatch: pytest.MonkeyPatch, asked_anew: None) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: None)
    with pytest.raises(InputError, match="without unshare and setpriv"):
        PassAt1().score("x = 1", ["", "", "assert x"])
    with pytest.raises(InputError, match="metric 'pass_at_1': generated code runs on Linux with util-linux"):
        PassAt1().ready()


@isolated
def test_without_namespaces_nothing_runs(monkeypatch: pytest.MonkeyPatch, asked_anew: None) -> None:
    """A kernel that gives none fails in `unshare`; so does a call without the user namespace's mapping."""
    monkeypatch.setattr(isolation, "NAMESPACES", ("--user", "--mount"))
    with pytest.raises(
        InputError, match=r"generated code is not run here: the kernel gives .* no user and netw"
    ):
        run("pass")


WHOLE = (
    'import math\n\ndef up(x):\n    """Up.\n\n    ```\n    up(1)\n    ```\n    """\n'
    "    return math.floor(x) + 1\n"
)
FORMS = {
    "python3": "```python3\n{}```",
    "title": 'Here:\n```Python title="a.py"\n{}```\nDone.',
    "tildes": "~~~py\n{}~~~",
    "four ticks": "````\n{}````",
    "a shell first": "Run\n```bash\npip install x\n```\nthen\n```python\n{}```",
    "an example first": "```python\nup(1) + nothing\n```\n```python\n{}```",
    "an end alone": "{}```\n\nIt goes up.",
    "no end": "```python\n{}",
    "no fence": "Sure, here it is:\n\n{}\n\nIt goes up.",
    "a cut test": "```python\n{}\nprint(up([1, 2",
    "a main": "```python\n{}\nif __name__ == '__main__':\n    input()\n```",
}


@pytest.mark.parametrize("form", FORMS)
def test_the_code_of_an_answer_is_found_in_every_fence(form: str) -> None:
    code = code_of(FORMS[form].format(WHOLE), "", {"up"})
    scope: dict[str, Any] = {}
    exec(code, scope)
    assert scope["up"](2.5) == 3


def test_indented_fences_helpers_and_completions_are_found() -> None:
    listed = "1. Code:\n   ```python\n   def up(x):\n       return x + 1\n   ```"
    assert code_of(listed, "", {"up"}) == "def up(x):\n    return x + 1\n"
    split = "```python\ndef one():\n    return 1\n```\n```python\ndef up(x):\n    return x + one()\n```"
    assert "def one" in code_of(split, "", {"up"})
    before = 'def up(x):\n    """Up."""\n'
    for answer in ("    return x\n```\nDone.", "return x", "   return x", "    return x\nprint(up([1"):
        assert before + code_of(answer, before, {"up"}).rstrip() == f"{before}    return x", answer
