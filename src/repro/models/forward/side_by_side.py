"""Greedy decoding: of one prompt, or of several side by side, where one forward pass computes a row of each.

Owns the plain greedy loops that give a model's own text. Must not know methods, token trees, sessions or
caches of logits: the text that other results are judged by depends on none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

from repro.libraries import Tensor, torch
from repro.models.forward.network import Logits, Network, rows_of
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.attention import AttentionMask, scores
from repro.models.transformer.cache import KVCache
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.inference import inference

GROUP_SIZE = 32
"""Prompts that share a forward pass. Beyond it a row costs as much as in a pass of its own."""


Report = Callable[[int], None]
"""Progress callback, called with the number of tokens that each text has."""


def greedy_tokens(
    network: Network,
    prompt: Prefix,
    max_tokens: int,
    stop: Container[int],
    note_row: Callable[[Logits], object] = lambda row: None,
) -> list[int]:
    """The greedy answer to a prompt.

    Args:
        network: the model.
        prompt: the prompt.
        max_tokens: length limit.
        stop: tokens that end the answer; the stop token is included in it.
        note_row: called with the row that each token is chosen from.
    """
    tokens: list[int] = []
    text = prompt
    network.start(prompt)
    while len(tokens) < max_tokens:
        (logits,) = rows_of(network, [text])
        note_row(logits)
        tokens.append(logits.choice)
        if logits.choice in stop:
            break
        text = text.then(logits.choice)
        network.keep(text)
    return tokens


@dataclass
class GreedyText:
    """A model's greedy tokens after a prompt, stop tokens ignored.

    Attributes:
        prompt: the prompt.
        tokens: the greedy tokens.
        rows: `rows[i]` are the ranks from which `tokens[i]` was chosen.
    """

    prompt: Prefix
    tokens: list[int] = field(default_factory=list)
    rows: list[Logits] = field(default_factory=list)

    def contexts(self) -> list[Prefix]:
        """The sequence after which each token was chosen."""
        return [self.prompt.extend(self.tokens[:i]) for i in range(len(self.tokens))]


def greedy_texts(
    decoder: Decoder,
    prompts: Sequence[Prefix],
    token_count: int,
    report: Report = lambda finished_tokens: None,
) -> list[GreedyText]:
    """The greedy text of each prompt, computed in passes of one row per prompt.

    Args:
        decoder: the model.
        prompts: the prompts; none is empty.
        token_count: length of every text; stop tokens do not end it.
        report: progress callback.

    Raises:
        NotFiniteError: a logit is NaN or infinite.
    """
    batch = _Batch(decoder, [prompt.tokens() for prompt in prompts], token_count)
    texts = [GreedyText(prompt) for prompt in prompts]
    _choose(texts, decoder, batch.read())
    for finished_tokens in range(1, token_count):
        report(finished_tokens)
        _choose(texts, decoder, batch.step([text.tokens[-1] for text in texts]))
    report(token_count)
    return texts


@inference
def _choose(texts: Sequence[GreedyText], decoder: Decoder, hidden: Tensor) -> None:
    for text, logits in zip(texts, decoder.head(hidden), strict=True):
        ranks = Logits(logits).top_ranks()
        text.rows.append(Logits(None, ranks))
        text.tokens.append(ranks[0][0])


class _Batch:
    """Prompts that are read one by one and continued together."""

    def __init__(self, decoder: Decoder, prompts: Sequence[Sequence[int]], token_count: int) -> None:
        self._prompts = prompts
        self._decoder = _BatchedDecoder(decoder.config, decoder.layers, decoder.ends)
        self._alone = decoder
        self._positions = torch.tensor([len(prompt) for prompt in prompts], device=decoder.device)
        capacity = max(map(len, prompts)) + token_count
        self._cache = SequenceCache(decoder.config, len(prompts), capacity, decoder.device)

    @inference
    def read(self) -> Tensor:
        """Compute all prompts; returns the hidden states after them, `[prompts, hidden]`."""
        return torch.stack([self._read(i, prompt) for i, prompt in enumerate(self._prompts)])

    def _read(self, sequence: int, prompt: Sequence[int]) -> Tensor:
        decoder = self._alone
        cache = KVCache(decoder.config, len(prompt), device=decoder.device)
        position_count = torch.arange(len(prompt), device=decoder.device)
        x = decoder.embed(torch.tensor(list(prompt), device=decoder.device), position_count)
        no_rows = x.new_empty(0, 2 * decoder.config.kv_heads, decoder.config.head_dim)
        x = decoder.run(x, position_count, None, cache)
        for i in range(decoder.config.layers):
            self._cache.fill(i, sequence, *cache.append_joint(i, no_rows))
        return x[-1]

    @inference
    def step(self, tokens: Sequence[int]) -> Tensor:
        """Append one token to each sequence; returns the hidden states after it, `[sequences, hidden]`."""
        ids, positions = torch.tensor(list(tokens), device=self._alone.device), self._positions
        x = self._decoder.embed(ids, positions, ahead=True)
        self._positions = positions + 1
        return self._decoder.run(x, positions, None, self._cache)


class SequenceCache(KVCache):
    """Keys and values of several sequences, `[sequences, kv_heads, capacity, head_dim]` in each layer.

    A pass appends one row to each sequence. `length_of` counts such passes, as sequences differ in length.
    """

    def __init__(
        self, config: DecoderConfig, sequence_count: int, capacity: int, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(config, 1, device=device)
        size = (config.layers, sequence_count, config.kv_heads, capacity, config.head_dim)
        self._sequences = torch.arange(sequence_count, device=device)
        self._stored = torch.zeros(2, *size, device=device)
        self._at = self._sequences

    def fill(self, layer: int, sequence: int, keys: Tensor, values: Tensor) -> None:
        """Set a sequence's first keys and values, each `[kv_heads, rows, head_dim]`."""
        self._stored[0, layer, sequence, :, : keys.shape[1]] = keys
        self._stored[1, layer, sequence, :, : keys.shape[1]] = values

    def set_positions(self, layer: int, positions: Tensor) -> None:
        """Set the position of the next row of each sequence, int64 `[sequences]`."""
        self._at = positions

    def append_joint(self, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Append a row to each sequence, `[sequences, 2 * kv_heads, head_dim]`.

        Returns keys and values, `[sequences * kv_heads, slots, head_dim]`, up to the longest sequence's last.
        """
        self._lengths[layer] += 1
        for slots, row in zip(self._stored[:, layer], rows.chunk(2, 1), strict=True):
            slots[self._sequences, :, self._at] = row
        most_slots = int(self._at.max()) + 1
        keys, values = (slots.flatten(0, 1)[:, :most_slots] for slots in self._stored[:, layer])
        return keys, values


class _BatchedDecoder(Decoder):
    """A decoder whose rows belong to different sequences of a `SequenceCache`."""

    def _build_mask(
        self, layer: int, rotation: Tensor | None, positions: Tensor, mask: Tensor | None, cache: KVCache
    ) -> AttentionMask:
        """A row sees the slots of its sequence up to its own position, within a sliding layer's window."""
        slots = torch.arange(int(positions.max()) + 1, device=positions.device)
        is_visible = slots <= positions[:, None]
        if self.config.is_sliding(layer) and self.config.window is not None:
            is_visible &= slots > positions[:, None] - self.config.window
        bias = torch.zeros(is_visible.shape, device=is_visible.device).masked_fill_(~is_visible, -torch.inf)
        return AttentionMask(rotation, bias=bias.repeat_interleave(self.config.kv_heads, 0)[:, None])

    def _mix(self, queries: Tensor, keys: Tensor, values: Tensor, mask: AttentionMask) -> Tensor:
        """Attention of each row over its own sequence, `[rows, heads * head_dim]`."""
        row_count, _, width = queries.shape
        grouped_queries = queries.to(keys.dtype).reshape(row_count * self.config.kv_heads, -1, width)
        shares = torch.softmax(scores(self.config, grouped_queries, keys, mask.bias), -1)
        return torch.bmm(shares, values).view(row_count, -1)
