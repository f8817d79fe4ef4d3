"""Turn examples into tokenized prompts, with the continuations to score.

Owns the tokenization of prompts and the placement of few-shot examples. Must not know models or sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.core.errors import InputError
from repro.data.builders import TemplateText
from repro.data.config import DatasetConfig, builder_of, scoring_of
from repro.data.rows import Rows
from repro.data.scoring import Scoring, Target
from repro.data.sources import JsonRow
from repro.data.template import at
from repro.models.checkpoints.tokenizer import Tokenizer

VERSION = 1
"""Version of all prompt builders and kinds of scoring. Raised by hand when tokens or scores change."""

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Continuation:
    """A text that is scored after a context.

    Attributes:
        context: token ids before it.
        token_ids: its own token ids, from tokenizing context and continuation as one text.
        text: the choice's text; `acc_norm` divides by its length in UTF-8 bytes.
    """

    context: Tokens
    token_ids: Tokens
    text: str


@dataclass(frozen=True)
class Prompt:
    """One request.

    Attributes:
        id: the dataset's name and the example's index among those in use, `gsm8k/0`.
        token_ids: the prompt's token ids.
        text: the prompt as text, before any chat template.
        reference: the dataset's reference answer; "" if there is none.
        continuations: the continuations to score; empty for generation.
        answer: index of the correct continuation; None for generation.
    """

    id: str
    token_ids: Tokens
    text: str
    reference: str
    continuations: tuple[Continuation, ...] = ()
    answer: int | None = None


def prompts(config: DatasetConfig, rows: Rows, tokenizer: Tokenizer) -> list[Prompt]:
    """One prompt per example, in order.

    Raises:
        InputError: an example lacks a value that a template or the scoring needs, its text is no Unicode,
            it has too few matching few-shot examples, or one of its choices has no token.
    """
    builder, scoring = builder_of(config), scoring_of(config)
    return [_prompt(config, i, rows, builder, scoring, tokenizer) for i in range(len(rows.rows))]


def _prompt(
    config: DatasetConfig,
    position: int,
    rows: Rows,
    builder: TemplateText,
    scoring: Scoring,
    tokenizer: Tokenizer,
) -> Prompt:
    name, row = f"{config.name}/{position}", rows.rows[position]
    try:
        examples = [_shot_text(shot, builder, scoring) for shot in _shots(config, row, rows.shots, builder)]
        texts = [builder.opening(row), *examples, builder.text(row)]
        text = "\n\n".join(part for part in texts[:-1] if part)
        text = f"{text}\n\n{texts[-1]}" if text else texts[-1]
        target = scoring.target(row, text)
        _require_unicode(text, *(part for pair in target.continuations for part in pair))
        continuations = _continuations(target, tokenizer)
    except InputError as error:
        raise InputError(f"prompt {name}: {error}") from error
    if config.chat and tokenizer.has_chat:
        token_ids = tokenizer.chat([{"role": "user", "content": text}])
    else:
        token_ids = tokenizer.encode(text)
    return Prompt(name, tuple(token_ids), text, target.reference, continuations, target.answer)


def _require_unicode(*texts: str) -> None:
    """InputError for text that cannot be encoded, which no tokenizer reads."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as wrong:
            character = ascii(text[wrong.start])
            raise InputError(f"character {wrong.start} of its text, {character}, is no Unicode") from wrong


def _shots(
    config: DatasetConfig, row: JsonRow, shots: Sequence[JsonRow], builder: TemplateText
) -> Sequence[JsonRow]:
    """The few-shot examples for one example, in source order; none asks the example's own question."""
    if config.shots is None or not config.shots.count:
        return ()
    field, question = config.shots.match, _normalize(builder.text(row))
    matching_shots = [shot for shot in shots if field is None or at(shot, field) == at(row, field)]
    examples: list[JsonRow] = []
    for shot in matching_shots:
        if len(examples) < config.shots.count and _normalize(builder.text(shot)) != question:
            examples.append(shot)
    if len(examples) < config.shots.count:
        condition = f" with {field} {at(row, field)!r}" if field else ""
        omission = ", the question itself left out" if len(matching_shots) > len(examples) else ""
        supply = f"{config.shots.file} has {len(examples)}{omission}"
        raise InputError(f"{config.shots.count} worked examples{condition} wanted, {supply}")
    return examples


def _normalize(text: str) -> str:
    """A text in lower case, with single spaces."""
    return " ".join(text.casefold().split())


def _shot_text(shot: JsonRow, builder: TemplateText, scoring: Scoring) -> str:
    """A few-shot example: its question followed by its answer."""
    question = builder.text(shot)
    target = scoring.target(shot, question)
    if target.answer is None:
        return f"{question} {target.reference}"
    context, continuation = target.continuations[target.answer]
    return context + continuation


def _continuations(target: Target, tokenizer: Tokenizer) -> tuple[Continuation, ...]:
    """The continuations to score; InputError for one without a token, a context or, of several, a text."""
    continuations = []
    for number, ((context, tail), text) in enumerate(zip(target.continuations, target.texts, strict=True)):
        head, token_ids = _split(context, tail, tokenizer)
        choice = f"choice {number} ({text!r})" if len(target.texts) > 1 else f"its continuation ({text!r})"
        if not text.strip():
            raise InputError(f"{choice} is empty, so nothing of it can be scored; leave its row out")
        if not token_ids:
            raise InputError(
                f"{choice} has no token of its own: the tokenizer joins all of it with the prompt's end; "
                "begin the continuation with a space or a new line, or leave its row out"
            )
        if not head:
            raise InputError(f"{choice} has no token before it, so no model can score it; leave its row out")
        continuations.append(Continuation(head, token_ids, text))
    return tuple(continuations)


def _split(context: str, continuation: str, tokenizer: Tokenizer) -> tuple[Tokens, Tokens]:
    """Tokenize context and continuation as one text; split after the length of the context tokenized alone.

    As in common evaluation harnesses: the count alone decides the side of a token that spans the border.
    """
    token_ids, head_length = tuple(tokenizer.encode(context + continuation)), len(tokenizer.encode(context))
    return token_ids[:head_length], token_ids[head_length:]
