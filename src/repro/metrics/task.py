"""Scores of generated answers by what their task expects: final numbers, short answers, texts.

Owns one score per answer, and the comparison of a method's scores with the target's on the same prompts. Must
not know datasets or records; the caller says what each prompt expects.
"""

from __future__ import annotations

import re
import string
import unicodedata
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

from repro.core.errors import InputError
from repro.core.registry import register
from repro.metrics.accuracy import PairedDifference, mean_and_error
from repro.metrics.base import NUMBER, TEXT, Metric, Scores, require_rows
from repro.metrics.text import rouge_by_prompt

SPELLINGS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"\*\*|__", ""),  # bold
    (r"\{,\}", ","),
    (
        r"(?<=\d)(?<!\d{4})(?:\\[,;:! ]|~|[ \u00a0\u2009\u202f]|')(?=\d{3}(?!\d))",
        ",",
    ),
    (r"\\[dt]?frac\s*\{?(\d+)\}?\s*\{?(\d+)\}?", r" \1/\2"),
    ("[\u00bc-\u00be\u2150-\u215e]", lambda sign: f" {unicodedata.normalize('NFKC', sign[0])}"),
    ("\u2044", "/"),
    ("\u2212|(?<![\\w.)])\u2013(?=[\\d.$€£¥₹])", "-"),
    (r"(?<![\w.)])(?<![\w.)]\s)-\s?(?=(?:\\?[$€£¥₹]|US\$)\s?[\d.])", "-"),
    (r"-(?:\\?[$€£¥₹]|US\$)\s?(?=[\d.])", "-"),
    (r"\s*(?:×|\\times|\\cdot|\*|\bx)\s*10\s*\^\s*\{?(-?\d+)\}?", r"e\1"),
)
"""How numbers are spelt otherwise, each with what stands for it."""

NUMBER_PATTERN = re.compile(
    r"(?<![\d.])-?(?:(?:\d+ )?\d+/[1-9]\d*(?![\d/])"  # 1/2, 2 1/2
    r"|(?:\d+(?:,\d{2,3})*,\d{3}(?!\d)|\d+)(?:\.\d+)?(?:[eE][+-]?\d{1,2}\b)?|\.\d+)"
)
STATED_NUMBERS = (r"####(.*)", r"\\boxed\s*\{((?:[^{}\n]|\{[^{}\n]*\})*)\}", r"\banswer\s*(?:is|[:=])(.*)")
"""Where an answer states its number, the surest first: GSM8K's own sign, LaTeX's box, words."""

REMARK_PATTERN = re.compile(r"(\d[^\d()\n=+/×÷]*)\([^()\n]*\)")
"""A remark in brackets on a number."""

NEXT_QUESTION = re.compile(r"\n\s*(?:question|q)\s*:", re.IGNORECASE)
ARTICLE_PATTERN = re.compile(r"\b(a|an|the)\b")


class AnswerMetric(Metric):
    """A score from 0 to 100 for each answer; its figure is the mean over prompts.

    Inputs: `prediction_texts`, one answer per prompt; `expected`, per prompt the texts that it is scored by.
    """

    inputs: ClassVar[Mapping[str, Any]] = {"prediction_texts": TEXT, "expected": [TEXT]}
    unit: ClassVar[str] = "%"

    version: ClassVar[int] = 1

    name: ClassVar[str]
    """The name that it is registered by, and of its figure."""

    runs_code: ClassVar[bool] = False
    """Whether it executes the answers, which a run must ask for by the metric's own name."""

    def ready(self) -> None:
        """InputError if this machine cannot compute it."""

    @abstractmethod
    def score(self, text: str, expected: Sequence[str]) -> float:
        """The score of one answer, from 0 to 100."""

    def _compute(self, prediction_texts: Sequence[str], expected: Sequence[Sequence[str]]) -> Scores:
        require_rows(prediction_texts, self.name)
        pairs = zip(prediction_texts, expected, strict=True)
        return {self.name: mean_and_error([self.score(text, texts) for text, texts in pairs])[0]}


@register("metric", "final_number")
class FinalNumber(AnswerMetric):
    """Percentage of answers whose final number is the reference's, as for GSM8K.

    It is the last number of what an answer states as its answer (after `####`, in `\\boxed{}`, in the line of
    `answer is` or `answer:`), else of the whole answer up to a next question, remarks in brackets left out.
    `9{,}500`, `9 500` and `9,500` are one number, as are `-$3` and `$-3`, 18.0 and 18, 1/2 and 0.5.
    """

    name: ClassVar[str] = "final_number"

    def score(self, text: str, expected: Sequence[str]) -> float:
        """100 if the last number is right; InputError for a reference without a number."""
        reference_numbers = [_final_number(reference) for reference in expected]
        if None in reference_numbers:
            raise InputError(f"metric 'final_number' found no number in the reference {expected[0][-60:]!r}")
        return 100.0 * (_final_number(text) in reference_numbers)


@register("metric", "answer_f1")
class AnswerF1(AnswerMetric):
    """F1 of an answer's words against the best of the references, as SQuAD defines it.

    Words are compared in lower case, without punctuation and articles. A reference without words, SQuAD 2.0's
    for a question without an answer, is met by an answer without words only.
    """

    name: ClassVar[str] = "answer_f1"

    def score(self, text: str, expected: Sequence[str]) -> float:
        """The best F1, times 100."""
        return 100.0 * max(_f1(_words(text), _words(reference)) for reference in expected)


@register("metric", "answer_exact")
class AnswerExact(AnswerMetric):
    """Percentage of answers that equal one of the references, in words as SQuAD compares them."""

    name: ClassVar[str] = "answer_exact"

    def score(self, text: str, expected: Sequence[str]) -> float:
        """100 if the words are those of a reference, in order."""
        return 100.0 * any(_words(text) == _words(reference) for reference in expected)


@register("metric", "reference_rouge_l")
class ReferenceRougeL(AnswerMetric):
    """Rouge-L of an answer against the best of the references, as `rouge_l`: F-measure times 100.

    `rouge_l` compares with the target's own text instead.
    """

    name: ClassVar[str] = "reference_rouge_l"

    def score(self, text: str, expected: Sequence[str]) -> float:
        """The best F-measure, times 100."""
        return 100.0 * max(rouge_by_prompt([text] * len(expected), expected))


@register("metric", "chrf")
class ChrF(AnswerMetric):
    """chrF of an answer against its references, as `sacrebleu` computes it for a sentence.

    The F-score of character 1- to 6-grams with recall counted twice. The figure is the mean over answers; the
    chrF of a whole corpus counts all n-grams together.
    """

    name: ClassVar[str] = "chrf"

    def score(self, text: str, expected: Sequence[str]) -> float:
        """The sentence's chrF, from 0 to 100."""
        from sacrebleu.metrics.chrf import CHRF  # late: it imports lxml

        score: float = CHRF().sentence_score(text, list(expected)).score
        return score


@register("metric", "task_score")
class TaskScore(Metric):
    """Mean score by the task, the target's own beside it, and the difference of both.

    Standard errors are over prompts; the difference has the 95% interval of `paired_difference`.

    Inputs: `values` and `baseline_values`, the scores of a method's and of the target's own answers to the
    same prompts.
    """

    inputs: ClassVar[Mapping[str, Any]] = {"values": NUMBER, "baseline_values": NUMBER}
    version: ClassVar[int] = 1
    unit: ClassVar[str] = "%"

    def _compute(self, values: Sequence[float], baseline_values: Sequence[float]) -> Scores:
        return compared("task_score", values, baseline_values)


def compared(name: str, values: Sequence[float], baseline_values: Sequence[float] | None) -> Scores:
    """The figures of a score, by its name.

    Returns:
        NAME and NAME_stderr: mean and standard error over prompts.
        target_NAME and target_NAME_stderr: the same of the target's own answers, if there are any.
        NAME_difference, NAME_difference_low, NAME_difference_high: mean of the paired differences and the
            ends of its 95% bootstrap interval, if there are any.
    """
    require_rows(values, name)
    scores: Scores = {}
    scores[name], scores[f"{name}_stderr"] = mean_and_error(values)
    if baseline_values is None:
        return scores
    target_name = f"target_{name}"
    scores[target_name], scores[f"{target_name}_stderr"] = mean_and_error(baseline_values)
    difference = PairedDifference().compute(values=values, baseline_values=baseline_values)
    return scores | {
        f"{name}_{end}": difference[end] for end in ("difference", "difference_low", "difference_high")
    }


def _final_number(text: str) -> Fraction | None:
    text = NEXT_QUESTION.split(text)[0]
    for spelling, stands_for in SPELLINGS:
        text = re.sub(spelling, stands_for, text)
    matches = [re.findall(pattern, text, re.IGNORECASE) for pattern in STATED_NUMBERS]
    surest, *other_matches = matches
    candidates = [*surest[:1], *(numerals[-1] for numerals in other_matches if numerals), text]
    for candidate in candidates:
        for part in (REMARK_PATTERN.sub(r"\1", candidate), candidate):
            if numbers := NUMBER_PATTERN.findall(part):
                return _value(numbers[-1].replace(",", ""))
    return None


def _value(number: str) -> Fraction:
    """The value of a number of plain digits: `-3`, `1.5e3`, `1/2`, `2 1/2`."""
    sign = -1 if number.startswith("-") else 1
    return sign * sum(map(Fraction, number.removeprefix("-").split()), Fraction(0))


def _words(text: str) -> list[str]:
    unpunctuated = "".join(char for char in text.lower() if char not in string.punctuation)
    return ARTICLE_PATTERN.sub(" ", unpunctuated).split()


def _f1(words: Sequence[str], reference_words: Sequence[str]) -> float:
    if not words or not reference_words:
        return float(words == reference_words)
    common_count = sum((Counter(words) & Counter(reference_words)).values())
    return 2 * common_count / (len(words) + len(reference_words))
