"""A table of faults and methods: each method reports each fault that reaches it, though it looks rows up."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from rich.console import Console

from fault_cells import TOKENS, cell, write_models
from repro.experiments.summaries.notes import Note
from repro.experiments.sweep import Sweep
from repro.models.forward import network as networks
from repro.models.forward.logit_cache import WHOLE, LogitCache, _pack, _unpack
from repro.models.forward.network import LateLogits, Logits
from repro.models.forward.side_by_side import GreedyText
from repro.models.observations.own_text import BEYOND, TEXTS, TextStore
from repro.models.observations.pack import Pack
from repro.models.observations.transfer import branch_pack, text_pack
from repro.models.tokens import acceptance
from repro.models.tokens.kv_slots import Lineage
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder
from repro.records.results import open_results
from repro.scenarios.generation.real_passes import RealPasses
from repro.scenarios.generation.scenario import GenerationScenario
from tiny_outcomes import ours
from tiny_project import Project
from workshop.packs.plan import kind_of

ENGINES = ("llama_cpp_cpu", "mnn_cpu", "mlc_gpu", "tflite_gpu", "powerinfer2_npu", "mllm_npu")
PLAIN = ("std", "sequential", "flash_ar", "std_flash", "spl", "sti", "draft", *ENGINES)
"""Methods in which nothing drafts for the target."""
LOSSY = ("draft", "sti", "bld")
CHAINS = ("chain_sd", "sp", "corrected", "nav", "bld", "prompt_lookup", "chain_sd with an EAGLE head")
MEDUSAS = ("medusa", "medusa_em", "ghidorah")
TREES = ("specinfer", "edgellm", "opt_tree", "lever", "lever pruned", "lever with opt_tree", *MEDUSAS)
METHODS = (*PLAIN, *CHAINS, *TREES)
SAME = (*ENGINES[1:5], "sequential", "flash_ar", "std_flash", "spl", "sp", "medusa_em")
"""Methods whose passes are those of another one, tested under `--slow`."""
ERRORS = ("UnfaithfulRowError", "NotLosslessError", "NotFiniteError")


@dataclass
class Place:
    """One combination: the patches of the test, a cell, and how often the fault changed something."""

    patch: pytest.MonkeyPatch
    cell: GenerationScenario
    cache: Path
    hits: list[str] = field(default_factory=list)

    def memo(self, role: str, variant: str = "*") -> Path:
        """The cache of a role's rows that its runs have left."""
        observed = self.cell.model(role).outputs_key()
        files = sorted((self.cache / "memo").glob(f"{observed}{variant}.sqlite"))
        (found,) = [path for path in files if "-exit" not in path.name and "-texts" not in path.name]
        return found

    def forget(self) -> None:
        """Empty the cache."""
        shutil.rmtree(self.cache)

    def bring(self, pack: Pack) -> None:
        """Import a pack."""
        pack.write(self.cache / "observations")
        self.hits.append(pack.facts.name)


@dataclass(frozen=True)
class Fault:
    """Something wrong: how it comes about, and which methods it cannot reach, by the reason."""

    happens: Callable[[Place], None]
    beyond: Mapping[str, Sequence[str]] = field(default_factory=dict)
    every: ClassVar[dict[str, Fault]] = {}

    def reason(self, method: str) -> str:
        return next((reason for reason, methods in self.beyond.items() if method in methods), "")


def fault(**beyond: Sequence[str]) -> Callable[[Callable[[Place], None]], Callable[[Place], None]]:
    """Enter a fault in the table; reasons are written with underscores."""

    def enter(happens: Callable[[Place], None]) -> Callable[[Place], None]:
        reasons = {reason.replace("_", " "): methods for reason, methods in beyond.items()}
        Fault.every[happens.__name__.replace("_", " ")] = Fault(happens, reasons)
        return happens

    return enter


@fault(it_has_no_siblings=(*PLAIN, *CHAINS))
def siblings_are_seen(place: Place) -> None:
    """A row sees all rows before it."""
    made = Lineage.mask

    def mask(self: Lineage, *groups: Sequence[Any]) -> torch.Tensor | None:
        right = made(self, *groups)
        if right is None:
            return None
        wrong = right | torch.ones_like(right).tril(self.length)
        place.hits += ["mask"] * int(not torch.equal(right, wrong))
        return wrong

    place.patch.setattr(Lineage, "mask", mask)


@fault(no_pass_reads_what_it_kept=("nav",))
def other_slots_are_kept(place: Place) -> None:
    """After a tree each kept slot is the next one; after a chain the slot before the last is lost."""
    made = KVCache.keep

    def shifted(self: KVCache, base: int, slots: Sequence[int], layers: range | None = None) -> None:
        held = self.length
        made(self, base, [min(held - 1, slot + 1) for slot in slots], layers)
        if not slots and base > 2:
            self._data[:, :, base - 2] = self._data[:, :, base - 1]
        place.hits.append("keep")

    place.patch.setattr(KVCache, "keep", shifted)


@fault()
def positions_are_shifted(place: Place) -> None:
    """Rows after cached ones are rotated as if one place further on."""
    made = networks.DecoderStep.__init__

    def begin(self: Any, *arguments: Any) -> None:
        made(self, *arguments)
        if self._before:
            self._positions = self._positions + 1
            place.hits.append("positions")

    place.patch.setattr(networks.DecoderStep, "__init__", begin)


@fault(its_passes_have_one_row=(*PLAIN, "corrected"))
def rows_are_exchanged(place: Place) -> None:
    """A pass gives its rows in the opposite order."""
    made = networks.DecoderStep.rows

    def rows(self: Any, at: Sequence[int] | None = None) -> list[Logits]:
        right = made(self, at)
        place.hits += ["rows"] * int(len(right) > 1)
        return right[::-1]

    place.patch.setattr(networks.DecoderStep, "rows", rows)


@fault(
    it_drafts_nothing=PLAIN,
    its_text_is_not_the_targets=LOSSY,
    it_accepts_no_tree=("corrected",),
    it_drafts_the_known_answer=("nav",),
)
def a_wrong_token_is_accepted(place: Place) -> None:
    """The first last child on the way that the target does not choose is accepted, then what it chooses."""

    def lenient(tree: Any) -> Any:
        path, wrong = [0], 0
        while True:
            choice = yield path[-1]
            children = tree.children(path[-1])
            followed = [child for child in children if tree.token(child) == choice]
            if not wrong and children and tree.token(children[-1]) != choice:
                followed = [wrong := children[-1]]
                place.hits.append("child")
            if not followed:
                return acceptance.Accepted(path, choice)
            path.append(followed[0])

    place.patch.setattr(acceptance, "greedy", lenient)


@fault(it_drafts_nothing=PLAIN, its_text_is_not_the_targets=LOSSY, it_accepts_no_tree=("corrected",))
def another_bonus_token(place: Place) -> None:
    """The token after the accepted path is the next one of the vocabulary."""
    whole = acceptance.greedy

    def wrong(tree: Any) -> Any:
        found = yield from whole(tree)
        place.hits.append("bonus")
        return acceptance.Accepted(found.path, (found.bonus + 1) % 200)

    place.patch.setattr(acceptance, "greedy", wrong)


@fault(its_text_is_not_the_targets=LOSSY)
def the_second_choice_is_taken(place: Place) -> None:
    """A row's most likely token is said to be its second."""

    def second(self: Logits) -> int:
        place.hits.append("choice")
        return self.top_ranks()[0][1]

    for kind in (Logits, LateLogits):
        place.patch.setattr(kind, "choice", property(second))


@fault()
def logits_are_not_numbers(place: Place) -> None:
    """Every logit is NaN."""
    made = Decoder.head

    def head(self: Decoder, x: torch.Tensor) -> torch.Tensor:
        place.hits.append("head")
        return made(self, x) * torch.nan

    place.patch.setattr(Decoder, "head", head)


def swapped(row: tuple[list[int], list[float]]) -> tuple[list[int], list[float]]:
    """A row whose first two tokens changed places."""
    (first, second, *tokens), logps = row
    return [second, first, *tokens], logps


def damage(path: Path) -> int:
    """Exchange the first two tokens of all rows in a cache, with checksums that match."""
    with closing(LogitCache(path)) as memo:
        rows = [(key, _pack(*swapped(_unpack(row)))) for key, row in memo.file.each(WHOLE)]
        memo.file.put(WHOLE, rows, replace=True)
    return len(rows)


@fault(it_runs_no_target=("draft",))
def damaged_rows_of_the_target(place: Place) -> None:
    """The target's cached rows name another token first, and have their checksums."""
    sharded = place.cell.method.alters_target
    place.hits += ["row"] * damage(place.memo("target", "-shards-*" if sharded else "-cpu"))


@fault(it_has_no_draft=(*(name for name in PLAIN if name != "draft"), "nav", "prompt_lookup"))
def damaged_rows_of_the_draft(place: Place) -> None:
    """The draft's cached rows name another token first, and have their checksums."""
    place.hits += ["row"] * damage(place.memo("draft"))


def own_text(cell: GenerationScenario, cache: Path) -> GreedyText:
    """The target's stored text."""
    with closing(cell.target.texts(cache)) as store:
        text = store.get(cell.requests[0].prefix, TOKENS + BEYOND)
    assert text is not None
    return text


@fault()
def a_damaged_own_text(place: Place) -> None:
    """One token of the target's stored text is its second choice, and the text has its checksum."""
    text = own_text(place.cell, place.cache)
    (tokens, logps), at = swapped(text.rows[3].top_ranks()), 3
    text.rows[at] = Logits(None, (tokens, logps))
    text.tokens[at] = tokens[0]
    with closing(TextStore(place.cell.target.texts(place.cache).file.path)) as store:
        store.put([text])
    place.hits.append(TEXTS)


@fault()
def a_stale_pack_of_the_target(place: Place) -> None:
    """A pack of own texts has the target's name and another model's rows."""
    cell = place.cell
    weights = cell.target.decoder()
    weights.ends.embedding.mul_(-1.0)
    try:
        texts = cell.target.compute_texts([cell.requests[0].prefix], TOKENS + BEYOND, lambda done: None)
    finally:
        weights.ends.embedding.mul_(-1.0)
    place.forget()
    place.bring(text_pack("stale", cell.target.outputs_key(), "cpu", texts))


@fault(it_has_no_draft=(*(name for name in PLAIN if name != "draft"), "nav", "prompt_lookup"))
def a_stale_pack_of_the_draft(place: Place) -> None:
    """A pack has the draft's name and rows of another model, whose first two tokens changed places."""
    cell, draft = place.cell, place.cell.draft
    text = own_text(cell, place.cache)
    with closing(LogitCache(place.memo("draft"))) as memo:
        rows = {key: swapped(row) for key, row in memo.read_rows().items()}
    kind = kind_of(draft)
    place.forget()
    place.bring(branch_pack("stale", kind, draft.outputs_key(), "cpu", [text], rows))


@fault(it_prunes_nothing=[name for name in METHODS if name != "lever pruned"])
def damaged_scores_of_an_early_exit(place: Place) -> None:
    """The cached scores of candidates are another predictor's."""
    (path,) = (place.cache / "memo").glob("*-exit*.sqlite")
    with closing(LogitCache(path)) as memo:
        rows = [(key, _unpack(row)) for key, row in memo.file.each("first_ranks")]
        other = [(key, _pack(tokens, scores[::-1])) for key, (tokens, scores) in rows]
        memo.file.put("first_ranks", other, replace=True)
    place.hits += ["score"] * len(rows)


Config = dict[str, Any]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def config(models: Project, method: str) -> Config:
    return cell(models, method)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Caches by method, filled when first asked for by a run without a fault."""
    return tmp_path_factory.mktemp("warm")


@pytest.fixture
def cache(method: str, config: Config, warm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the cache that a method's healthy run left."""
    kept, own = warm / method.replace(" ", "_"), tmp_path / "cache"
    if not kept.exists():
        monkeypatch.setenv("REPRO_CACHE", str(kept))
        assert said_of(config, tmp_path / "healthy") == ""
    shutil.copytree(kept, own)
    monkeypatch.setenv("REPRO_CACHE", str(own))
    return own


def computed(config: Config, out: Path) -> Note:
    """One cell, with results of its own."""
    here = config | {"results": str(out / "results"), "outputs": str(out / "outputs")}
    return Sweep(here, Console(file=io.StringIO())).cell(here)


def said_of(config: Config, out: Path) -> str:
    """The error of a cell's real passes, whose first tokens are compared with what is stored, or its own."""
    passes = RealPasses()
    try:
        passes.compare(GenerationScenario(config))
    except RuntimeError as wrong:
        return f"{type(wrong).__name__}: {wrong}"
    assert passes.rows.total() > 0
    return computed(config, out).error


def test_every_method_is_in_the_table() -> None:
    known = {name for name in METHODS if " " not in name}
    assert known == set(ours("method"))
    assert len(Fault.every) == 14


def rows() -> Iterator[Any]:
    for method in METHODS:
        marks = [pytest.mark.slow] if method in SAME else []
        yield pytest.param(method, marks=marks, id=method)


@pytest.mark.parametrize("method", list(rows()))
def test_a_method_without_a_fault_is_done_from_its_cache(config: Config, cache: Path, tmp_path: Path) -> None:
    note = computed(config, tmp_path)
    assert (note.state, note.error) == ("done", "")
    record = open_results(tmp_path / "results").get(note.key)
    assert record is not None
    assert record.provenance.layers == 0, "its rows were stored, and layers were computed"


def combinations() -> Iterator[Any]:
    """Every fault in every method, of which a third, in turns, is not left to the night."""
    for number, (name, found) in enumerate(Fault.every.items()):
        for turn, method in enumerate(METHODS, number):
            reason = found.reason(method)
            marks = [pytest.mark.skip(f"{name}: {reason}")] if reason else []
            marks += [pytest.mark.slow] if method in SAME or turn % 3 else []
            yield pytest.param(name, method, marks=marks, id=f"{method}, {name}")


@pytest.mark.parametrize(("name", "method"), list(combinations()))
def test_a_fault_is_reported(
    name: str, config: Config, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(monkeypatch, GenerationScenario(config), cache)
    Fault.every[name].happens(place)
    said = said_of(config, tmp_path)
    assert place.hits, "the fault changed nothing"
    assert said.startswith(ERRORS), said
