"""The predictor's training: on a tiny target in seconds, its loss against Eq. 8-10, and what is committed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from repro.core.errors import InputError
from repro.methods.lever.exit_predictor import ExitPredictor, PredictorConfig
from repro.models.transformer import weights
from repro.models.transformer.cache import KVCache
from tiny_training import training_command
from workshop.training import answers, train_draft, train_predictor
from workshop.training.train_predictor import Change, ExitPositions, PredictorRecipe

ROOT = Path(__file__).parents[3]

COMMITTED = ROOT / "assets" / "predictors" / "smollm2-135m"


@pytest.fixture(scope="module")
def made(places: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target's answers, a draft, and a predictor."""
    where = tmp_path_factory.mktemp("predictor")
    small = {"layers": 2, "width": 40, "steps": 20, "heldout": "gsm8k:0:1"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPRO_DATA", str(places / "data"))
        train_draft.main(training_command(places, where, phases="plan,generate,train", **small))
    train_predictor.main(command(places, where))
    return where


def command(places: Path, where: Path, **changed: object) -> list[str]:
    options: dict[str, object] = {
        "target": places / "target", "draft": where / "out", "answers": where / "work",
        "out": where / "predictor", "width": 4, "layer": 1, "rank": 8, "steps": 60, "batch": 64, "threads": 1,
    }  # fmt: skip
    options.update({name.replace("_", "-"): value for name, value in changed.items()})
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def test_the_loss_is_that_of_the_paper() -> None:
    generator = torch.Generator().manual_seed(1)
    target, student = torch.randn(2, 3, 7, generator=generator)
    candidates = torch.tensor([[0, 1], [4, 2], [6, 5]])
    settings = PredictorRecipe(weight=0.5, kd=2.0, candidates=3.0)
    expected = 0.0
    for t in range(3):
        for picked, heat, weight in ((range(7), 2.0, 1.0), (candidates[t].tolist(), 3.0, 0.5)):
            z, s = (logits[t, list(picked)] / heat for logits in (target, student))
            p, q = z.exp() / z.exp().sum(), s.exp() / s.exp().sum()
            expected += weight * heat**2 * float((p * (p / q).log()).sum()) / 3
    none = torch.zeros(7)
    found = train_predictor.divergences(target, student, candidates, none, settings)
    assert found.item() == pytest.approx(expected, rel=1e-4)
    assert train_predictor.divergences(target, target, candidates, none, settings).item() == pytest.approx(
        0, abs=1e-6
    )


def test_figures_count_what_they_say() -> None:
    head = torch.eye(5)
    said = torch.tensor([[9.0, 0, 0, 0, 0], [0, 9, 0, 0, 0], [0, 0, 9, 0, 0], [0, 0, 0, 0, 9]])
    candidates = torch.tensor([[0, 1], [2, 1], [1, 2], [0, 1]])  # the last misses the target's token
    middle = said.clone()
    middle[2] = torch.tensor([0.0, 3, 1, 0, 0])  # ranks the wrong one first
    rows = ExitPositions(middle, said, candidates, candidates)
    still = Change(torch.zeros(1, 5), torch.zeros(5, 1))
    found = train_predictor.figures_of(still, rows, head)
    assert found["covered"] == 0.75
    assert found["first"] == pytest.approx(2 / 3, abs=1e-4)
    assert found["draft_first"] == pytest.approx(1 / 3, abs=1e-4)
    assert found["anywhere"] == 0.75
    assert 0 < found["wrong_cut"] < 1


def test_no_prompt_is_both_trained_on_and_held_out(made: Path) -> None:
    whole = answers.read_answers(answers.shards(made / "work"))
    trained, heldout = train_predictor.split(whole, 10**9)
    assert len(trained) + len(heldout) == len(whole)
    asked = [{tuple(each.prompt.tolist()) for each in part} for part in (trained, heldout)]
    assert not asked[0] & asked[1]
    fewer, same = train_predictor.split(whole, 30)
    sizes = [len(each.tokens) for each in fewer]
    assert sum(sizes[:-1]) < 30 <= sum(sizes)
    assert len(same) == len(heldout)


def test_the_saved_predictor_scores_as_the_trained_one(places: Path, made: Path) -> None:
    """Through the project's own decoder, from hidden rows of its own layers."""
    decoder = weights.load(places / "target")
    predictor = ExitPredictor.load(made / "predictor", decoder)
    assert (predictor.layer, predictor.config.rank) == (1, 8)
    one = answers.read_answers(answers.shards(made / "work")[:1])[0]
    target = AutoModelForCausalLM.from_pretrained(places / "target", dtype=torch.float32).eval()
    small = train_draft.load_draft(made / "out", target).eval()
    middle, candidates = (
        train_predictor.middle(target, [one], 1)[0],
        train_predictor.proposed(small, [one], 4),
    )
    parts = load_file(made / "predictor" / "update.safetensors")
    change = Change(parts["inner"].float(), parts["outer"].float())
    expected = (change(middle) @ target.get_output_embeddings().weight.T).gather(1, candidates)
    ids = torch.cat([one.prompt, one.tokens[:-1]])
    places_ = torch.arange(len(ids))
    with torch.inference_mode():
        x = decoder.layer(0, decoder.embed(ids, places_), places_, None, KVCache(decoder.config, len(ids)))
    found = predictor.scores(x[len(one.prompt) - 1 :], [tuple(c) for c in candidates.tolist()])
    apart = (torch.stack(found) - expected).abs().max()
    assert apart < 0.1 * expected.std()  # the training's rows come from 16-bit products


def test_the_record_says_where_the_predictor_comes_from(places: Path, made: Path) -> None:
    text = (made / "predictor" / "training.json").read_text(encoding="utf-8")
    whole = json.loads(text)
    assert str(places) not in text
    assert str(made) not in text
    assert "--layer 1" in whole["command"]
    assert whole["recipe"]["layer"] == PredictorConfig.read(made / "predictor").layer == 1
    assert whole["result"]["updates"] == 60
    assert whole["data"]["trained_positions"] > whole["data"]["heldout_positions"] > 0
    shard = (made / "predictor" / "update.safetensors").read_bytes()
    assert whole["weights"]["sha256"] == hashlib.sha256(shard).hexdigest()


@pytest.mark.parametrize(
    ("changed", "named"),
    [({"target": "nowhere"}, "nowhere"), ({"answers": "nowhere"}, "no shards"), ({"layer": 6}, "1 to 5")],
)
def test_bad_input_is_named(places: Path, made: Path, changed: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        train_predictor.main(command(places, made, **changed))


def test_the_committed_predictor_is_small_recorded_and_better_than_none() -> None:
    update = COMMITTED / "update.safetensors"
    config, whole = (
        PredictorConfig.read(COMMITTED),
        json.loads((COMMITTED / "training.json").read_text(encoding="utf-8")),
    )
    assert update.stat().st_size <= train_predictor.SIZE_LIMIT
    assert hashlib.sha256(update.read_bytes()).hexdigest() == whole["update"]["sha256"]
    tensors = load_file(update)
    assert tensors["inner"].shape == (config.rank, config.hidden)
    assert tensors["outer"].shape == (config.hidden, config.rank)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    assert (config.layer, config.layers) == (whole["settings"]["layer"], 30)
    assert whole["result"]["first"] >= 0.7
    assert whole["data"]["trained_positions"] >= 10_000
