"""What no single setting shows to be wrong is refused in a sentence that says what to change."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tiny
from repro.core.errors import InputError
from repro.methods.compression.pruning.contextual_sparsity import ContextualSparsity
from repro.methods.compression.pruning.laco import Laco
from repro.methods.compression.pruning.llm_pruner import LLMPruner
from repro.methods.compression.quantization.int8 import W8A8, SmoothQuant
from repro.methods.compression.quantization.per_group import PerGroup
from repro.methods.elastilm.elastic_levels import sizes_at
from repro.methods.mllm_npu.mllm_npu import MllmNpu
from repro.methods.probes.left_out import LeftOut
from repro.methods.serving.service import levels_by
from repro.methods.serving.slo import LatencySlo
from repro.methods.speculative.drafting.verification_tree import VerificationTree
from repro.methods.speculative.specinfer import SpecInfer
from tiny_dense import CORPUS, dense

TEXTS = tuple(tuple(text.tolist()) for text in CORPUS)


@pytest.mark.parametrize(
    ("use", "sentence"),
    [
        (lambda: W8A8().compress(dense("llama-2"), []), "tokens"),
        (lambda: Laco().compress(dense("llama-2"), []), r"corpus\.texts"),
        (lambda: ContextualSparsity().compress(dense("llama-2"), []), r"corpus\.texts"),
        (lambda: SmoothQuant().compress(dense("opt-350m"), CORPUS), "post"),
        (lambda: PerGroup().compress(tiny.decoder("llama-2"), []), "only dense linears"),
        (lambda: Laco(0.5, lowest=2).compress(dense("llama-2"), CORPUS), "lowest is 2, .* choose 0 to 1"),
        (lambda: LLMPruner(spare_first=4).compress(dense("llama-2"), CORPUS), "leave one of them"),
        (lambda: sizes_at(dense("llama-2").config, 0.5, (0, 4)), "of 4"),
        (lambda: LeftOut(4).look(dense("llama-2"), (), TEXTS), "0 to 3"),
        (lambda: MllmNpu(chunks=False), "a prompt without chunks has one order"),
        (lambda: SpecInfer(expansion=()), "number of nodes is 0; it must be a whole number from 1"),
        (lambda: SpecInfer(expansion=(64, 64)), "number of nodes is 4160; .* from 1 to 1024"),
        (lambda: VerificationTree.parse("0;0.0;0.0"), "verification tree"),
        (lambda: VerificationTree.parse("0.0;0"), "verification tree"),
        (lambda: LatencySlo(), "asks nothing"),
        (lambda: LatencySlo(tpot=1.1), "tpot is 1.1"),
        (lambda: levels_by(0.3), "service.step is 0.3"),
    ],
)
def test_what_cannot_work_is_said(use: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        use()
