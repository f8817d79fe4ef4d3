"""Fig. 10(b)'s method: what it times, how it compares, and that it decodes all the same."""

from __future__ import annotations

from repro.methods.base import Request
from repro.methods.ghidorah.tree_attention import TreeAttention, compare_kernels
from repro.methods.ghidorah.tree_kernels import FORMS
from repro.methods.speculative.drafting.head_ranks import Calibration
from repro.models.tokens.prefix import Prefix
from tiny import TableNetwork, here
from tiny_heads import VOCAB, TableHeads, beside

KNOWN = Calibration(((0.5, 0.3), (0.4, 0.2)))


def test_ratios_are_of_kernels_in_the_same_round() -> None:
    """The machine slows down by 10 from round to round; the ratios do not see it."""
    found = compare_kernels([[6.0, 2.0, 4.0], [60.0, 20.0, 30.0], [600.0, 200.0, 500.0]])
    assert found["naive_tree_seconds"] == 60.0
    assert found["optimized_over_naive"] == found["optimized_over_naive_high"] == 3.0
    assert found["optimized_over_dense"] == 2.0
    assert (found["optimized_over_dense_low"], found["optimized_over_dense_high"]) == (1.6, 2.4)


def test_the_same_tree_is_timed_and_decoded_with() -> None:
    device, sessions = beside(TableNetwork(VOCAB), TableHeads(2), 2, here())
    sessions["draft"].beside = KNOWN
    method = TreeAttention(width=4, heads=2, head_dim=8, rounds=3)
    serving = device.play(method.prepare(device, sessions))
    assert serving.figures["tree"] == "0;1;0.0"
    assert serving.figures["tree_pairs"] == 8
    assert {name for name in serving.figures if name.endswith("tree_seconds")} == {
        f"{form}_tree_seconds" for form in FORMS
    }
    request = Request("a", (1, 2, 3), 6)
    for session in sessions.values():
        session.start(Prefix.of(request.prompt))
    written = device.play(serving.serve(request, device, sessions)).tokens
    network, text, own = TableNetwork(VOCAB), Prefix.of(request.prompt), []
    for _ in range(6):
        own.append(int(network.logits(text).argmax()))
        text = text.then(own[-1])
    assert written == own
