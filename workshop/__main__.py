"""`python -m workshop`: the parts of the workshop and their commands. Imports none of them."""

import ast
from pathlib import Path


def docstring(path: Path) -> str:
    """What a module says of itself; nothing is imported, as that takes seconds."""
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


HERE = Path(__file__).parent
for part in sorted(HERE.glob("*/__init__.py")):
    print(f"workshop.{part.parent.name}: {docstring(part)}\n")
    for module in sorted(part.parent.rglob("*.py")):
        if 'if __name__ == "__main__"' in module.read_text(encoding="utf-8"):
            name = ".".join(module.relative_to(HERE.parent).with_suffix("").parts).removesuffix(".__main__")
            print(f"    python -m {name}\n        {docstring(module).partition(chr(10))[0]}")
    print()
