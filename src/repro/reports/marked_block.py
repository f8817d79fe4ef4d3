"""Blocks of a page that a command writes, between two markers: `<!-- NAME -->` and `<!-- /NAME -->`.

Must not know what a block shows.
"""

from __future__ import annotations

from repro.core.errors import InputError


def markers(name: str) -> tuple[str, str]:
    """The lines before and after a block."""
    return f"<!-- {name} -->", f"<!-- /{name} -->"


def block(page: str, name: str, where: str) -> str:
    """The text between a block's markers.

    Args:
        page: the page's Markdown.
        name: of the block.
        where: the page's name, for error messages.

    Raises:
        InputError: the page lacks one of them, or has one twice.
    """
    start, end = markers(name)
    for marker in (start, end):
        if page.count(marker) != 1:
            raise InputError(f"{where} has {page.count(marker)} lines {marker!r}; it needs exactly one")
    content, end_found, _ = page.partition(start)[2].partition(end)
    if not end_found:
        raise InputError(f"{where} has {end!r} before {start!r}; it needs them in order")
    return content.strip()


def fill_block(page: str, name: str, content: str, where: str) -> str:
    """The page with a block's Markdown between its markers.

    Raises:
        InputError: as `block`.
    """
    block(page, name, where)
    start, end = markers(name)
    text_before, text_after = page.split(start)
    return f"{text_before}{start}\n{content}\n{end}{text_after.split(end)[1]}"
