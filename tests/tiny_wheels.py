"""A registry of tiny wheels in a folder, for the real pip."""

from pathlib import Path
from zipfile import ZipFile

import pytest


def write_wheel(folder: Path, package: str, version: str, members: dict[str, bytes]) -> Path:
    """A wheel as small as pip accepts."""
    stem = f"{package.replace('-', '_')}-{version}"
    facts = {
        "METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    path = folder / f"{stem}-py3-none-any.whl"
    with ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        for name, text in facts.items():
            archive.writestr(f"{stem}.dist-info/{name}", text)
    return path


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A folder that is all of the registry that pip sees."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder
