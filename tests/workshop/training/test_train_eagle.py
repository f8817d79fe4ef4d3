"""The EAGLE-3 head's training: its forward against the drafting network, every phase on a tiny target."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from repro.core.errors import InputError
from repro.methods.speculative.drafting import eagle_head
from repro.methods.speculative.drafting.eagle_head import EagleNetwork
from repro.models.checkpoints.weight_files import read_config
from repro.models.forward.cached_features import CachedFeatures
from repro.models.tokens.prefix import Prefix
from repro.models.transformer import weights
from tiny_training import LAYERS, training_command
from workshop.training import answers, prompts
from workshop.training import eagle_head as head
from workshop.training import train_eagle as unroll

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.usefixtures("training_rows")
COMMITTED = ROOT / "assets" / "drafts" / "smollm2-135m-eagle3"


def command(places: Path, where: Path, **changed: object) -> list[str]:
    own = {"sums": "gsm8k:2:6:2", "tasks": 2, "stubs": 3, "vocabulary": 120, "width": 40, "unroll": 3}
    return training_command(places, where, **{**own, **changed})


@pytest.fixture(scope="module")
def whole(places: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One unbroken run of all phases."""
    where = tmp_path_factory.mktemp("eagle")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPRO_DATA", str(places / "data"))
        unroll.main(command(places, where))
    return where


def examples(target: torch.nn.Module, count: int = 3) -> list[answers.Answer]:
    """Greedy answers of the target to random prompts, with the rows it computed on the way, exactly."""
    generator = torch.Generator().manual_seed(3)
    asked = [(torch.randint(3, 259, (n + 4,), generator=generator).tolist(), 0.0) for n in range(count)]
    layers = (*head.feature_layers(LAYERS), LAYERS)
    return answers.answer(target, asked, answers.Limits(answer=10, guesses=3), 0, 0, layers)


def test_every_step_says_what_the_drafting_network_says(places: Path, tmp_path: Path) -> None:
    """Row k of step i is the network's after the prompt, k answer tokens and i tokens of its own."""
    target = AutoModelForCausalLM.from_pretrained(places / "target", dtype=torch.float32).eval()
    made = examples(target)
    model = head.start_head(target, unroll.beginning(made, target, torch.zeros(259), 120), 40)
    torch.manual_seed(2)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    head.save_head(model, tmp_path)
    model = head.load_head(tmp_path, target)  # its sizes folded into its fusion, and rounded as the file is
    decoder = weights.load(places / "target", "float32")
    config = eagle_head.config_of(read_config(tmp_path))
    assert config is not None
    loaded = eagle_head.load(tmp_path, config, "float32", decoder.ends.embedding)
    remembered = CachedFeatures(config.depths(LAYERS), lambda: decoder)
    network = EagleNetwork(config, lambda: loaded, remembered)
    # Answers come with features in bf16; what is compared here is all else.
    exact = [replace(one, hidden=_exact(target, one)) for one in made]
    batch = unroll.collate(exact)
    steps = [model.logits(rows) for rows in unroll.unroll(model, batch, 3)]
    for index, one in enumerate(made):
        prompt, answer = one.prompt.tolist(), one.tokens.tolist()
        for known in range(4):
            network.start(Prefix.of([*prompt, *answer[:known]][:-1]))
            for step in range(3):
                wanted = Prefix.of([*prompt, *answer[: known + step]])
                asked = network.begin([wanted])
                asked.layers(0, network.depth)
                row = asked.rows()[0].logits[model.tokens]
                torch.testing.assert_close(row, steps[step][index, known], atol=1e-4, rtol=1e-4)


def _exact(target: torch.nn.Module, one: answers.Answer) -> torch.Tensor:
    found = target(torch.cat([one.prompt, one.tokens])[None, :-1], output_hidden_states=True).hidden_states
    rows = torch.cat([found[i][0] for i in (*head.feature_layers(LAYERS), LAYERS)], -1)
    torch.testing.assert_close(one.hidden.float(), rows, atol=0.05, rtol=0.02)  # captured while decoding
    return rows.detach()


def test_loss_of_one_step_is_the_cross_entropy_over_the_draft_vocabulary(places: Path) -> None:
    target = AutoModelForCausalLM.from_pretrained(places / "target", dtype=torch.float32).eval()
    made = examples(target)
    even = torch.zeros(259)
    even[::2] = 1e3
    model = head.start_head(target, unroll.beginning(made, target, even, 130), 40)
    recipe = unroll.UnrollRecipe(unroll=1, negatives=259)
    projection = target.get_output_embeddings().weight
    ((loss, right),) = unroll.EagleLoss(model, projection, recipe)(made, 0)
    batch = unroll.collate(made)
    said = model.logits(next(unroll.unroll(model, batch, 1)))
    terms, hits = [], []
    for row, one in enumerate(made):
        for place in range(len(one.tokens)):
            best = int(one.guesses[place, 0])
            hits.append(int(said[row, place].argmax()) * 2 == best)
            if best % 2 == 0:
                p = (batch.final[row, place].float() @ projection[::2].bfloat16().float().T).softmax(-1)
                terms.append(-(p * said[row, place].log_softmax(-1)).sum())
    assert 0 < len(terms) < len(hits)
    assert loss.item() == pytest.approx(torch.stack(terms).mean().item(), rel=0.01)
    assert right.item() == pytest.approx(sum(hits) / len(hits))


def test_the_mixture_asks_as_the_experiments_do(places: Path) -> None:
    shares, sums = [prompts.Share("mbpp", 2, 6, 1)], [prompts.Share("gsm8k", 2, 6, 2)]
    stub = 'def f(x):\n    """Double x.\n    >>> f(2)\n    4\n    """\n'
    plan, again = (
        prompts.mixture([("package", stub)] * 2, shares, sums, tasks=1, stubs=5, seed=0) for _ in range(2)
    )
    assert plan == again
    assert len(plan) == 4 * 2 + 4 * 3 + 2
    texts = [item.text for item in plan if item.temperature == 0]
    asked = "Write a python function to double x. Answer with the whole function; it must pass this test:"
    assert f"{asked}\n\n```python\nassert f(2) == 4\n```" in texts
    assert any(text.startswith("Write 2. Answer with the whole function") for text in texts)
    assert not any("Write 1." in text for text in texts)  # an evaluated row


def test_the_head_learns_and_its_record_says_how(places: Path, whole: Path) -> None:
    text = (whole / "out" / "training.json").read_text(encoding="utf-8")
    record = json.loads(text)
    assert str(places) not in text
    assert str(whole) not in text
    curve = record["curve"]
    assert [point["step"] for point in curve] == [20, 40, 60]
    assert curve[-1]["loss"] < curve[0]["loss"]
    assert curve[-1]["training_agreement"] > curve[0]["training_agreement"]
    assert record["data"][0]["answer_tokens"] == answers.count_tokens(whole / "work") > 200
    assert "--rows mbpp:2:6:1" in record["data"][0]["command"]
    assert record["results"]["gsm8k"]["prompts"] == 2
    assert record["recipe"]["unroll"] == 3
    tensors = load_file(whole / "out" / "model.safetensors")
    assert tensors["fc.weight"].shape == (32, 96)
    assert tensors["midlayer.self_attn.q_proj.weight"].shape == (32, 64)
    assert int(tensors["t2d"].sum()) == len(tensors["d2t"]) == 120


def test_a_trained_head_is_trained_on_with_more_tokens(places: Path, whole: Path, tmp_path: Path) -> None:
    changed = {"start": whole / "out", "more": whole / "work", "vocabulary": 150, "steps": 20, "width": 7}
    unroll.main(command(places, tmp_path, phases="plan,train,evaluate", **changed))
    first, second = (
        json.loads((where / "out" / "training.json").read_text(encoding="utf-8"))
        for where in (whole, tmp_path)
    )
    assert second["started_from"] == first
    assert second["curve"][0]["training_agreement"] > first["curve"][0]["training_agreement"]
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert tensors["lm_head.weight"].shape == (150, 32)
    assert tensors["midlayer.mlp.up_proj.weight"].shape == (40, 32)  # the width it came with


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"rows": "mbpp:2"}, "mbpp:2"),
        ({"rows": "mbpp:9:12"}, "9:12"),
        ({"rows": "mbpp:4:2"}, "no row"),
        ({"width": 50}, "48"),
    ],
)
def test_wrong_input_is_named(places: Path, tmp_path: Path, changed: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        unroll.main(command(places, tmp_path, **changed))


def test_the_committed_head_is_what_its_record_says() -> None:
    recorded, file = (
        json.loads((COMMITTED / "training.json").read_text(encoding="utf-8")),
        COMMITTED / "model.safetensors",
    )
    assert recorded["head"]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert recorded["head"]["file_bytes"] == file.stat().st_size <= 20_000_000
    assert not any("HumanEval" in data["prompts"]["by_source"] for data in recorded["data"])
    config = eagle_head.config_of(read_config(COMMITTED))
    assert config is not None
    loaded = eagle_head.load(COMMITTED, config, "float32", torch.zeros(config.target_vocab, 576))
    assert loaded.targets is not None
    assert len(loaded.targets) == config.layer.vocab
    mask = load_file(file)["t2d"]
    assert torch.equal(mask.nonzero()[:, 0], loaded.targets)
