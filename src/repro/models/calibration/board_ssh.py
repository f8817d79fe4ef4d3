"""`board_calibrator` on a board over ssh: the program goes in by standard input, its JSON comes out.

Owns how the system's ssh is called and what each way of failing means. Nothing is left on the board.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Thread

from repro.core.errors import InputError
from repro.models.calibration import board_calibrator

PROGRAM = Path(board_calibrator.__file__)
NO_PYTHON, OLD_PYTHON, NO_NUMPY = 91, 92, 93
"""Exit statuses of what is asked before the program is run."""
NO_CONNECTION = 255
"""What ssh itself exits with."""
LEAST = ".".join(map(str, board_calibrator.LEAST_PYTHON))
CHECKS = f"""
command -v python3 >/dev/null || exit {NO_PYTHON}
python3 -c 'import sys; sys.exit(sys.version_info < {board_calibrator.LEAST_PYTHON})' || exit {OLD_PYTHON}
python3 -c 'import numpy' 2>/dev/null || exit {NO_NUMPY}
"""


def measure_over_ssh(host: str, words: Sequence[str]) -> str:
    """Run the calibrator with these options on a host, and return its JSON; progress goes to stderr.

    Raises:
        InputError: there is no ssh here, or no connection; the host has no Python or no numpy, or too old a
            Python; the calibrator refused, or was interrupted.
    """
    if host.startswith("-") or not host:
        raise InputError(f"--ssh is {host!r}; it must be a host as ssh takes it, such as user@board")
    ssh = shutil.which("ssh")
    if ssh is None:
        raise InputError(
            f"--ssh needs the program ssh, and none is on the PATH; copy {PROGRAM} to the board, run it "
            "there with python3, and give the file that it writes to --from-json"
        )
    command = f"{CHECKS}exec python3 - --out - {shlex.join(words)}"
    process = subprocess.Popen(
        [ssh, "--", host, f"sh -c {shlex.quote(command)}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    said: list[str] = []
    progress = Thread(target=_pass_on, args=(process, said), daemon=True)
    progress.start()
    try:
        answer = _converse(process)
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise InputError(f"interrupted: {host} was not measured, and no file was written") from None
    progress.join()
    if process.returncode:
        raise InputError(_why(host, process.returncode, said[-1] if said else ""))
    lines = answer.decode(errors="replace").splitlines()  # a login's greeting may come first
    return next((line for line in reversed(lines) if line.startswith("{")), "")


def _converse(process: subprocess.Popen[bytes]) -> bytes:
    """Send the program and read the answer; stderr is read by another thread."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(PROGRAM.read_bytes())
        process.stdin.close()
    except BrokenPipeError:  # the host ended before it read the program; its status says why
        process.wait()
    answer = process.stdout.read()
    process.wait()
    return answer


def _pass_on(process: subprocess.Popen[bytes], said: list[str]) -> None:
    """Print what comes by stderr, and keep what a failure ends with: its last line that is not empty."""
    assert process.stderr is not None
    for line in process.stderr:
        text = line.decode(errors="replace").rstrip()
        print(text, file=sys.stderr, flush=True)
        if text:
            said.append(text)


def _why(host: str, status: int, last_line: str) -> str:
    """What a failure means, in one sentence."""
    sentences = {
        NO_CONNECTION: f"ssh could not connect to {host}: {last_line or 'it did not say why'}",
        NO_PYTHON: f"{host} has no python3; install it there",
        OLD_PYTHON: f"the python3 of {host} is too old; the calibrator needs {LEAST} or newer",
        NO_NUMPY: f"the python3 of {host} has no numpy; install it there (python3 -m pip install numpy)",
    }
    ended = f"the calibrator on {host} ended with status {status}: {last_line or 'it did not say why'}"
    return sentences.get(status, f"{host}: {last_line}" if status == 1 and last_line else ended)
