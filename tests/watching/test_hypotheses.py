"""Following the texts that a search writes: what each one saw, in every model that generates."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heed
from heed.decoding import beam, greedy, sample
from heed.decoding.sliding import Sliding
from heed.decoding.stepper import Hypothesis
from heed.errors import Refused
from heed.models.recurrent_settings import RecurrentSettings
from heed.models.recurrent_settings import build as build_recurrent
from heed.models.transformer_settings import TransformerSettings, build_decoder
from heed.models.transformer_settings import build as build_transformer
from heed.models.xlnet_settings import XLNetSettings
from heed.models.xlnet_settings import build as build_xlnet
from heed.records import Summary

SYMBOLS, B, S, SHARPER = 13, 3, 6, 2.5
SOURCE = torch.tensor([[5, 7, 4, 9, 11, 3], [6, 8, 3, 0, 0, 0], [12, 4, 4, 10, 3, 0]])
LENGTHS = torch.tensor([6, 3, 5])
RULES: dict[str, Any] = {
    "begin": 2,
    "end": 3,
    "longest": torch.tensor([7, 4, 6]),
    "lengths": LENGTHS,
}
CROSS = "decoder.stack.layers.0.cross"
SELF = "decoder.stack.layers.1.attention"


def transformer(**choices: Any) -> nn.Module:
    small = {"encoder_layers": 1, "decoder_layers": 2, "width": 12, "feed": 16, "heads": 2}
    settings = TransformerSettings(**{**small, **choices})
    net = build_transformer(settings, source=SYMBOLS, target=SYMBOLS, shared=True, longest=S)
    return livened(net)


def recurrent(**choices: Any) -> nn.Module:
    small = {"embedding": 8, "hidden": 10, "layers": 1}
    settings = RecurrentSettings(**{**small, **choices})
    net = build_recurrent(settings, source=SYMBOLS, target=SYMBOLS, shared=True, longest=S)
    return livened(net)


def livened(net: nn.Module) -> nn.Module:
    """Untrained networks ignore their input; this one does not."""
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(SHARPER)
    return net.double().eval()


def searched(net: Any, width: int = 3) -> list[list[Hypothesis]]:
    carry = net.begin(SOURCE, LENGTHS, need="weight")
    return beam(net, carry, B, width=width, best=2, length_penalty=0.6, **RULES)


def survivors(found: list[list[Hypothesis]]) -> list[tuple[int, Hypothesis]]:
    return [(b, one) for b, each in enumerate(found) for one in each if one.symbols]


def teacher(hypothesis: Hypothesis) -> Tensor:
    return torch.tensor([[2, *hypothesis.symbols[:-1]]])


TRANSFORMERS = [
    {},
    {"cross_attention": "monotonic/additive"},
    {"cross_attention": "coverage/additive", "decoder_attention": "local-m/dot"},
    {"cross_attention": "mixed", "decoder_attention": "1*additive + 1*scaled-dot"},
    {
        "cross_attention": "sparsemax",
        "decoder_attention": "relative",
        "encoder_attention": "cosine",
    },
]
RECURRENT = [
    {},
    {"attention": "coverage/additive"},
    {"decoder": "luong", "attention": "local-p/general", "input_feeding": False},
    {"decoder": "luong", "attention": "monotonic/general"},
]


@pytest.mark.parametrize("choices", TRANSFORMERS)
def test_beam_search_of_a_transformer_is_followed(choices: dict[str, Any]) -> None:
    net: Any = transformer(alignment_layer=0, **choices)
    plain = searched(net)
    with heed.watch(net) as seen:
        found = searched(net)
    pairs = survivors(found)
    assert [[x.symbols for x in each] for each in found] == [
        [x.symbols for x in each] for each in plain
    ]
    assert len({len(one.symbols) for _, one in pairs}) > 1
    for b, one in pairs:
        looked = seen.follow(one)
        n, own = len(one.symbols), int(LENGTHS[b])
        assert set(looked) == {path for path in seen if path.startswith("decoder")}
        torch.testing.assert_close(looked[CROSS].weight[0, :, :, :own].mean(0), one.weight)
        whole = net(SOURCE[b : b + 1, :own], LENGTHS[b : b + 1], teacher(one), need="weight").seen
        assert looked[SELF].weight.shape == (1, 2, n, n)
        torch.testing.assert_close(looked[SELF].weight, whole["decoder.1.self"].weight)
        torch.testing.assert_close(looked[CROSS].weight[..., :own], whole["decoder.0.cross"].weight)
        source = seen["encoder.stack.layers.0.attention"][0].weight[one.rows[0], None]
        torch.testing.assert_close(source[..., :own, :own], whole["encoder.0.self"].weight)


@pytest.mark.parametrize("choices", RECURRENT)
def test_beam_search_of_a_recurrent_network_is_followed(choices: dict[str, Any]) -> None:
    net: Any = recurrent(**choices)
    with heed.watch(net) as seen:
        found = searched(net)
    assert survivors(found)
    for b, one in survivors(found):
        looked = seen.follow(one)["decoder.attention"]
        torch.testing.assert_close(looked.weight[0, 0, :, : int(LENGTHS[b])], one.weight)


@pytest.mark.parametrize("choices", TRANSFORMERS[:3])
def test_statistics_are_followed_if_hypotheses_are_queries_of_one_memory(
    choices: dict[str, Any],
) -> None:
    net: Any = transformer(**choices)
    with heed.watch(net) as seen:
        found = searched(net)
    with heed.watch(net, statistics=Summary(top=2, map=(2, 2))) as said:
        assert [x[0].symbols for x in searched(net)] == [x[0].symbols for x in found]
    folded = [record.statistics.mass.shape for record in said[CROSS]]
    if not choices:
        assert (B, 2, 3) in folded  # three hypotheses became three queries of one memory
    for _, one in survivors(found):
        want, got = seen.follow(one), said.follow(one)
        for path in (SELF, CROSS):
            weight, told = want[path].weight, got[path].statistics
            mass = weight.sum(-1)
            share = weight / mass[..., None].clamp(min=1e-30)
            torch.testing.assert_close(told.mass, mass)
            torch.testing.assert_close(told.peak, share.amax(-1))
            torch.testing.assert_close(told.received, weight.sum(2))
            assert told.top is not None
            assert told.top.shape[:3] == told.mass.shape


def test_rows_are_kept_for_whole_passes_and_all_steps() -> None:
    net: Any = transformer(alignment_layer=0)
    with heed.watch(net, rows=[1], modules=[CROSS, "encoder.*"]) as seen:
        found = searched(net)
    for b, one in survivors(found):
        looked = seen.follow(one)
        torch.testing.assert_close(
            looked[CROSS].weight[0, :, :, : int(LENGTHS[b])].mean(0), one.weight
        )
    assert seen["encoder.stack.layers.0.attention"][0].weight.shape == (B, 2, 1, S)


@pytest.mark.parametrize("search", ["greedy", "sample"])
def test_other_searches_are_followed(search: str) -> None:
    net: Any = transformer(alignment_layer=0)
    with heed.watch(net, modules="*.cross") as seen:
        carry = net.begin(SOURCE, LENGTHS, need="weight")
        if search == "greedy":
            found = greedy(net, carry, B, **RULES)
        else:
            twice = torch.arange(B).repeat_interleave(2)
            rules = {**RULES, "lengths": LENGTHS[twice], "longest": 6}
            backwards = torch.arange(2 * B - 1, -1, -1)
            carry = net.select(net.select(carry, twice), backwards)
            rules["lengths"] = rules["lengths"].flip(0)
            found = sample(net, carry, 2 * B, seeds=range(2 * B), **rules)
    for i, one in enumerate(found):
        b = i if search == "greedy" else (2 * B - 1 - i) // 2
        if one.symbols:
            looked = seen.follow(one)[CROSS].weight[0, :, :, : int(LENGTHS[b])]
            torch.testing.assert_close(looked.mean(0), one.weight)


def test_fast_paths_are_not_used_while_watching() -> None:
    """Neither in C nor in Python; afterwards they are used again and give the same results."""
    net: Any = transformer().float()
    with torch.no_grad():
        short = net.begin(SOURCE, LENGTHS)
        with heed.watch(net, statistics=True):
            general = net.begin(SOURCE, LENGTHS)
            during = searched(net)
        with heed.watch(net, modules="encoder.*"):
            assert type(net.begin(SOURCE, LENGTHS)) is type(short)
        after = searched(net)
    assert type(short) is not type(general)
    for one, two in zip(survivors(during), survivors(after), strict=True):
        assert one[1].symbols == two[1].symbols
        assert one[1].log_prob == pytest.approx(two[1].log_prob, rel=1e-5)


def test_each_hypothesis_knows_its_rows() -> None:
    """Those in which its weights and its symbols stand, in what the model was given."""
    net: Any = recurrent()
    given: list[list[int]] = []

    class Noting:
        def step(self, carry: Any, symbols: Tensor) -> Any:
            given.append(symbols.tolist())
            return net.step(carry, symbols)

        select = staticmethod(net.select)

    found = beam(Noting(), net.begin(SOURCE, LENGTHS), B, width=3, best=2, **RULES)
    for b, one in survivors(found):
        assert one.rows[0] == b
        read = [given[t][row] for t, row in enumerate(one.rows)]
        assert read == [2, *one.symbols[:-1]]
    for one in greedy(net, net.begin(SOURCE, LENGTHS), B, **RULES):
        assert len(one.rows) == len(one.symbols)


def test_what_a_prompt_saw_is_a_record_of_its_own() -> None:
    settings = TransformerSettings(decoder_layers=2, width=12, feed=16, heads=2)
    net: Any = livened(build_decoder(settings, symbols=SYMBOLS, longest=16))
    prompt, path = torch.tensor([[5, 6, 7], [8, 4, 9]]), "stack.layers.1.attention"
    rules = {"begin": torch.tensor([10, 11]), "end": 3, "longest": 5, "cut": True}
    with torch.no_grad(), heed.watch(net) as seen:
        found = beam(net, net.begin(prompt), 2, width=2, **rules)
    for b, (one,) in enumerate(found):
        text = torch.cat([prompt[b], rules["begin"][b : b + 1], torch.tensor(one.symbols[:-1])])
        whole = net(text[None], need="weight").seen["1.self"].weight
        torch.testing.assert_close(seen.follow(one)[path].weight, whole[:, :, 3:])
        torch.testing.assert_close(seen[path][0].weight[b], whole[0, :, :3, :3])


def test_xlnet_is_followed_in_each_of_two_searches() -> None:
    small = {"layers": 2, "width": 12, "feed": 16, "heads": 2, "symbols": SYMBOLS}
    net: Any = livened(build_xlnet(XLNetSettings(**small, head="language")))
    prompt = torch.tensor([[5, 6, 7], [8, 4, 9]])
    rules = {"begin": torch.tensor([10, 11]), "end": 3, "longest": 4, "cut": True}
    with torch.no_grad(), heed.watch(net) as seen:
        found = beam(net, net.begin(prompt), 2, width=2, **rules)
        alone = net.begin(prompt[1:])
        (again,) = beam(net, alone, 1, width=2, **{**rules, "begin": torch.tensor([11])})
    assert again[0].symbols == found[1][0].symbols
    one, two = seen.follow(found[1][0], text=0), seen.follow(again[0])
    assert set(one) == set(seen)
    for path in one:
        torch.testing.assert_close(one[path].weight, two[path].weight)


def test_a_text_that_slides_is_read_again_outside_of_its_steps() -> None:
    settings = TransformerSettings(
        decoder_layers=1, width=12, feed=16, heads=2, position="learned", longest=6
    )
    net: Any = livened(build_decoder(settings, symbols=SYMBOLS, longest=6))
    sliding = Sliding(net, 6, "cpu")
    with torch.no_grad(), heed.watch(net) as seen:
        net.words.table.weight[0] = 0  # so that the end is never the likeliest
        (found,) = greedy(
            sliding, sliding.begin([[5, 6, 7]]), 1, begin=8, end=0, longest=9, cut=True
        )
    records = seen["stack.layers.0.attention"]
    assert sum(when is None for when in records.when) > 1  # the prompt, and what was read again
    assert seen.follow(found)["stack.layers.0.attention"].weight.shape[2] == 9


def test_a_text_begun_before_the_watch_is_refused() -> None:
    """It may run on a fast path, where nothing is recorded."""
    net: Any = transformer().float()
    with torch.no_grad():
        carry = net.begin(SOURCE, LENGTHS)
        with heed.watch(net) as seen:
            found = greedy(net, carry, B, **RULES)
    with pytest.raises(Refused, match="begin its text inside"):
        seen.follow(next(one for one in found if one.symbols))


def test_a_text_that_was_never_written_cannot_be_followed() -> None:
    net: Any = transformer()
    with heed.watch(net) as seen:
        net(SOURCE, LENGTHS, SOURCE)
    with pytest.raises(Refused, match="no search of heed was watched"):
        seen.follow([0, 0])
    with heed.watch(net) as seen:
        found = searched(net)
    one = survivors(found)[-1][1]
    with pytest.raises(Refused, match="no hypothesis of this search"):
        seen.follow([0, 99])
    with pytest.raises(Refused, match="no hypothesis of this search"):
        seen.follow(one._replace(symbols=[(x + 1) % SYMBOLS for x in one.symbols]))
    with pytest.raises(Refused, match="no hypothesis of this search"):
        seen.follow([(one.rows[0] + 1) % B, *one.rows[1:]])
    with pytest.raises(Refused, match="steps were watched"):
        seen.follow([0] * 50)
    with pytest.raises(Refused, match="there is no text 7"):
        seen.follow(one, text=7)


def test_watching_replaces_no_method() -> None:
    net: Any = transformer()
    before = {name: dict(vars(module)) for name, module in net.named_modules()}
    with heed.watch(net), heed.watch(net.decoder):
        assert {name: list(vars(m)) for name, m in net.named_modules()} == {
            name: list(kept) for name, kept in before.items()
        }


def test_steps_taken_by_hand_are_calls() -> None:
    net: Any = transformer()
    with torch.no_grad(), heed.watch(net) as seen:
        carry = net.begin(SOURCE, LENGTHS)
        for symbol in (4, 5):
            carry = net.step(carry, torch.full((B,), symbol)).carry
    assert not seen.texts
    looked = seen.follow([1, 1])[CROSS].weight
    whole = net(SOURCE, LENGTHS, torch.tensor([[4, 5]] * B), need="weight")
    torch.testing.assert_close(looked[0], whole.seen["decoder.0.cross"].weight[1])


def test_rows_of_calls_follow_their_ancestors() -> None:
    attend = heed.Attention("dot", query=4)
    x = torch.randn(3, 4, 4)
    with heed.watch(attend) as seen:
        memory = attend.remember(x[:, :2])
        attend(x[:, :2], memory, visible=heed.causal())
        for t in (2, 3):
            memory = memory.extend(x[:, t : t + 1])
            attend(x[:, t : t + 1], memory)
    got = seen.follow([1, 1, 1])[""].weight
    want = attend(x[1:2], visible=heed.causal(), need="weight").weight
    torch.testing.assert_close(got, want)
    mixed = seen.follow([0, 0, 2])[""].weight
    torch.testing.assert_close(mixed[0, 0, 3], seen[""][2].weight[2, 0, 0])
    assert seen.follow([0, 0, -1])[""].weight.shape == (1, 1, 3, 3)
    for wrong in ([0] * 4, [], [0, 0, 3]):
        with pytest.raises(Refused):
            seen.follow(wrong)
