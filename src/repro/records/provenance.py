"""Provenance of a record: the code, the packages and the kind of host that made it, and the layers it took.

Hashes of source code are of files, which are read without importing them, and no part of any key. Must not
know what was computed or where records are stored; the caller provides the times.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_type_hints

from repro.core.digits import in_ten_digits
from repro.core.errors import InputError, warn
from repro.core.version import version

PACKAGES = (
    "hydra-core",
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "evaluate",
    "wandb",
    "gguf",
    "safetensors",
    "sentencepiece",
    "rouge_score",
    "numpy",
)


LATER_FIELDS: Mapping[str, Any] = {"layers": None, "ends": None, "own_sources": {}}
"""Fields that came after records were made, left out where they have these values."""


@dataclass(frozen=True)
class Provenance:
    """How a record was made.

    `config` is the resolved configuration without machine-specific folders (`identity.portable`) and
    `config_hash` its hash; `inputs` are content hashes by name (`target`, `draft`, `dataset`), `versions`
    those of the components that decided the outcome, `sources` is the `source_hash` of the code, which is not
    part of the key. `carried_over` is the commit at which the record was made under an older key, `None` if
    it has its original key. `costs` is `fitted` if this cell was used to fit the device. `fitted` names
    values determined by a fit or a draft calibration, or ids of reference cells used in a fit. `matched`
    describes the draft calibration (`draft_calibration.Matched`, `HeadMatch`), in ten digits;
    `None` without one. `dequantized` is true if the checkpoint was quantized. `memory` holds peak bytes
    by kind (`resident_set`, `device_allocator`, `emulated_dram`), `budget` the resolved DRAM budget in
    bytes. `trace` is the timeline's path below the run's `outputs`. `notes` are sentences for the table.
    `layers` counts the calls of decoder layers that computed the cell; 0 if all
    of it was known before, `None` in records of before there was a counter. `extrapolated` says which of the
    run's passes lie where the engine's numbers were neither measured nor fitted. `ends` are the ids that end
    an answer, each with its token and what names it; `None` in records of before it. `own_sources` are hashes
    of the files of components that are not ours, by name (`method lookup`). `started` and `finished` are
    ISO 8601 in UTC.

    Raises:
        InputError: `clock`, `weights` or `costs` is not one of its choices.
    """

    config: Mapping[str, Any]
    config_hash: str
    inputs: Mapping[str, str]
    sources: str
    seed: int
    clock: Literal["virtual", "wall"]
    weights: Literal["real", "proxy", "none"]
    costs: Literal["measured", "fitted", "predicted"]
    started: str
    finished: str
    commit: str | None
    dirty: bool | None
    packages: Mapping[str, str]
    host: Mapping[str, Any]
    fitted: tuple[str, ...] = ()
    matched: Mapping[str, Any] | None = None
    dequantized: bool = False
    extrapolated: tuple[str, ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)
    budget: int | None = None
    trace: str | None = None
    versions: Mapping[str, int] = field(default_factory=dict)
    carried_over: str | None = None
    notes: tuple[str, ...] = ()
    layers: int | None = None
    ends: Mapping[str, str] | None = None
    own_sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, choices in _choices().items():
            if getattr(self, name) not in choices:
                raise InputError(f"{name} is {getattr(self, name)!r}; choices: {', '.join(choices)}")
        object.__setattr__(self, "matched", in_ten_digits(self.matched))
        object.__setattr__(self, "fitted", tuple(self.fitted))  # lists when read back from JSON
        object.__setattr__(self, "extrapolated", tuple(self.extrapolated))
        object.__setattr__(self, "notes", tuple(self.notes))

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data for JSON; a record without a `LATER_FIELDS` one stays as it is."""
        absent = {name for name, empty in LATER_FIELDS.items() if vars(self)[name] == empty}
        return {name: value for name, value in vars(self).items() if name not in absent}


@cache
def _choices() -> dict[str, tuple[str, ...]]:
    hints = get_type_hints(Provenance)
    return {name: get_args(hints[name]) for name in ("clock", "weights", "costs")}


def circumstances() -> dict[str, Any]:
    """The fields of `Provenance` that are the same for every cell of a process: code, packages, host."""
    return deepcopy(_circumstances())


@cache
def _circumstances() -> dict[str, Any]:
    """Cached, since it runs git three times and reads every package's metadata."""
    code = version()
    if code.commit is None:
        warn(f"records and tables will not name a commit: {code.why}")
    return {"commit": code.commit, "dirty": code.dirty, "packages": package_versions(), "host": host_kind()}


def package_versions(names: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions of Python and the named packages; `absent` if not installed."""
    versions = {"python": platform.python_version()}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions


def host_kind() -> dict[str, Any]:
    """The kind of machine, without identifying it: system, architecture, processor family, usable cores."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor_family(),
        "cores": usable_cores(),
    }


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor_family() -> str | None:
    """Vendor and family from /proc/cpuinfo (`CPU implementer` and `CPU part` on Arm); None without it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    fields = ("vendor_id", "cpu family", "CPU implementer", "CPU part")
    return " ".join(facts[name] for name in fields if name in facts) or None


def peak_resident_bytes() -> int:
    """Peak resident set size of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux kibibytes


@dataclass
class LayerCount:
    """Calls of decoder layers within a block, those of draft heads and encoder-decoders included."""

    layers: int = 0


_layer_count: ContextVar[LayerCount | None] = ContextVar("counting", default=None)


@contextmanager
def counting_layers() -> Iterator[LayerCount]:
    """Count calls of decoder layers within the block."""
    count = LayerCount()
    token = _layer_count.set(count)
    try:
        yield count
    finally:
        _layer_count.reset(token)


def count_layers(layer_count: int = 1) -> None:
    """Add calls of decoder layers to the enclosing `counting_layers`, if there is one."""
    if count := _layer_count.get():
        count.layers += layer_count


def layers_so_far() -> int | None:
    """Calls of decoder layers in the enclosing `counting_layers`; `None` if there is none."""
    count = _layer_count.get()
    return None if count is None else count.layers


@cache
def source_hash(*packages: str) -> str:
    """SHA-256 over all Python files of `repro` and the given packages or modules; cached in the process.

    Raises:
        InputError: a package has no Python source.
    """
    digest = hashlib.sha256()
    for package in sorted({"repro", *packages}):
        for path, name in _files(package):
            digest.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def source_of(component: type) -> str:
    """SHA-256 over the files of somebody's class, and of what they import of its package; "" for ours."""
    package = component.__module__.partition(".")[0]
    if package in ("repro", "builtins", "__main__"):
        return ""
    modules: dict[str, ModuleType] = {}
    pending_names = [base.__module__ for base in component.__mro__]
    while pending_names:
        name = pending_names.pop()
        module = sys.modules.get(name)
        if module is None or name in modules or name.partition(".")[0] != package:
            continue
        modules[name] = module
        pending_names += map(_module_of, vars(module).values())
    digest = hashlib.sha256()
    for name, module in sorted(modules.items()):
        if module.__file__:
            digest.update(f"{name}\0".encode() + Path(module.__file__).read_bytes() + b"\0")
    return digest.hexdigest()


def _module_of(value: object) -> str:
    """The name of a module, or of that of a class or function; "" of anything else."""
    return value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", None) or "")


def _files(package: str) -> list[tuple[Path, str]]:
    """A package's files and their relative names, sorted by name."""
    spec = importlib.util.find_spec(package)
    if spec is not None and spec.submodule_search_locations:
        folders = map(Path, spec.submodule_search_locations)
        files = [(path, path.relative_to(folder)) for folder in folders for path in folder.rglob("*.py")]
        return sorted(((path, f"{package}/{name.as_posix()}") for path, name in files), key=itemgetter(1))
    if spec is not None and spec.origin and spec.origin.endswith(".py"):
        return [(Path(spec.origin), package)]
    raise InputError(f"{package!r} has no Python source to hash")
