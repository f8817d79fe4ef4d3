"""Code that answers hold: what of it runs, what passes, and what it cannot do."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from repro.core.errors import InputError
from repro.metrics.code_tests import PassAt1, code_of, program
from repro.metrics.programs import reaches_its_end

BEFORE = 'import math\n\n\ndef up(x):\n    """The next whole number."""\n'
TESTS = "def check(candidate):\n    assert candidate(2.5) == 3\n"


@pytest.fixture(autouse=True)
def consent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ALLOW_CODE_EVAL", "1")


def test_an_answer_continues_the_prompt_unless_it_defines_the_function() -> None:
    def code(text: str, before: str, function: str) -> str:
        return program(text, before, function, TESTS)

    assert f"{BEFORE}    return 3" in code("    return 3", BEFORE, "up")
    whole = "def up(x):\n    return 3"
    assert f"{BEFORE}\n{whole}" in code(whole, BEFORE, "up")
    assert "\nx = 1" in code("x = 1", "", "")


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
        ("    x = bytearray(1 << 31)\n    return 3", 0.0),
        ("    while True: pass", 0.0),
        ("    assert 'HF_ALLOW_CODE_EVAL' not in __import__('os').environ\n    return 3", 100.0),
        ("    return math.ceil(x)\nprint('\\u00e9' * 3)", 100.0),
    ],
)
def test_an_answer_passes_or_not(text: str, score: float) -> None:
    assert PassAt1().score(text, [BEFORE, "up", TESTS]) == score


def test_a_program_is_ended_with_what_it_started(tmp_path: Path) -> None:
    late = tmp_path / "late"
    child = f"import time; time.sleep(2); open({str(late)!r}, 'w')"
    start = time.monotonic()
    code = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {child!r}])\ntime.sleep(9)"
    assert not reaches_its_end(code, seconds=0.5)
    assert time.monotonic() - start < 5
    time.sleep(2.5)
    assert not late.exists()


def test_without_consent_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for value in ("", "0", "yes"):
        monkeypatch.setitem(os.environ, "HF_ALLOW_CODE_EVAL", value)
        with pytest.raises(InputError, match="in a container, and set HF_ALLOW_CODE_EVAL=1"):
            PassAt1().score(f"open({str(tmp_path / 'x')!r}, 'w')", ["", "", "assert True"])
    assert not [*tmp_path.iterdir()]


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
