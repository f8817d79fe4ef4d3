"""Engine files: how one program uses a device, put on top of the device file's numbers.

Owns `conf/engine/`: where its files are, what they may say, and how their facts replace those of a device.
Must not know costs, methods or models. The result has the form of a device file, so that a fact is the same
wherever it stands; a cell's key has the facts of the result, and neither the engine's name nor the file that
gave a number.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.core.paths import conf_folders
from repro.core.reading import read_mapping
from repro.core.registry import unknown
from repro.core.remembered import remember
from repro.device.device_file import (
    EXPLANATION_KEYS,
    FACT_SECTIONS,
    WORD_SETTINGS,
    chosen_word,
    facts,
    is_fact,
    require_entries,
)
from repro.device.facts.holds import HOLDS_KEY
from repro.device.products import Product, file_name, products

OWN = "own"
"""The engine that stands for the one that a device file names, or else for `PUBLIC`."""

PUBLIC = "public"
"""The engine that stands for the classes that a chip names: what people run on each of its processors; on a
device that is no paper's and names an engine, for that one."""

PLACEMENT_KEYS = ("verifies", "draft_prompt")
"""What may be said of placement beside an engine that stands for another; real devices place nothing."""

STAND_IN_ENGINES = (OWN, PUBLIC)
"""Engine files that hold no numbers and stand for others."""


CLASS_OF_PROGRAM = {"tflite_gpu": "litert_gpu"}
"""The class of a program that a method names, where it has another name."""

FORMAT = "format"
"""The entry that says in which format people run models on an engine, or on a device without one."""

NAME_KEYS = ("engine", "public", "chip", FORMAT)
"""Entries of a device file that name other files or a format, and say nothing of its speed."""

OVER, CHIP = "over", "chip"
"""The entry, and its value, of an engine that takes shares of data sheets' numbers: it goes over those of the
device's chip, in place of what a paper says that the device reaches."""

WATTS = "watts"
"""The entry of a processor's power above idle."""

GROUPS = ("device", "engine")
"""Sections of a configuration that are files of numbers."""

ABOVE_FLOOR = "above_floor"
"""The entry that says why times are far above what bytes and operations alone need."""

PROGRAMS = "programs"
PART_KEYS = (*FACT_SECTIONS, *WORD_SETTINGS, PROGRAMS)
"""What an engine may say, of every device or below `devices` of one device or chip."""

MAIN, VERIFIES = ROLES = ("main", "verifies")
"""The processors that an engine chooses: the default one, and that of a target's passes over several rows."""

EXTENDS = "extends"
"""The entry that names another engine, whose numbers come before those of this one."""

FORMER_KEY = "overhead"
"""The entry of older records that had the main processor's time a token, which `token` of each has now."""

ENGINE_KEYS = ("name", "papers", "note", EXTENDS, OVER, FORMAT, ABOVE_FLOOR, *ROLES, "devices", *PART_KEYS)


def with_engine(device: Mapping[str, Any], engine: Mapping[str, Any] | None) -> dict[str, Any]:
    """A device file as an engine uses it.

    The engine's facts replace those of the device at the same place: first those of the engine that it
    extends, then its own: those of every device, of the device's chip (`soc`), and of the device. A `rate` is
    what the program reaches: in absolute units it replaces the processor's peak, as a share it is one of it;
    the device's efficiency no longer counts, and the processor computes in no precision that `rate` leaves
    out. `programs` become the device file's `engines`, of which a method may choose one.

    Args:
        device: a device file.
        engine: an engine file; `None` for the device file's own numbers alone.

    Raises:
        InputError: the engine is malformed or out of range, names a processor that the device lacks, has no
            numbers for the device, or the device is no emulated one.
    """
    return _with_engine(device, written_out(engine) if engine else None)


@remember(64)
def _with_engine(device: Mapping[str, Any], engine: Mapping[str, Any] | None) -> dict[str, Any]:
    """`with_engine` of an engine that is written out; nobody changes what it returns."""
    require_entries(device)
    contents: dict[str, Any] = {key: value for key, value in device.items() if key not in NAME_KEYS}
    if not engine:
        return contents
    name, device_name = f"engine {engine.get('name', '')}", str(device.get("name", "device"))
    _require_known(name, engine)
    if device.get("kind") == "local":
        raise InputError(
            f"{name}: {device_name} is no emulated device, so it runs repro's own engine; choose engine=own"
        )
    if engine.get(OVER) == CHIP:
        contents = on_chip(device, engine)
    parts = list(_parts(name, engine, device))
    for part in parts:
        _require_fitting(name, part, device_name, contents.get("processors") or {})
    if engine.get(EXTENDS) is not None:
        contents = _with_engine(contents, engine[EXTENDS])
    for part in parts:
        contents = _over(contents, part)
    for role in ROLES:
        if role in engine:
            if engine[role] not in (contents.get("processors") or {}):
                choices = ", ".join(contents.get("processors") or {})
                raise InputError(f"{name}: {role} is {engine[role]!r}; {device_name} has {choices}")
            contents[role] = engine[role]
    return contents


def written_out(engine: Mapping[str, Any], extended: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """An engine with the content of the engine that it extends in place of its name.

    Args:
        engine: an engine file.
        extended: names of the engines that led to it.

    Raises:
        InputError: there is no such engine, or it leads back to one of `extended`.
    """
    base = engine.get(EXTENDS)
    if base is None or isinstance(base, Mapping):
        return engine
    if base in extended:
        raise InputError(f"engine {engine.get('name', '')} extends {base}, which extends it in turn")
    return {**engine, EXTENDS: written_out(_file("engine", str(base)), (*extended, str(base)))}


@remember(64)
def _require_known(name: str, engine: Mapping[str, Any]) -> None:
    """InputError for entries that no engine has, words that are no choice, and malformed facts."""
    for key in engine:
        if key not in ENGINE_KEYS and key != FORMER_KEY:
            raise InputError(f"{name}: {unknown('entry', str(key), ENGINE_KEYS)}")
    for key in ("name", "note", OVER, FORMAT, ABOVE_FLOOR, *ROLES):
        if not isinstance(engine.get(key, ""), str):
            raise InputError(f"{name}: {key} is {engine[key]!r}; it must be a text")
    papers = engine.get("papers", [])
    if not isinstance(papers, list) or not all(isinstance(paper, str) for paper in papers):
        raise InputError(f"{name}: papers is {papers!r}; it must be a list of keys of the bibliography")
    devices = {} if engine.get("devices") is None else engine["devices"]
    if not isinstance(devices, Mapping):
        raise InputError(f"{name}: devices is {devices!r}; it must be a mapping of devices or chips")
    for machine, part in {"": {k: v for k, v in engine.items() if k in PART_KEYS}, **devices}.items():
        part_name = f"{name}, {machine}" if machine else name
        if not isinstance(part, Mapping):
            raise InputError(f"{part_name}: {part!r} must be a mapping")
        for key in part:
            if key not in PART_KEYS:
                raise InputError(f"{part_name}: {unknown('entry', str(key), PART_KEYS)}")
        for word in WORD_SETTINGS:
            chosen_word(part_name, part, word)
        try:
            list(facts({**_absolute(part), "engines": part.get(PROGRAMS)}))
        except InputError as wrong:
            raise InputError(f"{part_name}: {wrong}") from None


def _parts(name: str, engine: Mapping[str, Any], device: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What the engine says of every device, of the device's chip, and of the device, each if it does."""
    common = {key: value for key, value in engine.items() if key in PART_KEYS}
    by_machine = engine.get("devices") or {}
    matches = [by_machine[key] for key in (device.get("soc"), device.get("name")) if key in by_machine]
    if not by_machine and not common and not any(role in engine for role in (*ROLES, OVER)):
        raise InputError(f"{name} has no numbers; it has some in {', '.join(PART_KEYS)}")
    if by_machine and not matches and not common:
        raise InputError(
            f"{name} has no numbers for {device.get('name')} (soc {device.get('soc', '')!r}); it has some "
            f"for {', '.join(by_machine)}; engine=own takes those of the device's own file"
        )
    yield from (common, *matches) if common else matches


def _require_fitting(name: str, part: Mapping[str, Any], device: str, processors: Mapping[str, Any]) -> None:
    processor_names = [*(part.get("processors") or {})]
    processor_names += [key for program in (part.get(PROGRAMS) or {}).values() for key in program]
    for processor in processor_names:
        if processor not in processors:
            raise InputError(
                f"{name} runs on {processor}, which {device} lacks; it has {', '.join(processors)}. "
                "Choose another device or another engine"
            )


def _over(device: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """A device file with a part of an engine over it."""
    contents = dict(device)
    for processor, numbers in (part.get("processors") or {}).items():
        if numbers.get("rate"):
            entry = {
                key: v for key, v in (contents["processors"][processor] or {}).items() if key != "efficiency"
            }
            entry["peak"] = {key: v for key, v in (entry.get("peak") or {}).items() if key in numbers["rate"]}
            contents["processors"] = {**contents["processors"], processor: entry}
    for key, numbers in _absolute(part).items():
        if numbers is None:
            continue
        target = "engines" if key == PROGRAMS else key
        contents[target] = merge(contents.get(target), numbers)
    return contents


def _absolute(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part of an engine, in which rates that are no shares are the processors' peaks."""
    contents = dict(part)
    if not isinstance(part.get("processors"), Mapping):
        return contents
    contents["processors"] = {}
    for processor, numbers in part["processors"].items():
        rates = numbers.get("rate") if isinstance(numbers, Mapping) else None
        if not isinstance(rates, Mapping):
            contents["processors"][processor] = numbers
            continue
        shares = {p: rate for p, rate in rates.items() if is_fact(rate) and rate.get("unit") == "share"}
        peaks = {p: rate for p, rate in rates.items() if p not in shares}
        rewritten = {key: value for key, value in numbers.items() if key != "rate"}
        if shares:
            rewritten["rate"] = shares
        if peaks:
            rewritten["peak"] = {**(numbers.get("peak") or {}), **peaks}
        contents["processors"][processor] = rewritten
    return contents


def merge(base: Any, patch: Any) -> Any:
    """Two parts of a file; a fact of the upper one replaces what stands in its place."""
    if not isinstance(base, Mapping) or not isinstance(patch, Mapping) or is_fact(patch) or is_fact(base):
        return patch
    merged = dict(base)
    for key, value in patch.items():
        merged[key] = merge(base.get(key), value)
    return merged


def engine_files() -> dict[str, Path]:
    """The engine files of all `conf/` folders by name, in alphabetical order; the first of a name counts."""
    return _files("engine")


def read_engine(name: str) -> dict[str, Any]:
    """An engine file by name.

    Raises:
        InputError: there is none, or it is no YAML mapping.
    """
    return deepcopy(_file("engine", name))


def _files(group: str) -> dict[str, Path]:
    paths: dict[str, Path] = {}
    for folder in conf_folders():
        for path in (folder / group).glob("*.yaml"):
            paths.setdefault(path.stem, path)
    return dict(sorted(paths.items()))


def _path(group: str, name: str) -> Path | None:
    """The first file of this name; quicker than `_files`."""
    for folder in (conf / group for conf in conf_folders()):
        if folder.is_dir() and f"{name}.yaml" in os.listdir(folder):
            return folder / f"{name}.yaml"
    return None


def _file(group: str, name: str) -> dict[str, Any]:
    path = _path(group, name)
    if path is None:
        raise InputError(unknown(group, name, _files(group)))
    return _read(path, path.stat().st_mtime_ns)


@lru_cache
def _read(path: Path, changed_ns: int) -> dict[str, Any]:
    """A file's content; `changed` is part of the cache's key."""
    return read_mapping(path)


def device_file(name: str) -> Mapping[str, Any]:
    """A device file by name, or that of a product's chip with the product's entries; not to be changed.

    Raises:
        InputError: there is none, or it is no YAML mapping.
    """
    if _path("device", name) is not None:
        return _file("device", name)
    if (product := products().get(name)) is None:
        raise InputError(unknown("device", name, device_names(), listed_by="repro list devices"))
    require_chip(product, device_files())
    contents: dict[str, Any] = merge(_file("device", product.chip_file), product.entries)
    return contents


def require_chip(product: Product, devices: Collection[str]) -> None:
    """InputError unless one of these devices is a product's chip."""
    if product.chip_file not in devices:
        raise InputError(
            f"{product.product} has the chip {product.chip}, of which there is no device file; "
            "choose a device with a like chip (repro list devices), or add the chip (docs/emulator.md)"
        )


def device_names() -> set[str]:
    """The names of all device files and products."""
    return {*device_files(), *products()}


def device_files() -> dict[str, Path]:
    """The device files of all `conf/` folders by name, in alphabetical order; the first of a name counts."""
    return _files("device")


def readable_devices(first_name: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The device files by name, `first` before the others; without those of others that cannot be read."""
    for name in sorted(device_files(), key=lambda name: name != first_name):
        try:
            yield name, device_file(name)
        except InputError:
            continue


def chip_file(soc: str) -> str:
    """Name of a chip's device file."""
    return file_name(soc)


def chip_of(device: Mapping[str, Any]) -> Mapping[str, Any]:
    """The device file of a device's chip; the device itself where there is none."""
    name = chip_name(device)
    if name == device.get("name") or chip_file(name) not in device_files():
        return device
    return device_file(chip_file(name))


def chip_name(device: Mapping[str, Any]) -> str:
    """A device's chip; `chip` says it where `soc`, by which papers' engines know it, is a family."""
    return str(device.get("chip", device.get("soc", "")))


def on_chip(device: Mapping[str, Any], engine: Mapping[str, Any]) -> dict[str, Any]:
    """A board or phone with its chip's data sheet in place of what is reached of it.

    Flash, the size of memory and idle power are the board's own, and the power of processors that nobody
    measured on the chip. Of the processors those are left that the engine has numbers of, if it has any.

    Raises:
        InputError: processors or the bandwidth of memory were changed, which would be replaced.
    """
    chip = chip_of(device)
    if _replaceable_numbers(device) != _replaceable_numbers(chip) and _is_changed(device):
        raise InputError(
            f"{device['name']}: processors and dram.bandwidth are those of its chip, {chip_name(device)}, "
            f"under engine {engine['name']}; add engine=own to change them"
        )
    on_engine = chip["processors"].keys() & (engine.get("processors") or chip["processors"]).keys()
    return {
        **{key: value for key, value in device.items() if key not in NAME_KEYS},
        "processors": {
            p: _with_power(chip["processors"][p], device["processors"].get(p) or {})
            for p in chip["processors"]
            if p in on_engine or not on_engine
        },
        "dram": {**device["dram"], "bandwidth": chip["dram"]["bandwidth"]},
    }


def _with_power(of_chip: Mapping[str, Any], of_board: Mapping[str, Any]) -> dict[str, Any]:
    """A chip's processor, with the board's power where the chip's is not known."""
    return {**{key: of_board[key] for key in (WATTS,) if key in of_board}, **of_chip}


def _replaceable_numbers(device: Mapping[str, Any]) -> Any:
    """The numbers of a device file that `on_chip` replaces."""
    return _numbers([device.get("processors"), (device.get("dram") or {}).get("bandwidth")])


def _numbers(part: Any) -> Any:
    """A part of a file without what explains its numbers."""
    if isinstance(part, list):
        return [_numbers(inner) for inner in part]
    if not isinstance(part, Mapping):
        return part
    return {key: _numbers(inner) for key, inner in part.items() if key not in (*EXPLANATION_KEYS, HOLDS_KEY)}


def with_explanations(config: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded configuration in which today's files say where its numbers are from, and where they hold.

    A number that is another one today keeps what its record says, as do a device or an engine without a file.
    """
    return {**config, **{group: _by_file(group, config[group]) for group in GROUPS if config.get(group)}}


@remember(256)
def _by_file(group: str, recorded: Mapping[str, Any]) -> Any:
    """A recorded device or engine with the explanations of the file with its name; nobody changes it."""
    for name in _files(group):
        try:
            content = _file(group, name)
        except InputError:  # somebody else's file
            continue
        if content.get("name") == recorded.get("name"):
            return _with_explanations(recorded, written_out(content) if group == "engine" else content)
    return recorded


@remember(256)
def fitted_cells(device: Mapping[str, Any]) -> set[str]:
    """Ids of the published values that a described machine's numbers were fitted to."""
    return {cell for fact in facts(device) for cell in fact.cells}


def _with_explanations(recorded: Any, current: Any) -> Any:
    """A recorded part of a file with today's explanations of the numbers that are the same."""
    if not isinstance(recorded, Mapping) or not isinstance(current, Mapping):
        return recorded
    if is_fact(recorded):
        return current if _numbers(recorded) == _numbers(current) else recorded
    ranges = {HOLDS_KEY: current[HOLDS_KEY]} if HOLDS_KEY in current else {}
    return {key: _with_explanations(inner, current.get(key)) for key, inner in recorded.items()} | ranges


def _is_changed(device: Mapping[str, Any]) -> bool:
    """Whether a device has the name of a file, and of no file the numbers."""
    is_named = False
    for _, file in readable_devices(first_name=chip_file(str(device.get("name", "")))):
        if _replaceable_numbers(file) == _replaceable_numbers(device):
            return False
        is_named |= file.get("name") == device.get("name")
    return is_named


def public_engine(
    device: Mapping[str, Any],
    program: str = "",
    engine_class: Mapping[str, Any] | None = None,
    verifies: str = "",
) -> dict[str, Any] | None:
    """The classes of engines that a device's chip names, one for each processor, as one engine.

    Args:
        device: a device file.
        program: the program that a method names; its class runs its processor.
        engine_class: a class that was chosen; it runs its processor, which becomes the main one.
        verifies: the processor of a target's passes over several rows; "" for the main one.

    Returns:
        The engine; `None` if the chip names no class.
    """
    chip = chip_of(device)
    classes = {processor: read_engine(name) for processor, name in (chip.get(PUBLIC) or {}).items()}
    class_name = CLASS_OF_PROGRAM.get(program, program)
    program_class = read_engine(class_name) if class_name in engine_files() else {}
    if classes and program_class.get(OVER) == CHIP and program_class["main"] in chip["processors"]:
        classes[program_class["main"]] = program_class
    first_processor = str(device.get("main", ""))
    if engine_class:
        first_processor = str(engine_class["main"])
        classes[first_processor] = dict(engine_class)
    if not classes:
        return None
    main = first_processor if first_processor in classes else next(iter(classes))
    engine: dict[str, Any] = {
        "name": ", ".join(dict.fromkeys(classes[p]["name"] for p in (main, *classes))),
        "papers": [],
        OVER: CHIP,
        FORMAT: classes[main].get(FORMAT, ""),
        "main": main,
        **({VERIFIES: verifies} if verifies else {}),
        "draft_prompt": "earliest",
        "processors": {},
    }
    soc = chip_name(device)
    for processor, content in classes.items():
        numbers: Any = {"added": {"value": int(content.get("traffic") == "added"), "source": "assumed"}}
        for part in (content, (content.get("devices") or {}).get(soc) or {}):
            numbers = merge(numbers, (part.get("processors") or {}).get(processor, {}))
        engine["processors"][processor] = numbers
    return engine


def device_with_engine(device: str, engine: str = OWN) -> dict[str, Any]:
    """A device file by name, as an engine uses it.

    Raises:
        InputError: there is no such device or engine, or as `with_engine`.
    """
    contents = device_file(device)
    return with_engine(
        contents, engine_of(contents, {"name": engine} if engine in STAND_IN_ENGINES else read_engine(engine))
    )


def engine_of(
    device: Mapping[str, Any], engine: Mapping[str, Any] | None, program: str = ""
) -> Mapping[str, Any] | None:
    """The engine that a configuration chose: an engine file, what `own` and `public` stand for, or `None`.

    The engine that it extends is written out in it, so that a record has all numbers. Nobody changes it.

    Args:
        device: a device file.
        engine: the `engine` section of a configuration; `None` in configurations of before there were
            engines, whose devices have all numbers.
        program: the program that a method names.

    Raises:
        InputError: `engine` is no mapping, or the device file names an engine that does not exist.
    """
    if engine is None:
        return None
    if not isinstance(engine, Mapping):
        raise InputError(f"engine is {engine!r}; choose an engine file with engine={engine}")
    if not isinstance(engine.get("name"), str) or not engine["name"]:
        raise InputError(f"engine.name is {engine.get('name')!r}; it must be a text")
    verifies = str(engine.get(VERIFIES) or "")
    if engine["name"] not in STAND_IN_ENGINES:
        is_class = engine.get(OVER) == CHIP and "main" in engine
        return public_engine(device, "", engine, verifies) if is_class else written_out(engine)
    for key in engine:
        if key not in ("name", "note", "papers", *PLACEMENT_KEYS):
            raise InputError(f"engine {engine['name']}: {unknown('entry', key, ('name', *PLACEMENT_KEYS))}")
    if device.get("engine") and (engine["name"] == OWN or not device.get("papers")):
        return {
            **written_out(_file("engine", str(device["engine"]))),
            **{word: engine[word] for word in PLACEMENT_KEYS if engine.get(word)},
        }
    if device.get("kind") == "local" and engine["name"] == PUBLIC and verifies:
        raise InputError(f"engine.verifies is {verifies}; {device['name']} is no emulated device")
    return None if device.get("kind") == "local" else public_engine(device, program, None, verifies)


def device_in_use(config: Mapping[str, Any]) -> dict[str, Any]:
    """The device file of a cell's configuration with its engine's numbers; errors as `with_engine`."""
    return with_engine(config["device"], engine_of(config["device"], config.get("engine")))
