"""Code that answers hold: what of it runs, what passes, and what it cannot do."""

# ruff: noqa: E501  # programs of a line

from __future__ import annotations

import os
import socket
import tempfile
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
    def code(text: str, before: str, function: str) -> str:
        return program(text, before, function, TESTS)[1]

    assert repr(f"{BEFORE}    return 3") in code("    return 3", BEFORE, "up")
    whole = "def up(x):\n    return 3"
    assert repr(f"{BEFORE}\n{whole}") in code(whole, BEFORE, "up")
    assert repr("\nx = 1") in code("x = 1", "", "")


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
        ("import os\nos.fork()", "BlockingIOError"),
        ("import threading\nthreading.Thread(target=print).start()", "RuntimeError: can't start new thread"),
        ("import os\nassert os.geteuid() and os.path.exists('/proc/self')", "AssertionError"),
        ("import os\nos.setuid(1)", "PermissionError" if os.geteuid() == 0 else "OSError"),
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
def test_a_program_sees_its_own_folder_and_libraries_only(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("as it was", encoding="utf-8")
    assert run("open('own', 'w').write('x')\nassert open('own').read() == 'x'") == Finished(True)
    for harm in (f"open('{tmp_path}/new', 'w')", f"open('{tmp_path}/kept')", "open('/etc/passwd')"):
        assert "No such file or directory" in run(harm).said
    assert "Read-only file system" in run("import os\nopen(os.__file__ + 'new', 'w')").said
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@isolated
def test_sockets_of_the_host_are_out_of_reach() -> None:
    """A path of at most 107 bytes, and an abstract name; the test itself reaches both."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        for address in (f"{folder}/s", f"\0repro-{os.getpid()}"):
            with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
                server.bind(address)
                server.listen()
                client.connect(address)
                code = f"import socket\nsocket.socket(socket.AF_UNIX).connect({address!r})"
                said = run(code).said
                assert "No such file or directory" in said or "Connection refused" in said


@isolated
def test_what_a_program_says_is_bounded() -> None:
    endless = "import sys\nwhile True: sys.stderr.write('x' * 100000)"
    finished = run(endless, SHORT)
    assert not finished.whole
    assert len(finished.said) <= 2000


UP = ("", "", "assert up(2.5) == 3\nassert up(-1) == -1")
FORGERIES = {
    "equals everything": "class E:\n    __eq__ = lambda s, o: True\n    __ne__ = lambda s, o: False\ndef up(x): return E()",
    "int subclass": "class I(int):\n    __eq__ = lambda s, o: True\n    __hash__ = int.__hash__\ndef up(x): return I(9)",
    "within a list": "class I(int):\n    __eq__ = lambda s, o: True\ndef up(x): return [I(1)]",
    "metaclass": "class M(type):\n    __eq__ = lambda s, o: True\nclass up(metaclass=M):\n    def __new__(c, x): return c",
    "builtins": "import builtins\nbuiltins.AssertionError = ValueError\nbuiltins.eval = None\ndef up(x): return 0",
    "unittest, math": "import math, unittest\nmath.isclose = lambda *a, **k: True\nunittest.TestCase = object\ndef up(x): return 0",
    "sys.exit": "import sys\ndef up(x): sys.exit(0)",
    "os._exit": "import os\ndef up(x): os._exit(100)",
    "exit at once": "import os\nos._exit(100)",
    "StopIteration": "def up(x): raise StopIteration",
    "frames": "import sys\ndef up(x):\n    f = sys._getframe()\n    while f:\n        for v in [*f.f_locals.values(), f.f_code.co_consts]:\n            if ''.join(['ass', 'ert up']) in str(v): return 3 if x > 0 else -1\n        f = f.f_back",
    "/proc": "def up(x): return 3 if x > 0 and b'ert up' in open('/proc/1/cmdline', 'rb').read() else -1",
    "source file": "import os\ndef up(x):\n    os.lseek(0, 0, 0)\n    s = os.read(0, 1 << 20)\n    return (3 if x > 0 else -1) if b'== %d' % 3 in s else None",
    "verdict": "import os\nfor fd in range(64):\n    try: os.write(fd, b'[\"value\", true, null]\\n' * 99)\n    except OSError: pass\ndef up(x): return True",
    "atexit": "import atexit, os\natexit.register(lambda: os._exit(100))\ndef up(x): raise SystemExit(100)",
    "generator": "def up(x):\n    yield 3",
    "excepthook": "import sys\nsys.excepthook = lambda *a: sys.exit(100)\ndef up(x): 1 / 0",
    "kill": "import os, signal\ndef up(x):\n    os.kill(1, 9); os.kill(-1, 9)",
    "json": 'import json\njson.dumps = lambda v: \'["value", {"a": 1}, null]\'\ndef up(x): return 0',
    "another object's text": 'import json\njson.dumps = lambda v: \'["value", ["tests", 0], null]\'\ndef up(x): return 0',
}


@isolated
@pytest.mark.parametrize("code", FORGERIES.values(), ids=FORGERIES)
def test_a_pass_cannot_be_forged(code: str) -> None:
    assert PassAt1().score("import math\ndef up(x): return math.ceil(x)", UP) == 100.0
    assert PassAt1().score(code, UP) == 0.0


@isolated
def test_helpers_of_the_prompt_are_the_prompts_own_in_the_tests() -> None:
    before = 'def shift(s):\n    return s[1:] + s[:1]\n\n\ndef back(s):\n    """Undo shift."""\n'
    tests = "def check(candidate):\n    assert candidate(shift('abc')) == 'abc'\n"
    assert PassAt1().score("    return s[-1:] + s[:-1]\n", (before, "back", tests)) == 100.0
    forged = "```\ndef shift(s): return s\ndef back(s): return s\n```"
    assert PassAt1().score(forged, (before, "back", tests)) == 0.0


@isolated
@pytest.mark.parametrize(
    ("code", "tests"),
    [
        ("def sum(a, b): return a - b", "assert sum(5, 3) == 2"),
        ("def f(x): return x", "assert f(float('inf')) == float('inf')\nassert f(nan := float('nan')) != nan"),
        ("def f(x): return x", "for x in (1j, b'a', {1, 2}, (1, [2.5]), {'a': None}, ..., frozenset({1}), 10**5000):\n"
         "    assert f(x) == x and type(f(x)) is type(x)"),
        ("def f(x): x.append(3)", "a = [1]\nf(a)\nassert a == [1, 3]"),
        ("def f(g, x): return g(g(x))", "assert f(lambda x: 2 * x, 3) == 12"),
        ("def f(xs, kind): return [x for x in xs if type(x) is not kind]", "assert f((1, 'a'), int) == ['a']"),
        ("def f(x): raise KeyError('no')", "try:\n    f(1)\nexcept KeyError:\n    pass\nelse:\n    assert False"),
        ("class P:\n    def __init__(self, a): self.a = a\ndef f(ps): return sum(p.a for p in ps)",
         "p = P(1)\np.a = 5\nassert f([p, P(2)]) == 7"),
        ("import sys\ndef f(x): return sys.getsizeof(x)", "assert f((1, 2)) == sys.getsizeof((1, 2))"),
        ("from collections import Counter\ndef f(x): return Counter(x)", "assert f('aab') == {'a': 2, 'b': 1}"),
        ("def f(n): return (i for i in range(n))", "assert list(f(3)) == [0, 1, 2]"),
    ],
)  # fmt: skip
def test_tests_may_use_more_than_calls(code: str, tests: str) -> None:
    assert PassAt1().score(code, ("", "", tests)) == 100.0


@isolated
def test_a_program_that_leaves_early_is_not_whole() -> None:
    assert not run("import os\nos._exit(0)").whole
    assert not run("import sys\nsys.exit(0)").whole


@isolated
def test_time_is_limited() -> None:
    assert not run("while True: pass", SHORT).whole
    late = ProgramLimits(wall_seconds=0.5)
    assert run("import time\ntime.sleep(30)", late) == Finished(False, "took more than 0.5 s")


@pytest.fixture
def asked_anew() -> Iterator[None]:
    """What this machine can do is found out in the test, and again after it."""
    isolation._way.cache_clear()
    yield
    isolation._way.cache_clear()


def test_without_the_tools_nothing_runs(monkeypatch: pytest.MonkeyPatch, asked_anew: None) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: None)
    with pytest.raises(InputError, match="without unshare"):
        PassAt1().score("x = 1", ["", "", "assert x"])
    with pytest.raises(InputError, match="metric 'pass_at_1': generated code runs on Linux with util-linux"):
        PassAt1().ready()


@isolated
def test_without_namespaces_nothing_runs(monkeypatch: pytest.MonkeyPatch, asked_anew: None) -> None:
    """A kernel that gives none fails in `unshare`; so does a call without the user namespace's mapping."""
    monkeypatch.setattr(isolation, "WAYS", ((("--user", "--mount"), 0),) * 2)
    with pytest.raises(
        InputError, match=r"generated code is not run here: the kernel gives .* no namespaces"
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
