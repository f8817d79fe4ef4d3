"""A decorator like `torch.inference_mode` that does not import torch at definition time."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from repro.libraries import torch

P = ParamSpec("P")
T = TypeVar("T")


def inference(function: Callable[P, T]) -> Callable[P, T]:
    """Run the function in torch's inference mode; not for generators and coroutines."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with torch.inference_mode():
            return function(*args, **kwargs)

    return run
