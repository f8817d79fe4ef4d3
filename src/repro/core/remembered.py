"""Results of pure functions of plain data, remembered by content.

A sweep's cells have equal devices and engines in mappings of their own; checking one takes milliseconds, and
comparing it with the last ones a fraction of that. Knows nothing of what is computed.
"""

from __future__ import annotations

import marshal
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

WITHOUT_REFERENCES = 2
"""The version of Python's own format in which equal data have equal bytes."""


def remember(most: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function remember its last `most` results; nobody may change them. What it raises is not kept.

    Arguments are plain data (mappings are dictionaries); with others it is called each time.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        results: OrderedDict[bytes, R] = OrderedDict()

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            arguments: Any = args, kwargs
            try:
                key = marshal.dumps(arguments, WITHOUT_REFERENCES)
            except ValueError:  # such as a configuration that is not resolved
                return function(*args, **kwargs)
            if key not in results:
                results[key] = function(*args, **kwargs)
                if len(results) > most:
                    results.popitem(last=False)
            results.move_to_end(key)
            return results[key]

        return call

    return decorate
