"""Under which headings the names of a group are listed: devices by chip, models by family.

Owns the headings and their order. Must not know what a name means; `choices` has that.
"""

from __future__ import annotations

from repro.core.errors import InputError
from repro.device.engines.engine_file import chip_file, chip_name, device_file, device_files
from repro.device.products import Product
from repro.experiments.guide.choices import lines, names
from repro.models.costs.public_models import PublicModel

PAPERS = "The papers' phones, boards and servers"
OTHER_DEVICES = "This machine and others"
NO_CHIP = "Their chips have no device file yet"
WITH_WEIGHTS = "With weights: the papers' models, their stand-ins and drafts"


def headings(group: str) -> dict[str, list[str]]:
    """The names of a group of `choices.GROUPS` by heading, in the order of a list; "" where one is enough."""
    if group == "devices":
        return _devices()
    return _models() if group == "models" else {"": names(group)}


def _devices() -> dict[str, list[str]]:
    """What the papers ran on, then a chip with its products each, then what has no chip."""
    files, by_chip = device_files(), dict[str, list[str]]()
    papers, others, without_chip = list[str](), list[str](), list[str]()
    for name in files:
        try:
            device = device_file(name)
        except InputError:  # somebody's own file; choosing it says what is wrong
            others.append(name)
            continue
        chip = chip_name(device)
        members = by_chip.setdefault(chip, []) if chip_file(chip) == name else others
        (papers if device.get("papers") else members).append(name)
    for name, line in lines("devices").items():
        assert isinstance(line, Product)
        (by_chip.setdefault(line.chip, []) if line.chip_file in files else without_chip).append(name)
    parts = {PAPERS: papers, **dict(sorted(by_chip.items())), OTHER_DEVICES: others, NO_CHIP: without_chip}
    return {heading: members for heading, members in parts.items() if members}


def _models() -> dict[str, list[str]]:
    """Those with weights, then families of public models, in their table's order."""
    by_name, by_family = lines("models"), dict[str, list[str]]()
    for name, line in by_name.items():
        assert isinstance(line, PublicModel)
        by_family.setdefault(f"{line.family}, costs alone", []).append(name)
    return {WITH_WEIGHTS: [name for name in names("models") if name not in by_name], **by_family}
