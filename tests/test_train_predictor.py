"""The predictor's training: on a tiny target in seconds, its loss against Eq. 8-10, and what is committed."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import train_draft  # noqa: E402
import train_predictor  # noqa: E402
from distill import answers, draft, early_exit  # noqa: E402
from distill.early_exit import Change, Rows, Settings  # noqa: E402
from repro.core.errors import InputError  # noqa: E402
from repro.models import weights  # noqa: E402
from repro.models.cache import KVCache  # noqa: E402
from repro.models.predictor import Predictor, PredictorConfig  # noqa: E402
from test_train_draft import command as draft_command  # noqa: E402
from test_train_draft import places  # noqa: E402, F401

COMMITTED = ROOT / "assets" / "predictors" / "smollm2-135m"


@pytest.fixture(scope="module")
def made(places: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """A tiny target's answers, a draft, and a predictor with one try before it."""
    where = tmp_path_factory.mktemp("predictor")
    train_draft.main(draft_command(places, where, phases="harvest,generate,train", steps=20))
    train_predictor.main([*command(places, where), "--try", "layer=2"])
    return where


def command(places: Path, where: Path, **changed: object) -> list[str]:  # noqa: F811
    options: dict[str, object] = {
        "target": places / "target", "draft": where / "out", "answers": where / "work",
        "out": where / "predictor", "width": 4, "layer": 1, "rank": 8, "steps": 60, "batch": 64, "threads": 1,
    }  # fmt: skip
    options.update({name.replace("_", "-"): value for name, value in changed.items()})
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def known(count: int = 40, width: int = 6, vocab: int = 12) -> tuple[Rows, torch.Tensor]:
    """Random rows whose last layer's are a linear function of the middle one's, and a projection."""
    generator = torch.Generator().manual_seed(0)
    middle, turn = (torch.randn(n, width, generator=generator) for n in (count, width))
    candidates = torch.stack([torch.randperm(vocab, generator=generator)[:4] for _ in range(count)])
    head = torch.randn(vocab, width, generator=generator)
    return Rows({1: middle}, middle @ turn, candidates), head


def test_the_loss_is_that_of_the_paper() -> None:
    generator = torch.Generator().manual_seed(1)
    target, student = torch.randn(2, 3, 7, generator=generator)
    candidates = torch.tensor([[0, 1], [4, 2], [6, 5]])
    settings = Settings(weight=0.5, kd=2.0, candidates=3.0)
    expected = 0.0
    for t in range(3):
        for picked, heat, weight in ((range(7), 2.0, 1.0), (candidates[t].tolist(), 3.0, 0.5)):
            z, s = (logits[t, list(picked)] / heat for logits in (target, student))
            p, q = z.exp() / z.exp().sum(), s.exp() / s.exp().sum()
            expected += weight * heat**2 * float((p * (p / q).log()).sum()) / 3
    found = early_exit.loss(target, student, candidates, settings)
    assert found.item() == pytest.approx(expected, rel=1e-4)
    assert early_exit.loss(target, target, candidates, settings).item() == pytest.approx(0, abs=1e-6)


def test_a_start_of_full_rank_finds_a_linear_layer() -> None:
    rows, _ = known(count=400)
    change = early_exit.start(rows, Settings(layer=1, rank=6))
    torch.testing.assert_close(change(rows.hidden[1]), rows.said, rtol=0.02, atol=0.02)
    assert early_exit.start(rows, Settings(layer=1, rank=2)).inner.shape == (2, 6)


def test_figures_count_what_they_say() -> None:
    head = torch.eye(5)
    said = torch.tensor([[9.0, 0, 0, 0, 0], [0, 9, 0, 0, 0], [0, 0, 9, 0, 0], [0, 0, 0, 0, 9]])
    candidates = torch.tensor([[0, 1], [2, 1], [1, 2], [0, 1]])  # the last misses the target's token
    middle = said.clone()
    middle[2] = torch.tensor([0.0, 3, 1, 0, 0])  # ranks the wrong one first
    rows = Rows({1: middle}, said, candidates)
    still = Change(torch.zeros(1, 5), torch.zeros(5, 1))
    found = early_exit.figures(still, rows, head, Settings(layer=1))
    assert found["covered"] == 0.75
    assert found["first"] == pytest.approx(2 / 3, abs=1e-4)
    assert found["draft_first"] == pytest.approx(1 / 3, abs=1e-4)
    assert found["anywhere"] == 0.75
    assert 0 < found["wrong_cut"] < 1


def test_training_lowers_the_loss_and_is_repeatable() -> None:
    rows, head = known()
    settings = Settings(layer=1, rank=2, rate=0.02, batch=16, steps=80)
    change, losses = early_exit.train(rows, head, settings, minutes=1e9)
    assert len(losses) == 80
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    again, _ = early_exit.train(rows, head, settings, minutes=1e9)
    assert torch.equal(change.inner, again.inner)
    assert torch.equal(change.outer, again.outer)
    assert early_exit.train(rows, head, settings, minutes=1e-9)[1] == []


def test_no_prompt_is_both_trained_on_and_held_out(made: Path) -> None:
    whole = [one for path in answers.shards(made / "work") for one in answers.read_shard(path)]
    trained, heldout = train_predictor.split(whole, 10**9)
    assert len(trained) + len(heldout) == len(whole)
    asked = [{tuple(one.prompt.tolist()) for one in part} for part in (trained, heldout)]
    assert not asked[0] & asked[1]
    fewer, same = train_predictor.split(whole, 30)
    assert sum(len(one.tokens) for one in fewer[:-1]) < 30 <= sum(len(one.tokens) for one in fewer)
    assert len(same) == len(heldout)


def test_the_saved_predictor_scores_as_the_trained_one(places: Path, made: Path) -> None:  # noqa: F811
    """Through the project's own decoder, from hidden rows of its own layers."""
    decoder = weights.load(places / "target")
    predictor = Predictor.load(made / "predictor", decoder)
    assert (predictor.layer, predictor.rank) == (1, 8)
    one = answers.read_shard(answers.shards(made / "work")[0])[0]
    target = AutoModelForCausalLM.from_pretrained(places / "target", dtype=torch.float32).eval()
    small = draft.load_draft(made / "out", target).eval()
    rows = early_exit.rows(target, small, [one], [1], 4)
    parts = load_file(made / "predictor" / "update.safetensors")
    change = Change(parts["inner"].float(), parts["outer"].float())
    expected = (change(rows.hidden[1]) @ target.get_output_embeddings().weight.T).gather(1, rows.candidates)
    ids = torch.cat([one.prompt, one.tokens[:-1]])
    places_ = torch.arange(len(ids))
    with torch.inference_mode():
        x = decoder.layer(0, decoder.embed(ids, places_), places_, None, KVCache(decoder.config, len(ids)))
    found = predictor.scores(x[len(one.prompt) - 1 :], [tuple(c) for c in rows.candidates.tolist()])
    torch.testing.assert_close(torch.stack(found), expected, rtol=1e-3, atol=1e-2)


def test_the_record_says_where_the_predictor_comes_from(places: Path, made: Path) -> None:  # noqa: F811
    text = (made / "predictor" / "training.json").read_text()
    whole = json.loads(text)
    assert str(places) not in text
    assert str(made) not in text
    assert "--try layer=2" in whole["command"]
    assert set(whole["tries"]) == {"layer=2", "as saved"}
    assert whole["tries"]["layer=2"] != whole["tries"]["as saved"]
    assert whole["settings"]["layer"] == PredictorConfig.read(made / "predictor").layer == 1
    assert whole["result"]["updates"] == 60
    assert whole["data"]["trained_positions"] > whole["data"]["heldout_positions"] > 0
    shard = (made / "predictor" / "update.safetensors").read_bytes()
    assert whole["update"]["sha256"] == hashlib.sha256(shard).hexdigest()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"target": "nowhere"}, "nowhere"),
        ({"answers": "nowhere"}, "no shards"),
        ({"layer": 3}, "1 to 2"),
        ({"try": "depth=2"}, "choose NAME"),
        ({"try": "layer=two"}, "layer is int"),
    ],
)
def test_bad_input_is_named(
    places: Path,  # noqa: F811
    made: Path,
    changed: dict[str, object],
    named: str,
) -> None:
    with pytest.raises(InputError, match=named):
        train_predictor.main(command(places, made, **changed))


def test_settings_take_one_change() -> None:
    assert train_predictor.changed(Settings(), "kd=2") == replace(Settings(), kd=2.0)
