"""Public models by the names that people type: the shapes in the lines of a `model/models.csv`.

Owns the columns. Must not know weights, nor in which format a model is costed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from repro.core.named_lines import named_lines
from repro.core.paths import conf_entries
from repro.models.costs.model_cost import Shape

MODELS_FILE = "model/models.csv"
"""The table's place in a folder like `conf/`."""


@dataclass(frozen=True)
class PublicModel:
    """A model's dimensions, named as in `Shape`, and the number of parameters that they are checked with.

    Attributes:
        name: what people type.
        model: its printed name.
        family: the models with which it is listed.
        kind: an `equivalent` is a dense transformer with as many weights a token as another architecture.
        millions: its known number of parameters; 0 where there is none that an equivalent has to meet.
        counted: where that is from: its weights, its card, or its name, which is rounded; from memory.
        note: what is to be known of it.
    """

    name: str
    model: str
    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    gated: bool = True
    tied: bool = False
    kind: Literal["transformer", "equivalent"] = "transformer"
    millions: float = 0.0
    counted: Literal["", "weights", "card", "name"] = ""
    note: str = ""

    @property
    def title(self) -> str:
        """It in a few words."""
        size = self.shape.parameters
        weights = f"{size / 1e9:.2f}B" if size >= 1e9 else f"{size / 1e6:.0f}M"
        return ", ".join(filter(None, (f"{self.model}: {weights} weights, {self.layers} layers", self.note)))

    @property
    def dimensions(self) -> dict[str, Any]:
        """What a file of `conf/model/shape/` says."""
        names = {field.name for field in fields(Shape)}
        return {name: value for name, value in asdict(self).items() if name in names}

    @property
    def shape(self) -> Shape:
        """The shape whose cost is emulated; InputError for a dimension that no model has."""
        return Shape.parse(self.dimensions)


def read_models(path: Path) -> Mapping[str, PublicModel]:
    """The models of a file by name; none where there is no file.

    Raises:
        InputError: a line is malformed.
    """
    return named_lines(path, PublicModel)


def public_models() -> dict[str, PublicModel]:
    """The models of all `conf/` folders by name; the first of a name counts."""
    return conf_entries(MODELS_FILE, read_models, "model")
