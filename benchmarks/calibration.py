"""Check a calibrated device file against its machine: predicted and measured time of a forward pass.

python scripts/calibrate.py --out here.yaml && python benchmarks/calibration.py here.yaml

The same session code runs the same model on the emulated and on the local device: only the clock differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import yaml

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.device.device_file import machine
from repro.device.emulated import Device, EmulatedDevice
from repro.device.local import LocalDevice, local_machine
from repro.models.checkpoints.checkpoint import Checkpoint, open_checkpoint
from repro.models.costs.model_cost import ModelCost, Shape, precision
from repro.models.forward.network import DecoderNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from repro.models.transformer import weights
from repro.models.transformer.decoder import Decoder

BILLED = {"float32": "fp32", "bfloat16": "bf16", "int4": "int4"}
CONTEXT = 32


def model_cost(decoder: Decoder, dtype: str) -> ModelCost:
    """Model cost from the decoder's own shape."""
    c = decoder.config
    dimensions = (c.layers, c.hidden, c.heads, c.kv_heads, c.head_dim, c.intermediate, c.vocab)
    return ModelCost(Shape(*dimensions, gated=c.gated, tied=c.tied), precision(BILLED[dtype]))


def milliseconds(device: Device, decoder: Decoder, dtype: str, rows: int, passes: int) -> float:
    """Median time of a pass over `rows` tokens after a context of 32 tokens."""
    session = Session(Engine("target", device, model_cost(decoder, dtype), DecoderNetwork(decoder), RESIDENT))
    taken: list[float] = []

    async def run() -> None:
        text = Prefix.of(range(CONTEXT))
        await session.forward([text])
        for i in range(passes):
            start = device.now
            chain = [text.extend([i] * n) for n in range(1, rows + 1)]
            await session.forward(chain)
            taken.append((device.now - start) * 1e3)
            session.keep(text)

    device.play(run())
    return median(taken[1:])


def compare(facts: Path, folder: Path, dtypes: Sequence[str], rows: Sequence[int], passes: int) -> None:
    """One output line for each precision and number of tokens."""
    emulated = machine(yaml.safe_load(facts.read_text(encoding="utf-8")))
    budget = {"budget": {"value": 4, "unit": "GB", "source": "assumed"}}
    print(f"{'':10}{'rows':>5}{'predicted ms':>14}{'real ms':>10}{'predicted / real':>18}")
    for dtype in dtypes:
        decoder = weights.load(folder, dtype)
        for count in rows:
            predicted = milliseconds(EmulatedDevice(emulated), decoder, dtype, count, 3)
            local = LocalDevice(local_machine({"dram": budget}))
            real = milliseconds(local, decoder, dtype, count, passes)
            local.close()
            print(f"{dtype:10}{count:5}{predicted:14.1f}{real:10.1f}{predicted / real:18.2f}", flush=True)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("device", type=Path, help="a file that scripts/calibrate.py wrote on this machine")
    parser.add_argument("--dtype", nargs="+", default=list(BILLED), choices=BILLED)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32], help="rows of a pass")
    parser.add_argument("--passes", type=int, default=20, help="passes that are timed")
    chosen = parser.parse_args(given)
    checkpoint = Checkpoint.from_yaml(conf_dir() / "model" / "checkpoint" / "smollm2_135m_instruct.yaml")
    try:
        folder = open_checkpoint(checkpoint)
        compare(chosen.device, folder, chosen.dtype, chosen.rows, chosen.passes)
    except (InputError, OSError) as wrong:
        sys.exit(f"calibration: {wrong}")


if __name__ == "__main__":
    main()
