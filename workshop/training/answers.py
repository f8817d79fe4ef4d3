"""Owns the target's answers: batched decoding that keeps the target's top-k guesses, in resumable shards.

A shard is one file per batch, a pure function of (target, plan, index), written atomically. A killed run
therefore continues with the same shards, and several processes can each generate every n-th one.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StaticCache

from repro.core.errors import InputError
from repro.models.checkpoints.wheels import sha256_of
from workshop.training.prompts import CODE_REQUEST, Item

Prompt = tuple[list[int], float]  # token ids, temperature
Layers = tuple[int, ...]
SECONDS = "seconds.tsv"
NOTHING = torch.empty(0)
GROUP = 16  # batches sorted by length together: less padding, and the plan's mix of prompts is kept


@dataclass(frozen=True)
class Limits:
    """Sizes: sequences per batch, tokens per answer, guesses kept, longest prompt in tokens."""

    batch: int = 64
    answer: int = 128
    guesses: int = 12
    prompt: int = 288


OWN = "own_questions"
QUESTIONS = Limits(batch=64, answer=64, guesses=64)
SHORTEST = 20  # characters of a question; shorter ones are greetings
TRIES = 4  # samples per wanted question; about three in four end in time and are new
PLACE = "\0"


@dataclass(frozen=True)
class Answer:
    """A prompt and its answer as token ids, with what the target computed on the way, where that is known.

    `prompt [p]`, `tokens [n]`; the target's top-k tokens at each answer position, `guesses [n, k]` and
    `logprobs [n, k]`; its hidden states at every token but the last, bf16 `hidden [p + n - 1, layers *
    width]`. An answer ends with the end token or is cut at the limit.
    """

    prompt: Tensor
    tokens: Tensor
    guesses: Tensor = NOTHING
    logprobs: Tensor = NOTHING
    hidden: Tensor = NOTHING

    @property
    def size(self) -> int:
        """Tokens of prompt and answer."""
        return len(self.prompt) + len(self.tokens)


def add_probabilities(counts: Tensor, answers: Iterable[Answer]) -> Tensor:
    """The counts `[vocab]` with the target's probabilities at all positions of the answers added."""
    for each in answers:
        counts.index_add_(0, each.guesses.flatten(), each.logprobs.exp().flatten())
    return counts


def as_tokens(item: Item, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of an item: the bare text, or one user message in the target's chat template."""
    if item.kind == "raw":
        return list(tokenizer.encode(item.text, add_special_tokens=False))
    text = CODE_REQUEST.format(prompt=item.text) if item.kind == "code" else item.text
    message = [{"role": "user", "content": text}]
    chat = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    return list(tokenizer.encode(chat, add_special_tokens=False))


def batches(items: list[Item], tokenizer: PreTrainedTokenizerBase, limits: Limits) -> list[list[Item]]:
    """Items whose prompts are short enough, in batches of similar length."""
    lengths = {item: len(as_tokens(item, tokenizer)) for item in items}
    fit = [item for item in items if lengths[item] <= limits.prompt]
    size, result = limits.batch, []
    for start in range(0, len(fit), size * GROUP):
        group = sorted(fit[start : start + size * GROUP], key=lengths.__getitem__)
        cut = [group[i : i + size] for i in range(0, len(group), size)]
        result += cut[::2] + cut[1::2]
    return result


class _Decoding:
    """A left-padded batch being decoded; finished sequences are dropped once they are a quarter of it."""

    def __init__(
        self, target: PreTrainedModel, prompts: list[Prompt], limits: Limits, end: int, layers: Layers = ()
    ) -> None:
        self.target, self.end, self.layers = target, end, layers
        self.hidden: Tensor | None = None
        self.at = longest = max(len(tokens) for tokens, _ in prompts)
        size, device = (len(prompts), longest + limits.answer), target.device
        self.ids = torch.full((len(prompts), longest), end, device=device)
        self.mask = torch.ones(size, dtype=torch.long, device=device)
        for row, (tokens, _) in enumerate(prompts):
            self.ids[row, longest - len(tokens) :] = torch.tensor(tokens, device=device)
            self.mask[row, : longest - len(tokens)] = 0
        self.positions = (self.mask.cumsum(1) - 1).clamp(min=0)
        self.temperature = torch.tensor([[heat] for _, heat in prompts], device=device)
        self.cache = StaticCache(config=target.config, max_cache_len=size[1])
        self.rows = torch.arange(len(prompts), device=device)
        self.ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)

    def logits(self) -> Tensor:
        """Next-token logits of the target, fp32 `[rows, vocab]`."""
        start = self.at - self.ids.shape[1]
        output = self.target(
            self.ids,
            attention_mask=self.mask[:, : self.at],
            position_ids=self.positions[:, start : self.at],
            past_key_values=self.cache,
            logits_to_keep=1,
            output_hidden_states=bool(self.layers),
        )
        if self.layers:
            self.hidden = torch.cat([output.hidden_states[layer] for layer in self.layers], -1)
        return output.logits[:, -1].float()

    def take(self, chosen: Tensor) -> bool:
        """Append these tokens `[rows]`; False when every sequence has ended."""
        self.ids, self.at = chosen[:, None], self.at + 1
        self.ended |= chosen == self.end
        if 4 * int(self.ended.sum()) >= len(self.ended):
            self._drop(self.ended)
        return len(self.rows) > 0

    def _drop(self, ended: Tensor) -> None:
        for name in ("ids", "mask", "positions", "temperature", "rows", "ended"):
            setattr(self, name, getattr(self, name)[~ended])
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys[~ended], layer.values[~ended]


@torch.no_grad()
def answer(
    target: PreTrainedModel, prompts: list[Prompt], limits: Limits, seed: int, end: int, layers: Layers = ()
) -> list[Answer]:
    """The target's answer to each prompt, decoded as one batch; sampling is seeded.

    Their hidden states are the inputs of `layers` (the number of layers stands for the final norm's output).
    """
    generator = torch.Generator(target.device).manual_seed(seed)
    decoding = _Decoding(target, prompts, limits, end, layers)
    parts: list[list[tuple[Tensor, ...]]] = [[] for _ in prompts]
    hidden: list[list[Tensor]] = [[] for _ in prompts]
    for _ in range(limits.answer):
        chosen = _choose(decoding.logits(), decoding.temperature, limits.guesses, generator)
        live = (~decoding.ended).nonzero()[:, 0].tolist()
        rows = decoding.rows.tolist()
        columns = [part.cpu() for part in chosen]
        for place in live:
            parts[rows[place]].append(tuple(column[place] for column in columns))
            if decoding.hidden is not None:
                new = decoding.hidden[place, -len(prompts[rows[place]][0]) :]
                hidden[rows[place]].append(new.to("cpu", torch.bfloat16, copy=True))
        if not decoding.take(chosen[0]):
            break
    said = []
    for (prompt, _), part, states in zip(prompts, parts, hidden, strict=True):
        tokens, guesses, logprobs = map(torch.stack, zip(*part, strict=True))
        said.append(Answer(torch.tensor(prompt), tokens, guesses, logprobs, _joined(states)))
    return said


def _joined(states: list[Tensor]) -> Tensor:
    return torch.cat(states) if states else NOTHING


def _choose(
    logits: Tensor, temperature: Tensor, keep: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    top, guesses = logits.topk(keep, dim=-1)
    logprobs = top - logits.logsumexp(-1, keepdim=True)
    # Deviation: answers are sampled from the kept top-k; the tail is noise for a small draft.
    heated = (logprobs / temperature.clamp(min=1e-3)).softmax(-1)
    drawn = torch.multinomial(heated, 1, generator=generator)
    place = torch.where(temperature > 0, drawn, torch.zeros_like(drawn))
    return guesses.gather(1, place)[:, 0], guesses, logprobs


def write_shard(answers: list[Answer], path: Path) -> None:
    """Write one `safetensors` file atomically, and before it one of the hidden states, if there are any."""
    if answers[0].hidden.numel():
        lengths = torch.tensor([len(each.hidden) for each in answers])
        _write(
            {"hidden": torch.cat([each.hidden for each in answers]), "lengths": lengths}, hidden_path(path)
        )
    flat = {
        "prompt_lengths": torch.tensor([len(each.prompt) for each in answers]),
        "answer_lengths": torch.tensor([len(each.tokens) for each in answers]),
        "prompts": torch.cat([each.prompt for each in answers]).int(),
        "tokens": torch.cat([each.tokens for each in answers]).int(),
        "guesses": torch.cat([each.guesses for each in answers]).int(),
        "logprobs": torch.cat([each.logprobs for each in answers]).half(),
    }
    _write(flat, path)


def _write(tensors: dict[str, Tensor], path: Path) -> None:
    partial = path.with_suffix(".partial")
    save_file(tensors, partial)
    partial.replace(path)


def read_answers(paths: Iterable[Path], hidden: bool = False) -> list[Answer]:
    """The answers in these shards, with their hidden states if these are wanted."""
    return [each for path in paths for each in _read_shard(path, hidden)]


def _read_shard(path: Path, hidden: bool) -> Iterator[Answer]:
    flat = load_file(path)
    prompts = flat["prompts"].long().split(flat["prompt_lengths"].tolist())
    lengths = flat["answer_lengths"].tolist()
    states: Iterable[Tensor] = [NOTHING] * len(prompts)
    if hidden:
        beside = load_file(hidden_path(path))
        states = beside["hidden"].split(beside["lengths"].tolist())
    parts = [flat[name].split(lengths) for name in ("tokens", "guesses", "logprobs")]
    for prompt, tokens, guesses, logprobs, rows in zip(prompts, *parts, states, strict=True):
        yield Answer(prompt, tokens.long(), guesses.long(), logprobs.float(), rows)


def hidden_path(path: Path) -> Path:
    """Path of the hidden states of this shard."""
    return path.with_name(f"hidden-{path.name}")


def shards(folder: Path) -> list[Path]:
    """Complete shards, in order."""
    return sorted(folder.glob("shard-*.safetensors"))


def count_tokens(folder: Path) -> int:
    """Answer tokens in all complete shards."""
    return sum(int(load_file(path)["answer_lengths"].sum()) for path in shards(folder))


def described(folder: Path) -> dict[str, Any]:
    """Counts and a hash of the answers in a folder, for records."""
    files = shards(folder)
    return {
        "answers": len(read_answers(files)),
        "answer_tokens": count_tokens(folder),
        "shards": len(files),
        "shards_sha256": hashlib.sha256("".join(map(sha256_of, files)).encode()).hexdigest(),
    }


def shard_path(folder: Path, index: int) -> Path:
    """Path of the shard of the batch with this index."""
    return folder / f"shard-{index:05d}.safetensors"


def write_shards(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    planned: list[list[Item]],
    folder: Path,
    limits: Limits,
    *,
    seed: int,
    part: tuple[int, int],
    enough: Callable[[], bool],
    layers: Layers = (),
) -> None:
    """Answer every batch of this part that has no shard, until `enough()`; with hidden states of `layers`."""
    for index in range(part[0], len(planned), part[1]):
        path = shard_path(folder, index)
        if path.exists():
            continue
        if enough():
            return
        started = time.monotonic()
        asked = [(as_tokens(item, tokenizer), item.temperature) for item in planned[index]]
        answered = answer(target, asked, limits, seed + index, tokenizer.eos_token_id, layers)
        write_shard(answered, path)
        seconds, count = time.monotonic() - started, sum(len(each.tokens) for each in answered)
        print(f"{path.name}: {count} tokens in {seconds:.1f} s, {count / seconds:.0f} tokens/s", flush=True)
        with (folder / SECONDS).open("a", encoding="utf-8") as log:
            log.write(f"{path.name}\t{seconds:.1f}\n")


def seconds_spent(folder: Path) -> float:
    """Seconds that generating the shards took, summed over processes."""
    lines = (folder / SECONDS).read_text(encoding="utf-8").splitlines() if (folder / SECONDS).exists() else []
    return round(sum(float(line.split("\t")[1]) for line in lines), 1)


def own_questions(
    target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, count: int, seed: int
) -> list[Item]:
    """`count` different questions, sampled at temperature 1 after the chat template's start of a user turn.

    An instruction-tuned model was also trained on user turns, so what it samples there is as varied as its
    training data (the idea of Magpie). InputError if too few of the samples end in time and are new.
    """
    message = [{"role": "user", "content": PLACE}]
    opening = tokenizer.apply_chat_template(message, tokenize=False).partition(PLACE)[0]
    limits = QUESTIONS
    prompts = [(list(tokenizer.encode(opening, add_special_tokens=False)), 1.0)] * limits.batch
    questions: dict[str, None] = {}
    for tried in range(0, TRIES * count, limits.batch):
        if len(questions) >= count:
            break
        for said in answer(target, prompts, limits, seed + tried, tokenizer.eos_token_id):
            text = tokenizer.decode(said.tokens[:-1]).strip()
            if said.tokens[-1] == tokenizer.eos_token_id and len(text) >= SHORTEST:
                questions[text] = None
    if len(questions) < count:
        raise InputError(
            f"own {count}: the target gave {len(questions)} questions in {TRIES * count} samples"
        )
    return [Item("chat", OWN, text, 0.0) for text in list(questions)[:count]]
