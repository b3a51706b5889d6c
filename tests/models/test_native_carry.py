"""The C path compared with the general one: the same logits and weights, the same translations."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heed
from heed.decoding import beam, greedy
from heed.errors import Refused, ShapeError
from heed.kernels import native
from heed.kernels.decoder.native import _step
from heed.models import native_carry
from heed.models.native_carry import NativeCarry
from heed.models.plain_carry import PlainCarry
from heed.models.transformer_settings import TransformerSettings, build, build_decoder
from heed.records import Need
from tests.kernels.levels import LEVELS

pytestmark = pytest.mark.skipif(native.missing() is not None, reason=str(native.missing()))

B, S, SYMBOLS, END = 3, 19, 41, 3
KINDS: list[dict[str, Any]] = [
    {"norm": "pre"},
    {"norm": "post", "activation": "gelu"},
    {"position": "learned", "tied": False},
    {"alignment_layer": 0, "decoder_layers": 3, "norm": "post", "width": 64, "heads": 2},
    {"width": 24, "heads": 8, "feed": 33},
    {"width": 80, "heads": 2, "feed": 7, "activation": "gelu-tanh"},
]


def network(std: float = 0.3, **choices: Any) -> Any:
    """Random throughout: with biases of zero, swapped ones would not show."""
    settings = TransformerSettings(**{"width": 16, "feed": 32, "heads": 4} | choices)
    net = build(settings, source=SYMBOLS, target=SYMBOLS, shared=True, longest=S).eval()
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=std)
    return net


def exactly(net: Any, **choices: Any) -> Any:
    """The same in float64."""
    twin = network(**choices).double()
    twin.load_state_dict(net.state_dict())
    return twin


def texts() -> tuple[Tensor, Tensor]:
    return torch.randint(4, SYMBOLS, (B, S)), torch.tensor([S, 1, 7])


def choices_of_rows() -> list[Any]:
    """Beams that reorder, sentences that finish, random rows, and steps without a selection."""
    beams = torch.arange(B).repeat_interleave(3)
    choices: list[Any] = [(None, False), (beams.tolist(), False)]
    for _ in range(6):
        chosen = torch.randint(0, 3, (B, 3)) + 3 * torch.arange(B)[:, None]
        choices.append((chosen.flatten().tolist(), True))
    choices += [([6, 8, 7, 0, 0, 1], False), ([1, 1, 0, 4, 5, 3], True), (None, False)]
    return [*choices, ([5, 0, 2, 2, 2, 1, 4], False), ([6, 0], False), ([1], False), (None, False)]


def agree(net: Any, carry: Any, exact: Any, general: Any) -> None:
    """Select rows and step, repeatedly, on both paths."""
    assert isinstance(carry, NativeCarry)
    N = B
    for rows, same in choices_of_rows():
        if rows is not None:
            rows = torch.tensor(rows)
            carry, general = net.select(carry, rows, same), exact.select(general, rows, same)
            N = len(rows)
        symbols = torch.randint(4, SYMBOLS, (N,))
        step, wanted = net.step(carry, symbols), exact.step(general, symbols)
        error = (step.logits - wanted.logits).abs().max() / wanted.logits.abs().max()
        assert error < 20 * torch.finfo(torch.float32).eps
        assert (step.weight is None) == (wanted.weight is None)
        if step.weight is not None:
            torch.testing.assert_close(step.weight.double(), wanted.weight, rtol=0, atol=2e-6)
        carry, general = step.carry, wanted.carry


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("need", ["context", "weight"])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@torch.no_grad()
def test_the_c_path_agrees_with_the_general_one(
    kind: dict[str, Any], padded: bool, need: Need, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_level = native.Function("heed_decoder_step", _step.layout, at=level)
    monkeypatch.setattr("heed.kernels.decoder.native._step", at_level)
    net, (source, lengths) = network(**kind), texts()
    lengths = lengths if padded else torch.full_like(lengths, S)
    exact = exactly(net, **kind)
    carry = net.begin(source, lengths, need)
    with torch.enable_grad():
        general = exact.begin(source, lengths, need)
    assert not isinstance(general, PlainCarry | NativeCarry)
    agree(net, carry, exact, general)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("width", [16, 512])
@torch.no_grad()
def test_no_text_is_written_further(width: int, threads: int) -> None:
    net, before = network(width=width, alignment_layer=0), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        carry = net.begin(*(x[:0] for x in texts()), "weight")
        assert isinstance(carry, NativeCarry)
        for _ in range(2):
            step = net.step(carry, torch.empty(0, dtype=torch.int64))
            carry = net.select(step.carry, torch.empty(0, dtype=torch.int64))
            found = step.likeliest(2, END, torch.empty(0, dtype=torch.int64))
            assert step.logits.shape == (0, SYMBOLS)
            assert step.weight.shape == (0, S)
            assert found.symbol.shape == (0, 2)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@torch.no_grad()
def test_large_weights_are_read_without_packing(
    kind: dict[str, Any], level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_level = native.Function("heed_decoder_step", _step.layout, at=level)
    monkeypatch.setattr("heed.kernels.decoder.native._step", at_level)
    monkeypatch.setattr(native_carry, "LARGE", 0)
    net, (source, lengths) = network(**kind), texts()
    carry = net.begin(source, lengths, "weight")
    assert carry.output.data.data_ptr() == _output(net).data_ptr()
    exact = exactly(net, **kind)
    with torch.enable_grad():
        general = exact.begin(source, lengths, "weight")
    agree(net, carry, exact, general)
    monkeypatch.setattr(native_carry, "MANY", B - 1)
    assert isinstance(net.begin(source, lengths), PlainCarry)  # PyTorch is faster here


def _output(net: Any) -> Tensor:
    out = net.decoder.output
    return net.decoder.words.table.weight if out is None else out.weight


@pytest.mark.parametrize("large", [0, native_carry.LARGE])
@torch.no_grad()
def test_sharing_every_map_among_workers_changes_no_bit(
    large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With so many weights that several threads share each layer."""
    monkeypatch.setattr(native_carry, "LARGE", large)
    settings = TransformerSettings(width=400, feed=900, heads=4, decoder_layers=1)
    net = build_decoder(settings, symbols=SYMBOLS, longest=S).eval()
    prompt, found, before = torch.randint(4, SYMBOLS, (B, 5)), [], torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        carry = net.begin(prompt)
        assert isinstance(carry, NativeCarry)
        found.append(net.step(carry, prompt[:, 0]).logits)
    torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    torch.testing.assert_close(found[0], net(torch.cat([prompt, prompt[:, :1]], 1)).logits[:, -1])


@torch.no_grad()
def test_a_language_model_continues_after_its_prompt() -> None:
    settings = TransformerSettings(width=16, feed=32, heads=4, decoder_layers=2)
    models = [build_decoder(settings, symbols=SYMBOLS, longest=S).eval() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    net, exact = models[0], models[1].double()
    for length in (0, 3, 8):
        prompt = torch.randint(4, SYMBOLS, (B, length))
        with torch.enable_grad():
            general = exact.begin(prompt)
        agree(net, net.begin(prompt), exact, general)


@torch.no_grad()
def test_hidden_symbols_change_no_bit() -> None:
    net, (source, lengths) = network(), texts()
    symbols, found = torch.tensor([4, 5, 6]), []
    for beyond in (4, 9):
        source = source.masked_fill(torch.arange(S) >= lengths[:, None], beyond)
        step = net.step(net.begin(source, lengths, "weight"), symbols)
        found.append((step.logits, step.weight))
    assert all(map(torch.equal, *found))


@torch.no_grad()
def test_a_carry_may_be_used_again() -> None:
    net, (source, lengths) = network(), texts()
    text = torch.randint(4, SYMBOLS, (B, 4))
    carry = net.step(net.begin(source, lengths), text[:, 0]).carry
    first, other = net.step(carry, text[:, 1]), net.step(carry, text[:, 2])
    for step, written in ((first, [0, 1, 3]), (other, [0, 2, 3])):
        at_once = net(source, lengths, text[:, written]).logits
        torch.testing.assert_close(step.logits, at_once[:, 1], rtol=1e-4, atol=1e-5)
        again = net.step(step.carry, text[:, 3])
        torch.testing.assert_close(again.logits, at_once[:, 2], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_rows_without_descendants_are_freed() -> None:
    net, (source, lengths) = network(), texts()
    carry = net.select(net.begin(source, lengths), torch.arange(B).repeat_interleave(4))
    for _ in range(6):
        carry = net.step(carry, torch.full((4 * B,), 5)).carry
    left = net.select(carry, torch.tensor([2, 1]))
    assert [len(past) for past in carry.pasts] == [12] * 6
    assert [len(past) for past in left.pasts] == [2] * 6
    symbols = torch.tensor([7, 8])
    rows = torch.zeros(12, dtype=torch.long)
    rows[[2, 1]] = symbols
    whole = net.step(carry, rows).logits[[2, 1]]
    assert torch.equal(net.step(left, symbols).logits, whole)


@pytest.mark.parametrize("times", [1, 4], ids=["maps are shared", "hypotheses are shared"])
@torch.no_grad()
def test_a_hypothesis_gets_the_same_bits_alone_and_in_a_batch(times: int) -> None:
    net, (source, lengths) = network(), texts()
    symbols, before, found = torch.tensor([4, 5, 6] * times), torch.get_num_threads(), []
    carry = net.begin(source.repeat(times, 1), lengths.repeat(times), "weight")
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        step = net.step(net.step(carry, symbols).carry, symbols)
        found.append((step.logits, step.weight))
    torch.set_num_threads(before)
    assert all(map(torch.equal, found[0], found[1]))
    assert all(map(torch.equal, found[0], found[2]))
    for row in range(B):
        alone = net.select(carry, torch.tensor([row]))
        step = net.step(net.step(alone, symbols[row : row + 1]).carry, symbols[row : row + 1])
        assert torch.equal(step.logits[0], found[0][0][row])
        assert torch.equal(step.weight[0], found[0][1][row])


def searched(net: Any, source: Tensor, lengths: Tensor, **how: Any) -> list[Any]:
    carry = net.begin(source, lengths, "weight")
    common = {"begin": 2, "end": END, "forbid": (0, 1, 2), "lengths": lengths} | how
    found = beam(net, carry, len(source), longest=12, width=4, best=3, **common)
    return found + [[x] for x in greedy(net, carry, len(source), longest=lengths, **common)]


@torch.no_grad()
def test_searches_find_the_same_as_on_the_general_path() -> None:
    for kind in KINDS:
        net, (source, lengths) = network(**kind), texts()
        roads = [searched(net, source, lengths)]
        with heed.kernels.off("decoder"):
            assert isinstance(net.begin(source, lengths), PlainCarry)
            roads.append(searched(net, source, lengths))
        for ours, others in zip(*roads, strict=True):
            for one, two in zip(ours, others, strict=True):
                assert one.score == pytest.approx(two.score, rel=1e-5)
            if kind.get("norm") == "post":  # at random it repeats a word: hypotheses all but tie
                continue
            assert [x.symbols for x in ours] == [x.symbols for x in others]
            for one, two in zip(ours, others, strict=True):
                torch.testing.assert_close(one.weight, two.weight, rtol=0, atol=1e-5)


@torch.no_grad()
def test_ties_are_ranked_as_on_the_general_path() -> None:
    net, (source, lengths) = network(), texts()
    table = net.decoder.words.table.weight
    table[20:] = table[4:20].repeat(2, 1)[: SYMBOLS - 20]  # every symbol has a duplicate
    found = searched(net, source, lengths)
    assert all(symbol < 20 for each in found[:B] for symbol in each[0].symbols)
    with heed.kernels.off("decoder"):
        general = searched(net, source, lengths)
    for ours, others in zip(found, general, strict=True):
        assert [x.symbols for x in ours] == [x.symbols for x in others]


@torch.no_grad()
def test_a_sentence_is_translated_the_same_alone_and_in_a_batch() -> None:
    net, (source, lengths) = network(), texts()
    together = searched(net, source, lengths)
    for row in range(B):
        end = int(lengths[row])
        alone = searched(net, source[row : row + 1, :end], lengths[row : row + 1])
        assert [x.symbols for x in alone[0]] == [x.symbols for x in together[row]]


@torch.no_grad()
def test_new_weights_are_used_at_once() -> None:
    net, (source, lengths) = network(), texts()
    symbols = torch.tensor([4, 5, 6])
    before = net.step(net.begin(source, lengths), symbols).logits
    for parameter in net.decoder.parameters():
        parameter.data.mul_(0.9)  # no version counter sees this
    after = net.step(net.begin(source, lengths), symbols).logits
    wanted = net(source, lengths, symbols[:, None]).logits[:, 0]
    torch.testing.assert_close(after, wanted, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(before, after)


@torch.no_grad()
def test_without_the_library_pytorch_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    net, (source, lengths) = network(), texts()
    step = net.step(net.begin(source, lengths), source[:, 0])
    with monkeypatch.context() as patch:
        patch.setattr(native, "LIBRARY", Path("nowhere.so"))
        native._loaded.cache_clear()
        other = net.step(net.begin(source, lengths), source[:, 0])
    native._loaded.cache_clear()
    assert isinstance(step.carry, NativeCarry)
    assert isinstance(other.carry, PlainCarry)
    torch.testing.assert_close(step.logits, other.logits, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_symbols_outside_the_table_are_refused() -> None:
    net, (source, lengths) = network(), texts()
    for symbol in (-1, SYMBOLS):
        with pytest.raises(IndexError, match="0 to 40"):
            net.step(net.begin(source, lengths), torch.tensor([4, symbol, 5]))


@torch.no_grad()
def test_only_float32_on_the_cpu_takes_the_c_path() -> None:
    source, lengths = texts()
    assert isinstance(network().begin(source, lengths), NativeCarry)
    assert isinstance(network().double().begin(source, lengths), PlainCarry)
    assert not isinstance(network(position="rotary").begin(source, lengths), NativeCarry)


@torch.no_grad()
def test_symbols_of_a_wrong_dtype_or_number_are_refused() -> None:
    net, (source, lengths) = network(), texts()
    carry = net.select(net.begin(source, lengths), torch.arange(B).repeat_interleave(2))
    symbols = torch.tensor([4, 5, 6, 7, 8, 9])
    wanted = net.step(carry, symbols).logits
    assert torch.equal(net.step(carry, symbols.int()).logits, wanted)
    assert torch.equal(net.step(carry, symbols.repeat_interleave(2)[::2]).logits, wanted)
    for wrong in (symbols[:1], symbols.repeat(2), symbols[:, None], symbols[0]):
        with pytest.raises(ShapeError, match="6 hypotheses"):
            net.step(carry, wrong)
    with pytest.raises(Refused, match="float32"):
        net.step(carry, symbols.float())


@pytest.mark.parametrize("kind", KINDS[:3], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@torch.no_grad()
def test_the_default_dtype_does_not_matter(dtype: torch.dtype, kind: dict[str, Any]) -> None:
    net, (source, lengths) = network(**kind), texts()
    table, found = net.decoder.words.table.weight, []
    for default in (torch.float32, dtype):
        table.data = table.data.clone()  # so that it is packed again
        torch.set_default_dtype(default)
        try:
            begun = net.begin(source, lengths, "weight")
            step = net.step(net.step(begun, source[:, 0]).carry, source[:, 1])
            found.append((step.logits, step.weight))
        finally:
            torch.set_default_dtype(torch.float32)
        assert isinstance(begun, NativeCarry)
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_table_that_is_part_of_a_wider_one_is_read_by_its_rows() -> None:
    net, (source, lengths) = network(), texts()
    wanted = net.step(net.begin(source, lengths), source[:, 0]).logits
    table = net.decoder.words.table.weight
    table.data = torch.cat([table.data, torch.randn_like(table)], 1)[:, : table.shape[1]]
    assert not table.is_contiguous()
    found = net.step(net.begin(source, lengths), source[:, 0]).logits
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_modified_part_prevents_the_fast_path() -> None:
    source, lengths = texts()

    def short(net: Any) -> bool:
        return isinstance(net.begin(source, lengths), PlainCarry | NativeCarry)

    net = network(dropout=0.5)
    assert short(net)
    net.decoder.stack.layers[0].feed[2].train()
    assert not short(net)
    net = network()
    linear = net.decoder.stack.layers[0].feed[0]
    linear.forward = lambda x: nn.Linear.forward(linear, x) * 2
    assert not short(net)
    net = network()
    hooks = nn.modules.module
    for register in (
        hooks.register_module_forward_hook,
        hooks.register_module_forward_pre_hook,
    ):
        handle = register(lambda *_: None)
        try:
            assert not short(net)
        finally:
            handle.remove()
        assert short(net)
