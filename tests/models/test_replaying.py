"""Replayed steps equal the decoder's own: from a CUDA graph on a GPU, from a recording on a CPU."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from heed.decoding import beam, greedy, sample
from heed.decoding.sliding import Sliding, padded
from heed.errors import HeedError, Refused
from heed.models import replaying
from heed.models.replaying import PATIENCE, ReplayedCarry, Replaying, replayed
from heed.models.text_settings import GPT2Settings, build
from heed.models.transformer import Decoder

V = 23
PROMPTS = [[5, 6, 7, 8], [9], [], [10, 11, 4]]
SEARCHES = ((greedy, {}), (sample, {"seeds": [1, 2, 3, 4]}), (beam, {"width": 3}))


class Tape(TorchDispatchMode):
    """Imitates a CUDA graph: operations on the recorded tensors, without Python."""

    def __init__(self) -> None:
        super().__init__()
        self.played: list[tuple[Any, ...]] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        output = operation(*args, **(kwargs or {}))
        assert isinstance(output, Tensor), f"{operation} tells the host something"
        self.played.append((operation, args, kwargs or {}, output))
        return output

    def play(self) -> None:
        for operation, args, kwargs, output in self.played:
            found = operation(*args, **kwargs)
            if found.data_ptr() != output.data_ptr():  # neither a view nor in place
                output.copy_(found)


class Stand:
    """Replaces a Studio without a GPU."""

    recordings = 0

    def rehearse(self, work: Callable[[], Tensor]) -> Tensor:
        return work()

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        Stand.recordings += 1
        with Tape() as tape:
            output = work()  # runs during recording, which stands for the first replay
        rounds = iter((lambda: None,))

        def replay() -> Tensor:
            next(rounds, tape.play)()
            return output

        return replay


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record after two rounds, and make room in small pieces."""
    monkeypatch.setattr(replaying, "PATIENCE", 2)
    monkeypatch.setattr(replaying, "ROOM", 8)
    monkeypatch.setattr(Stand, "recordings", 0)
    if torch.get_default_device().type == "cpu":
        monkeypatch.setattr(replaying, "studio_of", lambda device: Stand())


@pytest.fixture
def decoder() -> Decoder:
    settings = GPT2Settings(layers=3, width=24, heads=3, symbols=V, longest=20, initial=0.3)
    network = build(settings).double().eval()  # float64 excludes every other fast path
    assert isinstance(network, Decoder)
    return network


def recorded() -> bool:
    return Stand.recordings > 0 or torch.get_default_device().type != "cpu"


@torch.inference_mode()
@pytest.mark.parametrize("mixed", [False, True])
def test_steps_equal_the_decoders(decoder: Decoder, mixed: bool) -> None:
    """Whichever rows continue, although room was requested for two symbols only."""
    texts = PROMPTS if mixed else [[5, 6], [7, 8], [9, 4]]
    device = torch.get_default_device()
    inputs, first = padded(texts, device)
    model = Replaying(decoder, 2)
    chosen = {5: [2, 0], 9: [1, 1, 0], 10: [0, 1, 2, 1, 0]}
    for _ in range(2):  # again with what the first pass left behind
        ours, plain = model.begin(inputs, first=first), decoder.begin(inputs, first=first)
        N = len(inputs)
        for t in range(14):
            if t in chosen:
                rows, N = torch.tensor(chosen[t]), len(chosen[t])
                ours, plain = model.select(ours, rows), decoder.select(plain, rows)
            symbols = torch.randint(4, V, (N,))
            found, wanted = model.step(ours, symbols), decoder.step(plain, symbols)
            torch.testing.assert_close(found.logits, wanted.logits, rtol=1e-9, atol=1e-9)
            ours, plain = found.carry, wanted.carry
        for own in ours.held.caches:
            own.k.fill_(torch.nan)
            own.v.fill_(torch.nan)
    assert recorded()


@torch.inference_mode()
def test_searches_find_the_same(decoder: Decoder) -> None:
    device = torch.get_default_device()
    inputs, first = padded(PROMPTS, device)
    rules: dict[str, Any] = {"begin": torch.tensor([3, 4, 5, 6]), "end": 1, "longest": 14}
    rules |= {"device": device, "cut": True}
    model = Replaying(decoder, 14)
    for search, how in SEARCHES:
        wanted = search(decoder, decoder.begin(inputs, first=first), 4, **rules, **how)
        for _ in range(2):
            found = search(model, model.begin(inputs, first=first), 4, **rules, **how)
            assert symbols_of(found) == symbols_of(wanted)
    assert recorded()


@torch.inference_mode()
def test_beyond_its_positions_it_slides(decoder: Decoder) -> None:
    device = torch.get_default_device()
    rules = {"begin": torch.tensor([3, 4, 5, 6]), "end": 1, "longest": 40, "device": device}
    for search, how in SEARCHES:
        found = []
        for model in (decoder, Replaying(decoder, 40)):
            sliding = Sliding(model, 20, device)
            found.append(symbols_of(search(sliding, sliding.begin(PROMPTS), 4, **rules, **how)))
        assert found[0] == found[1]
    assert recorded()


def symbols_of(found: list[Any]) -> list[Any]:
    """Of hypotheses, one or several per sentence."""
    return [symbols_of(h) if isinstance(h, list) else h.symbols for h in found]


@torch.inference_mode()
def test_only_the_last_carry_can_continue(decoder: Decoder) -> None:
    model, symbols = Replaying(decoder), torch.tensor([3, 3])
    first = model.begin(torch.full((2, 4), 5))
    second = model.step(first, symbols).carry
    third = model.select(second, torch.tensor([1, 0]))
    for stale in (first, second):
        with pytest.raises(HeedError, match="only the last carry"):
            model.step(stale, symbols)
    model.begin(torch.full((2, 4), 5))
    with pytest.raises(HeedError, match="only the last carry"):
        model.select(third, symbols)
    full = model.begin(torch.full((1, 20), 5))
    with pytest.raises(Refused, match="there are 20 positions, and all are used"):
        model.step(full, torch.tensor([3]))


@torch.inference_mode()
def test_nothing_outlives_its_texts(decoder: Decoder) -> None:
    """Without waiting for the garbage collector: tables and graphs are large."""
    model = Replaying(decoder)
    carry = model.begin(torch.full((2, 4), 5))
    for _ in range(4):
        carry = model.step(carry, torch.tensor([3, 3])).carry
    assert isinstance(carry, ReplayedCarry)
    table = weakref.ref(carry.held.caches[0])
    del carry
    assert table() is not None
    model.begin(torch.full((3, 4), 5))  # more texts need other tables
    assert table() is None


@torch.inference_mode()
def test_other_paths_are_taken_unchanged(decoder: Decoder) -> None:
    """If a step is not plain, the decoder runs it; if few steps follow, nothing is recorded."""
    assert replayed(decoder, 3) is decoder
    assert isinstance(replayed(decoder, PATIENCE), Replaying)
    model, symbols = Replaying(decoder), torch.tensor([3, 4])
    decoder.stack.layers[1].register_forward_hook(lambda *_: None)  # a hook is waiting
    carry = model.begin(torch.full((2, 3), 5))
    assert not isinstance(carry, ReplayedCarry)
    found = model.step(model.select(carry, torch.tensor([1, 0])), symbols)
    wanted = decoder.step(decoder.begin(torch.full((2, 3), 5)), symbols)
    torch.testing.assert_close(found.logits, wanted.logits)


@pytest.mark.gpu
@torch.inference_mode()
def test_half_precision_needs_no_particular_kernel(decoder: Decoder) -> None:
    """GPUs before Hopper have no other kernel for partial masks, and it accepts no wider table."""
    model = Replaying(decoder.to("cuda", torch.bfloat16))
    inputs, first = padded(PROMPTS, "cuda")
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        carry = model.begin(inputs, first=first)
        for _ in range(5):
            step = model.step(carry, torch.full((4,), 3, device="cuda"))
            carry = step.carry
    assert step.logits.isfinite().all()
