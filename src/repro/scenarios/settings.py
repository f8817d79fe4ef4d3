"""What can be wrong with a run's settings by themselves, before anything is opened.

Owns the sentences for numbers, names and labels. Must not know cells, rows or checkpoints.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.models.runtime.cuda import cuda_stream
from repro.models.runtime.model import ModelConfig


def own_labels(config: Mapping[str, Any], taken: Collection[str] = ()) -> dict[str, str]:
    """The labels that an experiment gives its cells beside the usual ones; a null one is left out.

    They say where a cell stands in a table and are no part of its key: one cell may have others elsewhere.

    Raises:
        InputError: they are no mapping of single values, or one has the name of a usual label.
    """
    given = config.get("labels") or {}
    if not isinstance(given, Mapping):
        raise InputError(f"labels is {given!r}; it must be a mapping, {{name: value}}")
    for name, value in given.items():
        if name in taken:
            raise InputError(f"labels.{name} is a label that every cell has already; choose another name")
        if isinstance(value, (Mapping, list)):
            raise InputError(f"labels.{name} is {value!r}; it must be a single value")
    return {str(name): str(value) for name, value in given.items() if value is not None}


def check_scalars(config: Mapping[str, Any]) -> None:
    """The run's own numbers and names, whose types YAML does not tell."""
    for name in ("prompts", "max_tokens", "repeats", "calibration_prompts"):
        if type(config[name]) is not int or config[name] < 1:
            raise InputError(f"{name} is {config[name]!r}; it must be a whole number of at least 1")
    if config["prompt_tokens"] is not None and (
        type(config["prompt_tokens"]) is not int or config["prompt_tokens"] < 1
    ):
        given = config["prompt_tokens"]
        raise InputError(f"prompt_tokens is {given!r}; it must be null or a whole number of at least 1")
    for name in ("seed", "skip"):
        if type(config[name]) is not int or config[name] < 0:
            raise InputError(f"{name} is {config[name]!r}; it must be a whole number of at least 0")
    if type(config["cooldown"]) not in (int, float) or config["cooldown"] < 0:
        raise InputError(f"cooldown is {config['cooldown']!r}; it must be a number of seconds, at least 0")
    for name in ("memo", "draft_calibration"):
        if not isinstance(config[name], bool):
            raise InputError(f"{name} is {config[name]!r}; it must be true or false")
    if not isinstance(config["metrics"], list):
        raise InputError(f"metrics is {config['metrics']!r}; it must be a list, [name, ...]")


def check_blank(config: Mapping[str, Any], models: Collection[ModelConfig]) -> None:
    """That a cell without weights can run: all its models lack them, and its prompts have a length."""
    names = " and ".join(model.name for model in models if model.checkpoint is not None)
    if names:
        raise InputError(f"the target has no checkpoint and {names} has; choose models that all have one")
    if not config["prompt_tokens"]:
        raise InputError("the target has no checkpoint, hence no prompts; give their length, prompt_tokens=N")


def kind_of(device: Mapping[str, Any]) -> str:
    """Whether a device is `emulated` or `local`; InputError for anything else."""
    kind = str(device.get("kind"))
    if kind not in ("emulated", "local"):
        raise InputError(unknown("kind of device", kind, ("emulated", "local")))
    return kind


def host_of(config: Mapping[str, Any], emulated: bool) -> str:
    """The torch device that computes: as asked, or a real device's own."""
    host = str(config["host"])
    if host not in ("cpu", "cuda"):
        raise InputError(unknown("host", host, ("cpu", "cuda")))
    if not emulated:
        host = "cuda" if "gpu" in config["device"].get("processors", {}) else "cpu"
    if host == "cuda" and cuda_stream() is None:
        raise InputError(
            "this run needs a GPU, and torch sees none; choose host=cpu and a device without one"
        )
    return host
