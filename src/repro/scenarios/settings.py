"""Checks of a run's settings against each other, its models and its device.

Owns the error messages. Must not know cells, examples or checkpoints.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.core.remembered import remember
from repro.device.engines.engine_file import OWN, PUBLIC, device_in_use, readable_devices
from repro.models.runtime.cuda import cuda_stream
from repro.models.runtime.model import ModelConfig
from repro.scenarios.sections import STAND_IN, WEIGHTS


def own_labels(config: Mapping[str, Any], standard: Mapping[str, str]) -> dict[str, str]:
    """The labels that an experiment adds to the standard ones; null labels are left out.

    They place a cell in a table and are not part of its key: a cell may have other labels in another table.
    A standard label may have something added (`chain_sd, length 2`).

    Raises:
        InputError: they are not a mapping of single values, or one has the name of a standard label.
    """
    labels = config.get("labels")
    labels = {} if labels is None else labels
    if not isinstance(labels, Mapping):
        raise InputError(f"labels is {labels!r}; it must be a mapping, {{name: value}}")
    for name, value in labels.items():
        if name in standard and not str(value).startswith(f"{standard[name]}, "):
            raise InputError(f"labels.{name} is a label that every cell has already; choose another name")
        if isinstance(value, (Mapping, list)):
            raise InputError(f"labels.{name} is {value!r}; it must be a single value")
    return {str(name): str(value) for name, value in labels.items() if value is not None}


MOST_BLANKS = 100_000
"""Most prompts of a cost-only run, all of which are equal."""


def check_cost_only(config: Mapping[str, Any], models: Collection[ModelConfig]) -> None:
    """InputError unless no model of a cost-only run has a checkpoint and `prompt_tokens` is set."""
    names = " and ".join(model.name for model in models if model.checkpoint is not None)
    if names:
        raise InputError(f"the target has no checkpoint and {names} has; choose models that all have one")
    if not config["prompt_tokens"]:
        raise InputError("the target has no checkpoint, hence no prompts; give their length, prompt_tokens=N")
    if config["prompts"] > MOST_BLANKS:
        raise InputError(f"prompts is {config['prompts']}; of blank prompts it must be at most {MOST_BLANKS}")


def kind_of(device: Mapping[str, Any]) -> str:
    """Whether a device is `emulated` or `local`; InputError for anything else."""
    kind = str(device.get("kind"))
    if kind not in ("emulated", "local"):
        raise InputError(unknown("kind of device", kind, ("emulated", "local")))
    return kind


def require_device(
    device: Mapping[str, Any],
    engine: Mapping[str, Any] | None,
    name: str,
    kind: str,
    processors: Collection[str],
    program: str,
) -> None:
    """InputError, which names devices that can, unless a device is what a method needs.

    Args:
        device: the device file, with its engine's numbers.
        engine: the engine that was chosen; devices are named that can with their own one or the public one.
        name: the method's.
        kind: `emulated` or `local`; "" for both.
        processors: that the device must have.
        program: that an emulated device's engine must have; "" for none.
    """

    def can(device: Mapping[str, Any]) -> bool:
        able = kind in ("", device.get("kind")) and {*processors} <= {*(device.get("processors") or {})}
        return able and (not program or device.get("kind") == "local" or program in device.get("engines", {}))

    if can(device):
        return
    engine_choice = {"name": OWN if engine is None or engine.get("name") == OWN else PUBLIC}
    devices = {}
    for choice, file in readable_devices():
        with suppress(InputError):  # another's file, which may inherit its numbers
            devices[choice] = device_in_use({"device": file, "engine": engine_choice})
    capable = sorted((not file.get("papers"), choice) for choice, file in devices.items() if can(file))
    runs_on = {"emulated": " on an emulated device", "local": " on a real device"}.get(kind, " on a device")
    needs = [" and ".join(sorted(processors))] if processors else []
    needs += [f"an engine that has the program {program}"] if program else []
    processor_names = ", ".join(device.get("processors") or {})
    raise InputError(
        f"method {name} runs{runs_on}{' with ' if needs else ''}{', and '.join(needs)}; {device['name']} is "
        f"{kind_of(device)} and has {processor_names}; choose "
        f"device={' or '.join(choice for _, choice in capable[:3])} ({len(capable)} of our devices can)"
    )


def with_resident(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration with the run's `resident` in a method that has it."""
    resident = config.get("resident")
    if resident is None:
        return config
    method = config["method"]
    return {**config, "method": {**method, "resident": resident}} if "resident" in method else config


def with_own_weights(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration; without a trained predictor a method prunes nothing where no stand-in computes."""
    method, checkpoint = config["method"], (config.get("target") or {}).get("checkpoint") or {}
    has_stand_ins = config.get(WEIGHTS, STAND_IN) == STAND_IN
    if has_stand_ins or "pruning" not in method or checkpoint.get("predictor"):
        return config
    return {**config, "method": {**method, "pruning": "off"}}


def host_of(config: Mapping[str, Any], emulated: bool) -> str:
    """The torch device: the `host` setting, or that of a real device; InputError if there is no GPU."""
    host = str(config["host"])
    if not emulated:
        host = "cuda" if "gpu" in config["device"].get("processors", {}) else "cpu"
    if host == "cuda" and cuda_stream() is None:
        raise InputError(
            "this run needs a GPU, and torch sees none; choose host=cpu and a device without one"
        )
    return host


def model_of(config: Mapping[str, Any], role: str) -> ModelConfig:
    """Parse the model of a role; InputError if the configuration has none."""
    if config.get(role) is None:
        name = config["method"]["name"]
        raise InputError(f"{name} asks for a model as {role}, and there is none; add +model@{role}=NAME")
    if not isinstance(config[role], Mapping):
        raise InputError(f"{role} is {config[role]!r}; choose a model file with model@{role}={config[role]}")
    return _parsed(config[role])


_parsed = remember(64)(ModelConfig.parse)
