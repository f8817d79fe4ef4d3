"""The encoder of an encoder-decoder: reads a request's prompt once, before the first layers of the decoder.

Owns what is billed for that. Must not know how the decoder's layers are laid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repro.models.streaming.loading import Loading

if TYPE_CHECKING:
    from repro.models.runtime.engine import Engine


class Encoder:
    """An encoder's state in one request.

    Attributes:
        rows: tokens of the prompt, which the decoder's layers attend to.
        is_read: whether a pass of the decoder has read its states, so that their keys and values are cached.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.is_read = False

    def start(self, prompt: int) -> None:
        """Start a request with `prompt` tokens."""
        self.rows, self.is_read = prompt, False

    async def run(self, engine: Engine) -> None:
        """Run the encoder over the prompt; its layers are streamed unless all decoder layers are resident.

        Raises:
            RuntimeError: no request was started.
        """
        cost, rows = engine.model_cost, self.rows
        if not rows:
            raise RuntimeError(f"{engine.name} has an encoder, which must be told its prompt: start(prompt)")
        count = cost.shape.encoder_layers
        await engine.run(engine.op("embed", engine.on, rows, cost.embed(rows), name="encoder embed"))
        if engine.residency.layers == cost.shape.layers:
            name = f"encoder layers 0-{count - 1}"
            await engine.run(
                engine.op("encode", engine.on, rows, cost.encode(count, rows), name=name, launches=count)
            )
            return
        sizes, slots = [cost.encoder_layer_bytes] * count, engine.residency.encoder
        loading = Loading(f"{engine.name} encoder", engine.device, sizes, 0, slots, preload=False)
        for layer in range(count):
            await engine.take(layer, loading)
            name = f"encoder layer {layer}"
            await engine.run(engine.op("encode", engine.on, rows, cost.encode(1, rows), name=name))
            loading.give_back(layer)
