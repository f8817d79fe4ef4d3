"""The training of the dual-head model's heads: which words and decisions are labels, and what is learned."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import nn

from repro.core.errors import InputError
from repro.methods.elastilm.dual_head_network import DualHead, HeadSettings
from repro.methods.elastilm.token_spans import TextSpan
from repro.methods.elastilm.word_pieces import WordPieces, load_encoder
from repro.methods.serving.deciders import Oracle, ServiceRequest
from repro.methods.serving.slo import Decision, LatencySlo
from repro.models.analysis.likelihood import Reader
from tiny_dense import dense
from tiny_encoder import Characters, write
from workshop.training import score_head
from workshop.training.decision_head import DecisionLoss, Judge, Labels, decided, spare
from workshop.training.loop import Schedule, Training
from workshop.training.score_head import (
    UNJUDGED,
    HeadExample,
    Marked,
    ScoreLoss,
    matched,
    scored,
    surprisals,
    upper_half,
    word_figures,
    word_nats,
    words,
)

TEXT = Characters()


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write("bert", tmp_path_factory.mktemp("bert"))


# --- words --------------------------------------------------------------------------------------------------


def test_a_words_surprisal_is_the_sum_of_its_shares_of_tokens() -> None:
    text = "the cat, so"
    tokens = TEXT.encode(text)  # "the ", then bytes
    nats = [float(i) for i in range(1, len(tokens))]
    assert word_nats(tokens, nats, TEXT.decode) == [(4, 7, 1.0 + 2.0 + 3.0), (7, 8, 4.0), (9, 11, 6.0 + 7.0)]
    shared = word_nats([1, 2], [6.0], lambda ids: "".join({1: "a ", 2: "b,c"}[i] for i in ids))
    assert [nats for _, _, nats in shared] == [2.0, 2.0, 2.0], "a token over three words"


def test_surprisal_is_what_a_reader_says_of_the_next_token() -> None:
    made, tokens = dense("llama-2"), [3, 17, 5, 90, 41]
    wanted = [-Reader(made).score([(tokens[:i], tokens[i : i + 1])])[0].nats for i in range(1, 5)]
    assert surprisals(made, tokens) == pytest.approx(wanted, abs=1e-4)


def test_the_more_surprising_half_of_words_is_retained() -> None:
    surprising = [(0, 1, 4.0), (2, 3, 1.0), (4, 5, 3.0), (6, 7, 2.0)]
    assert upper_half("a b c d", surprising).retained == (True, False, True, False)


def test_a_compressed_text_marks_words_in_their_order() -> None:
    text = "The item, so the item was approved."
    found = matched(text, "item item approved")
    assert [text[a:b] for (a, b), mark in zip(found.words, found.retained, strict=True) if mark] == [
        "item",
        "item",
        "approved",
    ]
    reworded = matched(text, "Item passed approved.")
    assert [one for one, mark in zip(words(text), reworded.retained, strict=True) if mark][-1] == TextSpan(
        34, 35
    )
    assert sum(reworded.retained) == 3, "a word that is not found blocks nothing behind it"


def test_rows_of_meetingbank_are_read_chunk_by_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {
        "idx": 1,
        "prompt_list": ["Call the roll.", "All here."],
        "compressed_prompt_list": ["Call roll.", "here"],
    }
    (tmp_path / "made_up.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    monkeypatch.setenv("REPRO_DATA", str(tmp_path))
    (read,) = score_head.read_meetings("made_up.jsonl", 5).rows
    first, second = score_head.marked_chunks(read)
    assert (first.retained, second.retained) == ((True, False, True, True), (False, True, False))
    whole = {"prompt": "All here.", "compressed_prompt": "here"}
    assert score_head.marked_chunks(whole, ("prompt", "compressed_prompt")) == [second]
    with pytest.raises(InputError, match="2 chunks and 1"):
        score_head.marked_chunks({**row, "compressed_prompt_list": ["x"]})


def test_pieces_have_the_labels_of_their_words(encoder: Path) -> None:
    marked = Marked("the cats sat", (TextSpan(4, 8), TextSpan(9, 12)), (True, False))
    (made,) = scored([marked], WordPieces(encoder), 24)
    # "the", cat + s, sat, between the ids around a text
    assert made.labels.tolist() == [UNJUDGED, UNJUDGED, 1, *[1] * (len(made.prompt) - 5), 0, UNJUDGED]
    assert made.spans[2].start == 4
    (cut,) = scored([marked], WordPieces(encoder), 4)
    assert len(cut.prompt) == len(cut.labels) == 4


def trainable(parameters: Mapping[str, nn.Parameter]) -> None:
    for parameter in parameters.values():
        parameter.requires_grad_(True)


def schedule(steps: int) -> Schedule:
    return Schedule(steps=steps, rate=1e-2, warmup=1, decay=1.0, weight_decay=0.0)


def test_the_score_head_learns_which_words_to_retain_and_goes_on_after_a_kill(
    encoder: Path, tmp_path: Path
) -> None:
    text = "the cat sat on the cat sat"
    spans = tuple(words(text))
    marked = [Marked(text, spans, tuple(text[a:b] == "cat" for a, b in spans))] * 4
    pieces = WordPieces(encoder)
    examples = scored(marked, pieces, 24)

    def trained(steps: int, state: Path) -> tuple[DualHead, Training]:
        net = DualHead(load_encoder(encoder), HeadSettings(rank=2))
        trainable(net.part("score"))
        training = Training(net, schedule(steps), state, "cpu")
        loss = ScoreLoss(net, pieces.padding)
        training.run(lambda epoch: [examples], loss, minutes=math.inf, every=10)
        return net, training

    first, _ = trained(20, tmp_path / "state.pt")
    net, training = trained(40, tmp_path / "state.pt")
    assert [point["step"] for point in training.curve] == [10, 20, 30, 40]
    assert training.earlier == [{"until": 20, **asdict(schedule(20))}]
    net.eval()
    learned = word_figures(net, examples, marked)
    assert (learned["accuracy"], learned["auc"]) == (1.0, 1.0)
    assert not torch.equal(first.keep.weight, net.keep.weight)
    again, _ = trained(20, tmp_path / "other.pt")
    assert torch.equal(first.keep.weight, again.keep.weight), "dropout has the recipe's seed"


# --- decisions ----------------------------------------------------------------------------------------------

RIGHT = frozenset({Decision(0.4, 0.3), Decision(0.2, 0.6), Decision(0.3, 0.6), Decision(1.0, 0.6)})


def labels(margin: float = 0.0) -> Labels:
    return Labels(margin)


def test_the_label_is_the_lightest_right_decision_that_meets_the_objective() -> None:
    made = labels()
    assert made.label((0.6, 0.6), RIGHT) == (Decision(0.4, 0.3), False), "0.12 both, and the smaller model"
    assert made.label((0.6, 0.6), RIGHT - {Decision(0.4, 0.3)}) == (Decision(0.2, 0.6), False)
    assert made.label((0.2, 0.3), RIGHT) == (Decision(0.4, 0.3), False)
    assert made.label((0.2, 0.2), RIGHT) == (Decision(1.0, 0.2), True)


def test_the_label_is_the_oracles_decision() -> None:
    made, oracle = labels(), Oracle({"a/1": RIGHT})
    for objective, feasible in made.feasible.items():
        if RIGHT & set(feasible):
            asked = ServiceRequest("a/1", (1,), 1, LatencySlo(*objective))
            assert made.label(objective, RIGHT) == (oracle.decide(asked, feasible), False)


def test_a_margin_leaves_room_below_an_objective() -> None:
    feasible = labels(margin=0.02).feasible
    assert Decision(0.5, 0.6) not in feasible[0.3, 1.0]
    assert Decision(0.4, 0.7) in feasible[0.3, 1.0]
    assert max(one.model for one in feasible[1.0, 0.5]) == 0.4
    assert max(one.model for one in feasible[1.0, 1.0]) == 1.0
    assert (0.9, 0.2) not in feasible, "nothing meets it"
    assert len(labels().feasible) == 81


def test_decisions_are_judged_with_their_fallback() -> None:
    class OneObjective(Labels):
        feasible = {(0.2, 0.5): labels().feasible[0.2, 0.5]}  # noqa: RUF012

    right = {0: RIGHT, 1: frozenset({Decision(1.0, 1.0)})}
    judge = Judge(OneObjective(0.0), right, [0, 1])
    assert judge.judged([Decision(0.4, 0.3)] * 2) == {"right": 0.5, "fell_back": 0.0}
    by_chance = round(1 / 2 / len(OneObjective.feasible[0.2, 0.5]), 4)
    assert judge.judged([Decision(1.0, 1.0)] * 2) == {"right": by_chance, "fell_back": 1.0}
    assert judge.rivals([0]) == {"random": by_chance, "majority": 0.5, "oracle": 0.5}


def test_all_but_the_last_line_of_a_question_may_be_dropped() -> None:
    text = "a cat?\nA. b\nAnswer:"
    assert spare(TEXT.encode(text), TEXT.decode) == len(TEXT.encode("a cat?\nA. b"))


def test_the_decision_head_learns_to_follow_the_objective(encoder: Path) -> None:
    net, pieces = DualHead(load_encoder(encoder), HeadSettings(rank=4)), WordPieces(encoder)
    read = pieces.split("the cat")[0]
    examples = [
        HeadExample(
            torch.tensor([pieces.first, *net.objective_ids(ttft, 0.5), *read, pieces.last]),
            torch.tensor(classes),
            0,
        )
        for ttft, classes in ((0.2, [0, 1]), (1.0, [8, 3]))
    ] * 4
    before = {name: value.detach().clone() for name, value in net.named_parameters()}
    trainable(net.part("decision") | {"objective": net.objective})
    loss = DecisionLoss(net, pieces.padding)
    training = Training(net, schedule(60), None, "cpu")
    training.run(lambda epoch: [examples], loss, minutes=math.inf, every=60)
    net.eval()
    changed = {name for name, value in net.named_parameters() if not torch.equal(value, before[name])}
    assert changed <= {*net.part("decision"), "objective"}
    assert "objective" in changed
    assert decided(net, examples[:2], pieces.padding) == [Decision(0.2, 0.3), Decision(1.0, 0.5)]
