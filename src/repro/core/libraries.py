"""Libraries that are imported when they are first used, under their usual names, for modules that do not need
them at import time: `from repro.core.libraries import np`.

Knows nothing of what they are used for. What else is imported late stands where it is used (`late`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from repro.core.late import late

if TYPE_CHECKING:
    import jinja2
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    from numpy.typing import NDArray
else:
    jinja2, np, pd, pa = (late(name) for name in ("jinja2", "numpy", "pandas", "pyarrow"))

Array: TypeAlias = "NDArray[np.float64]"
"""Numbers of any shape."""

__all__ = ["Array", "jinja2", "np", "pa", "pd"]
