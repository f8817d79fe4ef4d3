"""`python -m workshop`: the parts of the workshop."""

from importlib import import_module
from pathlib import Path

for part in sorted(path.parent.name for path in Path(__file__).parent.glob("*/__init__.py")):
    about = (import_module(f"workshop.{part}").__doc__ or "").splitlines()[0]
    print(f"python -m workshop.{part:12}{about}")
