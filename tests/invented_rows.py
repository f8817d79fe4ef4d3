"""One invented row in each dataset's columns, as the hub has them, and what its prompt must hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import yaml

from repro.core.paths import conf_dir


@dataclass(frozen=True)
class Invented:
    """A row, how its prompt ends, its reference, its continuations and the right one, its worked examples."""

    row: dict[str, Any]
    ends: str
    reference: str
    answer: int | None = None
    continuations: tuple[str, ...] = ()
    shots: tuple[dict[str, Any], ...] = ()


def _translation(source: str) -> Invented:
    row = {"translation": {source: "Ein roter Ball.", "en": "A red ball."}}
    return Invented(row, "into English.\n\nEin roter Ball.", "A red ball.")


def _passage() -> Invented:
    words = " ".join(f"word{i}" for i in range(40))
    return Invented({"text": f" {words} \n"}, words, "")


_REST = _passage().ends.partition(" ")[2]


def _last_word(row: dict[str, Any]) -> Invented:
    return Invented({"text": "She took the red ball", **row}, "She took the red", "ball", 0, (" ball",))


def _turns(turns: str, key: str) -> Invented:
    row = {
        key: 7,
        "category": "writing",
        turns: ["Praise the ball.", "Now in verse."],
        "reference": ["Round!"],
    }
    return Invented(row, "Praise the ball.", "Round!")


def _lettered(subject: str, count: int = 0) -> Invented:
    def row(question: str, answer: int) -> dict[str, Any]:
        return {"question": question, "subject": subject, "choices": ["red", "blue"], "answer": answer}

    ends = "Ball?\nA. red\nB. blue\nAnswer:"
    return Invented(
        row("Ball?", 1), ends, "B", 1, (" A", " B"), tuple(row(f"Shot {i}?", 0) for i in range(count))
    )


def _labelled(question: str, ends: str) -> Invented:
    choices = {"text": ["red", "blue"], "label": ["A", "B"]}
    row = {"id": "x1", question: "Which colour?", "choices": choices, "answerKey": "B"}
    return Invented(row, ends, "blue", 1, (" red", " blue"))


def _named(dataset: str, row: dict[str, Any], ends: str, name: str) -> Invented:
    """A choice among the dataset's own list of names."""
    text = (conf_dir() / "dataset" / f"{dataset}.yaml").read_text(encoding="utf-8")
    names = yaml.safe_load(text)["scoring"]["choices"]
    return Invented(row, ends, name, names.index(name), tuple(f" {one}" for one in names))


_LONGBENCH = {"length": 3, "dataset": "x", "language": "en", "all_classes": None, "_id": "1"}
_MC = {"choices": ["round", "square"], "labels": [1, 0]}
_MMLU_PRO = {
    "question_id": 1,
    "question": "Ball?",
    "options": ["red", "blue"],
    "answer": "B",
    "answer_index": 1,
}
_HELLASWAG = {
    "ind": 1,
    "activity_label": "Ball games",
    "ctx_a": "[header] A game [title] A ball flies.",
    "ctx_b": "a child",
    "ctx": "unused",
    "endings": ["[step] runs.", "sleeps."],
    "source_id": "s",
    "split": "val",
    "split_type": "indomain",
    "label": "1",
}
_SCIQ = {
    "question": "What is round?",
    "distractor3": "a cube",
    "distractor1": "a box",
    "distractor2": "a brick",
    "correct_answer": "a ball",
    "support": "",
}

INVENTED: dict[str, Invented] = {
    "alpaca": Invented(
        {"output": "Done.", "input": "", "instruction": "Throw the ball."}, "Throw the ball.", "Done."
    ),
    "arc_easy": _labelled("question", "Question: Which colour?\nAnswer:"),
    "arc_easy_5shot": _labelled(
        "question", "Answer: Earth spins on its axis.\n\nQuestion: Which colour?\nAnswer:"
    ),
    "bookcorpus": Invented({"text": "the ball was red ."}, "the ball was red .", ""),
    "cnn_dailymail": Invented(
        {"article": "A ball {flew}.", "highlights": "Ball flies.", "id": "1"},
        "\n\nA ball {flew}.",
        "Ball flies.",
    ),
    "droidtask": Invented(
        {
            "app": "clock",
            "task_id": "task1",
            "task_name": "ring the bell",
            "step_num": 2,
            "records": [{"State": "<button id=3>Bell</button>", "Choice": 3, "Input": "null"}],
        },
        "Task: ring the bell\nScreen:\n<button id=3>Bell</button>\n\nAnswer with the element's id, "
        "and with the text to type if it takes any. Answer -1 if nothing is left to do.",
        "3",
    ),
    "droidtask_prompts": Invented(
        {"app": "clock", "task": "ring", "step": 1, "prompt": "Tap what?"}, "Tap what?", ""
    ),
    "gsm8k": Invented(
        {"question": "Two balls and one?", "answer": "2+1\n#### 3"},
        "Two balls and one?\n\nWork it out step by step, then give the number on a line of its own.",
        "2+1\n#### 3",
    ),
    "hellaswag": Invented(
        _HELLASWAG, "Ball games: A game. A ball flies. A child", "sleeps.", 1, (" runs.", " sleeps.")
    ),
    "humaneval": Invented(
        {
            "task_id": "T/0",
            "prompt": "def f(x: dict) -> dict:\n    return {",
            "canonical_solution": "}",
            "test": "assert f({}) == {}",
            "entry_point": "f",
        },
        "Complete the following Python function. Answer with the whole function.\n\n"
        "```python\ndef f(x: dict) -> dict:\n    return {```",
        "}",
    ),
    "iwslt2017": _translation("de"),
    "lambada": _last_word({"domain": ""}),
    "lambada_openai": _last_word({}),
    "llamatouch": Invented(
        {
            "episode": "1",
            "category": "general",
            "path": "p",
            "description": "Open the bell",
            "nsteps": 2,
            "app": "Clock",
        },
        "in the app Clock.\n\nTask: Open the bell",
        "",
    ),
    "llamatouch_5shot": _named(
        "llamatouch_5shot",
        {"category": "general", "description": "Open the bell", "app": "Clock"},
        "App: Camera\n\nTask: Open the bell\nApp:",
        "Clock",
    ),
    "longbench_2wikimqa": Invented(
        {"input": "Who threw?", "context": "Passage 1: Ann threw.", "answers": ["Ann", "Anna"], **_LONGBENCH},
        "Passage 1: Ann threw.\n\nQuestion: Who threw?",
        "Ann",
    ),
    "longbench_triviaqa": Invented(
        {"input": "Question: Who threw?\nAnswer:", "context": "Ann.", "answers": ["Ann"], **_LONGBENCH},
        "Ann.\n\nQuestion: Who threw?\nAnswer:",
        "Ann",
    ),
    "mbpp": Invented(
        {
            "task_id": 1,
            "text": "Write f.",
            "code": "def f(): ...",
            "test_list": ["assert f() is None", "assert True"],
            "test_setup_code": "",
            "challenge_test_list": [],
        },
        "Write f. Answer with the whole function; it must pass this test:\n\n"
        "```python\nassert f() is None\n```",
        "def f(): ...",
    ),
    "mmlu": _lettered("ball_games", 5),
    "mmlu_dev": _lettered("ball_games"),
    "mmlu_pro": Invented(
        {**_MMLU_PRO, "cot_content": "", "category": "ball games", "src": "s"},
        "Ball?\nA. red\nB. blue\nAnswer:",
        "B",
        1,
        (" A", " B"),
    ),
    "mt_bench": _turns("turns", "question_id"),
    "mt_bench_prompts": _turns("prompt", "prompt_id"),
    "octopus": Invented(
        {
            "query": "Ring!",
            "response": "set_volume(9)",
            "api_name": "set_volume",
            "ground_truth_params": "[9]",
        },
        "and nothing else.\n\nRequest: Ring!",
        "set_volume(9)",
    ),
    "octopus_5shot": _named(
        "octopus_5shot",
        {"query": "Ring!", "response": "set_volume(9)", "api_name": "set_volume"},
        "Function: irrelevant_function\n\nRequest: Ring!\nFunction:",
        "set_volume",
    ),
    "openbookqa": _labelled("question_stem", "Which colour?"),
    "openbookqa_5shot": _labelled(
        "question_stem", "make the soil\nAnswer: richer\n\nQuestion: Which colour?\nAnswer:"
    ),
    "parrot": Invented(
        {"instruction": "Translate.", "input": "Ein Ball.", "output": "A ball."},
        "Translate.\n\nEin Ball.",
        "A ball.",
    ),
    "piqa": Invented(
        {"goal": "Throw", "sol1": "let go", "sol2": "hold on", "label": 0},
        "Question: Throw\nAnswer:",
        "let go",
        0,
        (" let go", " hold on"),
    ),
    "piqa_5shot": Invented(
        {"goal": "Throw", "sol1": "let go", "sol2": "hold on", "label": 0},
        "spins fast and evenly.\n\nQuestion: Throw\nAnswer:",
        "let go",
        0,
        (" let go", " hold on"),
    ),
    "sciq": Invented(
        _SCIQ, "Question: What is round?\nAnswer:", "a ball", 3, (" a box", " a brick", " a cube", " a ball")
    ),
    "sciq_5shot": Invented(
        _SCIQ,
        "Answer: freezing\n\nQuestion: What is round?\nAnswer:",
        "a ball",
        3,
        (" a box", " a brick", " a cube", " a ball"),
    ),
    "spec_bench": _turns("turns", "question_id"),
    "squad": Invented(
        {
            "id": "1",
            "title": "Balls",
            "context": "Nobody knows.",
            "question": "Who threw?",
            "answers": {"text": ["Nobody"], "answer_start": [0]},
        },
        "Nobody knows.\n\nQuestion: Who threw?",
        "Nobody",
    ),
    "truthfulqa": Invented(
        {
            "type": "x",
            "category": "y",
            "question": "Is a ball round?",
            "best_answer": "Yes",
            "correct_answers": ["Yes"],
            "incorrect_answers": ["No"],
            "source": "s",
        },
        "Is a ball round?",
        "Yes",
    ),
    "truthfulqa_mc": Invented(
        {"question": "What is a ball?", "mc1_targets": _MC, "mc2_targets": _MC},
        "Question: What is a ball?\nAnswer:",
        "round",
        0,
        (" round", " square"),
    ),
    "wikitext2": _passage(),
    "wikitext2_texts": replace(_passage(), reference=_REST, answer=0, continuations=(f" {_REST}",)),
    "wikitext2_train": _passage(),
    "winogrande": Invented(
        {"sentence": "Ann saw Bea and _ waved.", "option1": "Ann", "option2": "Bea", "answer": "2"},
        "Ann saw Bea and",
        "Bea",
        1,
        (" waved.", " waved."),
    ),
    "wmt14": _translation("de"),
    "wmt14_validation": _translation("de"),
    "wmt22_de_en": _translation("de"),
    "wmt22_zh_en": _translation("zh"),
}
