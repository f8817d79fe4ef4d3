"""Similarity of a method's output to the target's own, in words and in tokens.

Owns Rouge-L and exact match. Must not know tokenizers: texts are decoded by the caller.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

from repro.core.registry import register
from repro.libraries import absent
from repro.metrics.base import INTEGERS, TEXT, Metric, Scores, require_rows

SPACELESS_SCRIPTS = {
    *("CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO", "IDEOGRAPHIC", "KANGXI", "YI", "TANGUT", "NUSHU"),
    *("THAI", "LAO", "TAI", "KHMER", "MYANMAR", "TIBETAN", "BALINESE", "JAVANESE"),
}
"""Words of the names of characters whose scripts put no spaces between words."""


@register("metric", "rouge_l")
class RougeL(Metric):
    """Rouge-L of the decoded texts in `tokens`, without punctuation: F-measure times 100, mean over prompts.

    Texts without tokens score 100 if they are equal, else 0.
    """

    inputs: ClassVar[Mapping[str, Any]] = {
        "prediction_texts": TEXT,
        "reference_texts": TEXT,
    }
    unit: ClassVar[str] = "%"

    def _compute(self, prediction_texts: Sequence[str], reference_texts: Sequence[str]) -> Scores:
        return {"rouge_l": _mean_f(rouge_scorer(), prediction_texts, reference_texts, "rouge_l")}


@register("metric", "rouge_l_tokens")
class RougeLTokens(Metric):
    """Rouge-L over token ids, so that punctuation counts, which matters for code."""

    inputs: ClassVar[Mapping[str, Any]] = {"predictions": INTEGERS, "references": INTEGERS}
    unit: ClassVar[str] = "%"

    def _compute(self, predictions: Sequence[Sequence[int]], references: Sequence[Sequence[int]]) -> Scores:
        scorer = rouge_scorer(tokenizer=_Words())
        return {"rouge_l_tokens": _mean_f(scorer, _words(predictions), _words(references), "rouge_l_tokens")}


@register("metric", "exact_match")
class ExactMatch(Metric):
    """Share of prompts, from 0 to 1, on which all emitted token ids equal the target's own."""

    inputs: ClassVar[Mapping[str, Any]] = {"predictions": INTEGERS, "references": INTEGERS}
    unit: ClassVar[str] = "share"

    def _compute(self, predictions: Sequence[Sequence[int]], references: Sequence[Sequence[int]]) -> Scores:
        require_rows(predictions, "exact_match")
        equal_count = sum(list(a) == list(b) for a, b in zip(predictions, references, strict=True))
        return {"exact_match": equal_count / len(predictions)}


class _Words:
    """A tokenizer for `rouge_score` that only splits at whitespace."""

    def tokenize(self, text: str) -> list[str]:
        return text.split()


class _Tokens:
    """A tokenizer for `rouge_score` whose tokens are `tokens`."""

    def tokenize(self, text: str) -> list[str]:
        return tokens(text)


def tokens(text: str) -> list[str]:
    """The words of a text: lower-cased runs of letters and digits, combining marks included.

    Of a script without spaces each character is a token. On ASCII text these are the default tokens of
    `rouge_score`, which knows no other letters.
    """
    token_texts: list[str] = []
    last_kind = ""
    for character in unicodedata.normalize("NFC", text.lower()):
        kind = _kind(character)
        if (last_kind and kind == "mark") or last_kind == kind == "run":
            token_texts[-1] += character
        elif kind in ("run", "single"):
            token_texts.append(character)
        last_kind = last_kind if kind == "mark" else kind
    return token_texts


@cache
def _kind(character: str) -> str:
    """What a character is: a `mark` on the one before, a `single` token, part of a `run`, or ""."""
    category = unicodedata.category(character)[0]
    if category not in "LN":
        return "mark" if category == "M" else ""
    name_words = unicodedata.name(character, "").replace("-", " ").split()[:2]
    return "run" if SPACELESS_SCRIPTS.isdisjoint(name_words) else "single"


def rouge_scorer(**settings: Any) -> Any:
    """A scorer of Rouge-L from `rouge_score`, by default over `tokens`."""
    with absent("scipy.stats"):  # nltk's collocations, which are unused here, take a second for it
        from rouge_score.rouge_scorer import RougeScorer  # late: it imports nltk

    return RougeScorer(["rougeL"], **{"tokenizer": _Tokens(), **settings})


def _words(rows: Sequence[Sequence[int]]) -> list[str]:
    return [" ".join(map(str, row)) for row in rows]


def rouge_by_prompt(
    predictions: Sequence[str], references: Sequence[str], scorer: Any | None = None
) -> list[float]:
    """F-measure of each text, from 0 to 1; by default as `rouge_l` has it."""
    rouge = scorer or rouge_scorer()
    pairs = zip(predictions, references, strict=True)
    return [
        1.0 if prediction == reference else rouge.score(reference, prediction)["rougeL"].fmeasure
        for prediction, reference in pairs
    ]


def _mean_f(scorer: Any, predictions: Sequence[str], references: Sequence[str], name: str) -> float:
    """Mean F-measure, in percent."""
    require_rows(predictions, name)
    scores = rouge_by_prompt(predictions, references, scorer)
    return 100.0 * sum(scores) / len(scores)
