"""The Medusa heads' training: its loss and figures by hand, every phase on a tiny target, and the result."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM

from repro.core.errors import InputError
from repro.methods.speculative.drafting import medusa_head
from repro.methods.speculative.drafting.medusa_head import MedusaNetwork
from repro.models.checkpoints.weight_files import read_config
from repro.models.forward.cached_features import CachedFeatures
from repro.models.tokens.prefix import Prefix
from repro.models.transformer import weights
from tiny_training import LAYERS, training_command
from workshop.training import answers, train_medusa

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.usefixtures("training_rows")
COMMITTED = ROOT / "assets" / "drafts" / "smollm2-135m-medusa"


def command(places: Path, where: Path, **changed: object) -> list[str]:
    own = {"sums": "gsm8k:2:6:2", "tasks": 2, "stubs": 3, "base": "tiny", "heads": 3, "blocks": 2}
    return training_command(places, where, **{**own, **changed})


@pytest.fixture(scope="module")
def whole(places: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One unbroken run of all phases."""
    where = tmp_path_factory.mktemp("medusa")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPRO_DATA", str(places / "data"))
        train_medusa.main(command(places, where))
    return where


def invented(*tokens: int, vocab: int = 12, width: int = 6) -> answers.Answer:
    """An answer of these tokens, each the second of three guesses, with random rows."""
    generator = torch.Generator().manual_seed(len(tokens))
    truth = torch.tensor(tokens)
    guesses = torch.stack([(truth + 1) % vocab, truth, (truth + 2) % vocab], -1)
    logprobs = torch.tensor([0.5, 0.3, 0.1]).log().expand(len(tokens), 3)
    final = torch.randn(len(tokens), width, generator=generator).bfloat16()
    return answers.Answer(torch.tensor([1, 2]), truth, guesses, logprobs, final)


def test_the_loss_is_that_by_hand() -> None:
    """Every token known, none drawn, nothing dropped: the plain cross entropy of each head, weighted."""
    one = invented(3, 4, 5, 9)
    heads = train_medusa.Heads(2, 1, 6)
    heads.weight.data.normal_(generator=torch.Generator().manual_seed(1))
    projection = torch.randn(12, 6, generator=torch.Generator().manual_seed(2)).bfloat16().float()
    recipe = train_medusa.MedusaRecipe(negatives=12, guesses=2, dropout=0.0, fade=0.5)
    made = train_medusa.MedusaLoss(heads, projection, torch.arange(12), recipe)
    made.projection = projection
    ((loss, agreement),) = made([one], 0)
    wanted, right = torch.zeros(()), []
    for head in range(2):
        parts: list[Tensor] = []
        for i in range(4 - 1 - head):
            x = one.hidden[i].float()
            logits = projection @ (x + F.silu(heads.weight[head, 0] @ x))
            truth = torch.zeros(12)
            truth[one.guesses[i + 1 + head, :2]] = torch.tensor([0.625, 0.375])
            parts.append(F.cross_entropy(logits, truth))
            right += [bool(logits.argmax() == one.guesses[i + 1, 0])] if head == 0 else []
        wanted = wanted + 0.5**head * torch.stack(parts).mean()
    torch.testing.assert_close(loss, wanted)
    assert float(agreement) == pytest.approx(sum(right) / 3)


def test_figures_are_those_by_hand() -> None:
    """Rows say which heads are right; a verification takes all up to the first miss, and one more token."""
    right = [torch.tensor([[1, 1], [0, 1], [1, 0], [1, 0], [0, 0]], dtype=torch.bool)]
    found = train_medusa.figures_of(right)
    assert found == {"acceptance_length_chain": 2.5, "head_0": 0.75, "head_1": round(2 / 3, 4)}


@pytest.mark.quick
def test_a_run_lowers_the_loss_and_leaves_its_record(whole: Path) -> None:
    record = json.loads((whole / "out" / "training.json").read_text(encoding="utf-8"))
    losses = [point["loss"] for point in record["curve"]]
    assert losses[-1] < 0.95 * losses[0]
    assert record["command"].startswith("python -m workshop.training.train_medusa ")
    assert str(whole) not in json.dumps(record)
    assert set(record["results"]["gsm8k"]) == {
        "prompts", "tokens", "acceptance_length_chain", "head_0", "head_1", "head_2",
    }  # fmt: skip
    assert record["data"][0]["answers"] > 0


def test_the_result_drafts_as_it_was_measured(whole: Path, places: Path) -> None:
    """The network's first choices along a held-out answer are those that the trainer's figures count."""
    folder = whole / "out"
    raw, decoder = read_config(folder), weights.load(places / "target", "float32")
    assert raw == {"base_model_name_or_path": "tiny", "medusa_num_heads": 3, "medusa_num_layers": 2}
    config = medusa_head.config_of(folder, raw, decoder.config.vocab)
    assert (config.heads, config.layers, config.untied) == (3, 2, False)
    loaded = medusa_head.load(folder, config, "float32", decoder.ends)
    network = MedusaNetwork(3, lambda: loaded, CachedFeatures((LAYERS,), lambda: decoder))
    target = AutoModelForCausalLM.from_pretrained(places / "target", dtype=torch.float32).eval()
    heads, projection = train_medusa.load_heads(folder), target.get_output_embeddings().weight
    (made,) = answers.answer(target, [([5, 9, 7, 30], 0.0)], answers.Limits(answer=8), 0, 0)
    text = [*made.prompt.tolist(), *made.tokens.tolist()]
    final = target.model(torch.tensor([text])).last_hidden_state[0]
    said = heads(final) @ projection.T
    for at in range(2, len(text)):
        network.start(Prefix.of(text[:at]))
        step = network.begin([Prefix.of([*text[: at + 1], *[0] * head]) for head in range(3)])
        step.layers(0, network.depth)
        for head, row in enumerate(step.rows()):
            torch.testing.assert_close(row.logits, said[head, at - 1], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"heads": 0}, "heads 0"), ({"blocks": 0}, "blocks 0"), ({"phases": "train"}, "no answers to train on")],
)
def test_a_wrong_argument_is_named(
    places: Path, tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        train_medusa.main(command(places, tmp_path, **changed))


def test_the_committed_heads_are_those_of_their_record() -> None:
    record = json.loads((COMMITTED / "training.json").read_text(encoding="utf-8"))
    content = (COMMITTED / "model.safetensors").read_bytes()
    assert record["head"] == {"file_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert len(content) < 7e6
    config = medusa_head.config_of(COMMITTED, read_config(COMMITTED), 49152)
    assert (config.heads, config.target_hidden, config.untied) == (5, 576, False)
    assert record["results"]["mbpp"]["head_0"] > 0.5
