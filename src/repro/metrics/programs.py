"""Runs Python that nobody has read, if the user agreed: in a process with limits of time and memory.

The process has the user's rights, so a container or another machine is what keeps it from doing harm.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from repro.core.errors import InputError

CONSENT_VARIABLE = "HF_ALLOW_CODE_EVAL"
"""The environment variable by which `evaluate` and other harnesses ask for consent, too."""
END_STATUS = 100
"""Exit status of a program that reached its end; one that leaves early has another."""
MOST_SECONDS = 15.0
LIMITS = {"CPU": 5, "AS": 1 << 30, "FSIZE": 1 << 20, "CORE": 0}
"""Seconds of CPU, bytes of memory and of a file, and no core file, where the system can limit them."""

LIMITS_CODE = f"""
try:
    import resource as _resource
except ImportError:
    pass
else:
    for _name, _most in {LIMITS!r}.items():
        _resource.setrlimit(getattr(_resource, "RLIMIT_" + _name), (_most, _most))
"""
END_CODE = f"\n\nimport os as _os\n_os._exit({END_STATUS})\n"


def require_consent(label: str) -> None:
    """InputError unless the user has agreed that generated code runs here."""
    if os.environ.get(CONSENT_VARIABLE) != "1":
        raise InputError(
            f"{label} runs code that a model wrote, with your rights on this machine; run it in a container, "
            f"and set {CONSENT_VARIABLE}=1 there to agree"
        )


def reaches_its_end(program: str, seconds: float = MOST_SECONDS) -> bool:
    """Whether a program runs to its last line within the limits."""
    with TemporaryDirectory(prefix="repro-program-") as folder:
        file = Path(folder) / "program.py"
        file.write_text(LIMITS_CODE + program + END_CODE, encoding="utf-8")
        silent = subprocess.DEVNULL
        process = subprocess.Popen(
            [sys.executable, "-I", str(file)],
            cwd=folder,
            env={},
            stdin=silent,
            stdout=silent,
            stderr=silent,
            start_new_session=True,
        )
        try:
            return process.wait(seconds) == END_STATUS
        except subprocess.TimeoutExpired:
            return False
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the program and what it started in its session."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
