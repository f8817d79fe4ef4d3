"""The draft's training: every phase on a tiny target in seconds, kills and all, and what is committed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from repro.core.errors import InputError
from tiny_training import training_command
from workshop.training import answers, loop, phases, train_draft

ROOT = Path(__file__).parents[3]

COMMITTED = ROOT / "assets" / "drafts" / "smollm2-135m-draft"

pytestmark = pytest.mark.usefixtures("training_rows")


def command(places: Path, where: Path, **changed: object) -> list[str]:
    return training_command(places, where, **{"rows": "gsm8k:2:6:2", "layers": 2, "width": 40, **changed})


@pytest.fixture(scope="module")
def whole(places: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One unbroken run of all phases."""
    where = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPRO_DATA", str(places / "data"))
        train_draft.main(command(places, where))
    return where


def test_batched_answers_are_the_targets_own(places: Path) -> None:
    target = AutoModelForCausalLM.from_pretrained(places / "target", dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(3)
    asked = [(torch.randint(3, 259, (n,), generator=generator).tolist(), 0.0) for n in (4, 9, 17, 6, 12, 5)]
    made = answers.answer(target, asked, answers.Limits(answer=40, guesses=3), 0, end=2)
    for (tokens, _), one in zip(asked, made, strict=True):
        alone = target.generate(torch.tensor([tokens]), max_new_tokens=40, do_sample=False, pad_token_id=2)
        assert torch.equal(alone[0, len(tokens) :], one.tokens)
        assert torch.equal(one.guesses[:, 0], one.tokens)
        assert (one.logprobs.diff(dim=1) <= 0).all()


def test_ended_rows_leave_the_batch_and_change_nothing(places: Path) -> None:
    target = AutoModelForCausalLM.from_pretrained(places / "target", dtype=torch.float32).eval()
    asked = [([5 + n, 9, 11], 0.0) for n in range(6)]
    free = answers.answer(target, asked, answers.Limits(answer=16, guesses=3), 0, end=-1)
    stop = int(free[0].tokens[4])  # a token that the target does write now ends an answer
    made = answers.answer(target, asked, answers.Limits(answer=16, guesses=3), 0, end=stop)
    assert min(len(one.tokens) for one in made) < 16
    for long, short in zip(free, made, strict=True):
        assert torch.equal(long.tokens[: len(short.tokens)], short.tokens)
        assert len(short.tokens) == 16 or int(short.tokens[-1]) == stop


@pytest.mark.slow
def test_a_killed_run_finds_the_same_shards_and_the_same_draft(
    places: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write, real_update = answers.write_shard, loop.Training._update
    calls = {"shards": 0, "updates": 0}

    def killed_while_writing(made: list[answers.Answer], path: Path) -> None:
        calls["shards"] += 1
        if calls["shards"] == 3:
            path.with_suffix(".partial").write_bytes(b"half a shard")
            raise KeyboardInterrupt
        real_write(made, path)

    def killed_while_training(self: loop.Training, *given: object) -> tuple[float, float]:
        calls["updates"] += 1
        if calls["updates"] == 33:
            raise KeyboardInterrupt
        return real_update(self, *given)

    monkeypatch.setattr(answers, "write_shard", killed_while_writing)
    with pytest.raises(KeyboardInterrupt):
        train_draft.main(command(places, tmp_path))
    assert len(answers.shards(tmp_path / "work")) == 2
    monkeypatch.setattr(answers, "write_shard", real_write)
    monkeypatch.setattr(loop.Training, "_update", killed_while_training)
    with pytest.raises(KeyboardInterrupt):
        train_draft.main(command(places, tmp_path))
    train_draft.main(command(places, tmp_path))
    unbroken, resumed = answers.shards(whole / "work"), answers.shards(tmp_path / "work")
    assert len(unbroken) == len(resumed) > 5
    for one, other in zip(unbroken, resumed, strict=True):
        assert one.name == other.name
        assert one.read_bytes() == other.read_bytes()
    assert calls["updates"] == 33 + 40  # twenty were checkpointed, the rest done again
    first, second = (load_file(where / "out" / "model.safetensors") for where in (whole, tmp_path))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_parts_together_make_all_shards(places: Path, whole: Path, tmp_path: Path) -> None:
    for part in ("0/2", "1/2"):
        train_draft.main(command(places, tmp_path, phases="plan,generate", part=part))
    made = [path.name for path in answers.shards(tmp_path / "work")]
    assert made == [path.name for path in answers.shards(whole / "work")]


def test_the_draft_shares_the_targets_embeddings(places: Path, whole: Path) -> None:
    tensors = load_file(whole / "out" / "model.safetensors")
    assert {name.split(".")[1] for name in tensors} == {"layers", "norm"}
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    target = AutoModelForCausalLM.from_pretrained(places / "target", dtype=torch.float32)
    model = train_draft.load_draft(whole / "out", target).eval()
    assert torch.equal(model.get_input_embeddings().weight, target.get_input_embeddings().weight)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert (model.config.num_hidden_layers, model.config.intermediate_size) == (2, 40)
    made = answers.read_answers(answers.shards(whole / "work")[:1])
    right = train_draft.hits(model, made)
    row = torch.cat([made[0].prompt, made[0].tokens])[None]
    best = model(row).logits[0].argmax(-1)[len(made[0].prompt) - 1 : -1]
    assert torch.equal(right[0], best == made[0].tokens)


def test_the_record_says_where_the_draft_comes_from(places: Path, whole: Path) -> None:
    text = (whole / "out" / "training.json").read_text(encoding="utf-8")
    record = json.loads(text)
    assert str(places) not in text
    assert str(whole) not in text
    assert record["data"][0]["answer_tokens"] == answers.count_tokens(whole / "work") > 200
    assert record["data"][0]["prompts"]["prompts"] == record["data"][0]["answers"] == 13 + 12
    assert "--part 0/1" in record["command"]
    assert record["recipe"]["steps"] == 60
    assert "--rows gsm8k:2:6:2" in record["data"][0]["command"]
    weights = (places / "target" / "model.safetensors").read_bytes()
    assert record["target"]["model.safetensors"] == hashlib.sha256(weights).hexdigest()
    assert set(record["results"]) == {"gsm8k"}
    for figures in record["results"].values():
        assert 0 <= figures["agreement_64"] <= 1
        assert 1 <= figures["acceptance_length_chain8_128"] <= 9


def test_chain_counts_every_token_once() -> None:
    agreed = torch.tensor([True, True, False, True, False, False, True])
    assert train_draft.chain_runs(agreed) == [2, 1, 0, 1, 0, 0, 1]
    # 2+bonus, 1+bonus, 0+bonus, 1 at the end
    assert phases.acceptance_length([train_draft.chain_runs(agreed)]) == 7 / 4
    every = train_draft.figures_of([torch.ones(18, dtype=torch.bool)])
    assert every == {
        "agreement_64": 1.0, "acceptance_length_chain8_64": 9.0,
        "agreement_128": 1.0, "acceptance_length_chain8_128": 9.0,
    }  # fmt: skip


def test_loss_with_the_whole_vocabulary_is_the_divergence() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, head = (torch.randn(n, 8, generator=generator) for n in (5, 20))
    logp, guesses = torch.randn(5, 20, generator=generator).log_softmax(-1).topk(20)
    batch = train_draft.Batch(torch.empty(0), torch.empty(0), guesses, logp)
    loss, _ = train_draft.distillation_loss(hidden, head, batch, torch.arange(20), hard=0.0)
    logq = (hidden @ head.T).log_softmax(-1).gather(1, guesses)
    assert loss.item() == pytest.approx((logp.exp() * (logp - logq)).sum(-1).mean().item(), abs=1e-4)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"phases": "plan,tune"}, "tune"),
        ({"target": "nowhere"}, "nowhere"),
        ({"layers": 9}, "8"),
        ({"width": 0}, "width 0"),
    ],
)
def test_bad_input_is_named(places: Path, whole: Path, changed: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        train_draft.main(command(places, whole, **changed))


def test_the_committed_draft_is_small_and_recorded() -> None:
    weights = COMMITTED / "model.safetensors"
    config = json.loads((COMMITTED / "config.json").read_text(encoding="utf-8"))
    record = json.loads((COMMITTED / "training.json").read_text(encoding="utf-8"))
    assert weights.stat().st_size <= train_draft.SIZE_LIMIT
    assert config["shares_embeddings"] is True
    assert config["model_type"] == "llama"
    tensors = load_file(weights)
    layers = {int(name.split(".")[2]) for name in tensors if name.startswith("model.layers.")}
    assert layers == set(range(config["num_hidden_layers"]))
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == record["draft"]["sha256"]
    assert {"command", "commit", "seed", "target", "data", "recipe", "curve", "results", "machine"} <= set(
        record
    )
    held_out = record["results"]["humaneval-code"]
    assert held_out["prompts"] == 40
    assert held_out["agreement_64"] >= 0.65
