"""llama.cpp on this machine's CPU: the time of a pass over some rows after cached tokens.

Needs the extra `llama`. Owns how its server is asked. Times are llama.cpp's own, of one batch, logits of
the last token alone.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from repro.core.errors import InputError

BATCH = 512
"""Tokens of a batch, llama.cpp's default."""


def is_installed() -> bool:
    """Whether llama.cpp's package is there."""
    return find_spec("xllamacpp") is not None


class LlamaCppPasses:
    """A GGUF file opened by llama.cpp on the CPU."""

    def __init__(self, path: Path, threads: int, longest: int) -> None:
        """Open a file for passes of up to `longest` tokens, context included.

        Raises:
            InputError: the package is not installed.
        """
        if not is_installed():
            raise InputError(
                "llama.cpp is not installed: pip install -e '.[llama]', or leave it out (--engines ours)"
            )
        import xllamacpp

        asked = xllamacpp.CommonParams()
        asked.model.path = str(path)
        asked.n_ctx, asked.n_batch, asked.n_ubatch = longest + 64, BATCH, BATCH
        asked.n_parallel, asked.n_gpu_layers, asked.verbosity = 1, 0, -1
        asked.cpuparams.n_threads = asked.cpuparams_batch.n_threads = threads
        asked.cache_ram_mib = 0
        self._server = xllamacpp.Server(asked)
        self._asked = 0

    def seconds(self, rows: int, context: int) -> float:
        """Time of a pass over `rows` new tokens after `context` cached ones.

        If the cache holds another context, that is computed first, and not timed.
        """
        got: dict[str, Any] = {}
        for _ in range(2):
            self._asked += 1
            common = [100 + (7 * i + context) % 4000 for i in range(context)]
            new = [200 + (13 * i + 31 * self._asked) % 3000 for i in range(rows)]
            got = self._server.handle_completions(
                {
                    "prompt": common + new,
                    "n_predict": 1,
                    "cache_prompt": True,
                    "temperature": 0,
                    "ignore_eos": True,
                }
            )["timings"]
            if got["cache_n"] == context and got["prompt_n"] == rows:
                return float(got["prompt_ms"]) / 1e3
        raise InputError(
            f"llama.cpp computed {got['prompt_n']} tokens after {got['cache_n']} cached ones, "
            f"asked were {rows} after {context}"
        )
