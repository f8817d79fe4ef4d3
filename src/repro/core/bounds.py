"""Types of settings with their bounds, shared by components (`core.typed` checks them)."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Interval, MinLen

Text = Annotated[str, MinLen(1)]
"""A text that is not empty."""

Share = Annotated[float, Interval(ge=0, le=1)]
Part = Annotated[float, Interval(gt=0, le=1)]
"""A share that is not nothing."""

AgreedShare = Annotated[float, Interval(gt=0, le=0.99)]
"""An agreement that a draft is calibrated to."""

Count = Annotated[int, Interval(ge=1)]
Tokens = Annotated[int, Interval(ge=1, le=1_000_000)]
"""A length in tokens, or a number of texts."""

Layers = Annotated[int, Interval(ge=0, le=10_000)]
DraftTokens = Annotated[int, Interval(ge=1, le=1024)]
Nodes = Annotated[int, Interval(ge=0, le=1024)]
"""Nodes of a draft tree; 0 has a meaning of its own."""
