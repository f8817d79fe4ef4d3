"""Invented answers of methods, with the times of their rounds."""

from __future__ import annotations

from repro.methods.base import Generation, Request, Round


def answer(tokens: int, first: float, *rounds: tuple[int, int, int, float, float]) -> Generation:
    """An answer that came a second before its first token; rounds: rows, accepted, emitted, start, end."""
    made = [Round(rows - 1, rows, a, e, rows - 1, "", start, end) for rows, a, e, start, end in rounds]
    ended = rounds[-1][4] if rounds else first
    return Generation(Request("r", (1,), tokens), list(range(tokens)), made, first - 1.0, first, first, ended)
