"""A language model at work: alone and in a batch, beyond its positions, and symbol by symbol."""

import math
from collections.abc import Callable

import pytest
import torch
from heed.tasks.writer import Decoding, Writer, seed_of, sharpness
from torch import Tensor
from torch.nn.functional import cross_entropy

from heed.data.tokenise import EOS, UNK
from heed.data.verbatim import Verbatim
from heed.errors import Refused
from heed.models import replaying
from heed.models.recurrent_language import RecurrentLanguageSettings
from heed.models.text_settings import GPT2Settings
from heed.models.xlnet_settings import XLNetSettings
from heed.tasks.language_model import build, places

TEXT = "the cat sat on the mat.\nA dog, too!\n"
PROMPTS = ["the", "", "the cat sat on the mat", "A d", "t"]
MODELS = {
    "gpt": GPT2Settings(layers=2, width=24, heads=3, longest=24, initial=0.3, multiple=16),
    "lstm": RecurrentLanguageSettings(embedding=8, hidden=12),
    "gru": RecurrentLanguageSettings(cell="gru", embedding=12, hidden=12, layers=1, tied=True),
    "xlnet": XLNetSettings(layers=2, width=24, heads=3, feed=32, initial=0.3, multiple=16),
    "local": GPT2Settings(
        layers=1, width=24, heads=2, longest=24, initial=0.3, attention="local-m"
    ),
}


def made(kind: str, tokens: str = "character") -> Writer:
    vocabulary = Verbatim.train(tokens, [TEXT], 270 if tokens == "byte-bpe" else 100)
    settings = MODELS[kind]
    torch.manual_seed(1)
    model = build(settings, symbols=vocabulary.size, context=8)
    if kind in ("lstm", "gru"):
        for weight in model.parameters():
            weight.data.mul_(3)  # or all symbols would be equally likely
    return Writer(model, vocabulary, torch.device("cpu"), places=places(settings), context=8)


@pytest.mark.parametrize(
    "choice",
    [
        Decoding(method="greedy", longest=40),
        Decoding(method="sample", longest=40, seed=5),
        Decoding(method="sample", longest=15, temperature=0.7, top_k=6, top_p=0.9),
        Decoding(method="beam", longest=20, width=3),
    ],
    ids=["greedy", "sample", "top", "beam"],
)
@pytest.mark.parametrize("kind", MODELS)
def test_a_text_alone_equals_the_text_in_a_batch(kind: str, choice: Decoding) -> None:
    writer = made(kind)
    together = writer.write(PROMPTS, choice)
    for prompt, (found,) in zip(PROMPTS, together, strict=True):
        ((alone,),) = writer.write([prompt], choice)
        assert found.prompt == prompt
        assert alone.text == found.text
        assert alone.log_prob == pytest.approx(found.log_prob, rel=1e-4)
        assert found.symbols == len(found.text) <= choice.longest
    assert len({each[0].text for each in together}) > 1


@pytest.mark.parametrize("kind", MODELS)
def test_batches_of_any_size_give_the_same(kind: str) -> None:
    writer, choice = made(kind), Decoding(longest=12, seed=3)
    whole = writer.write(PROMPTS, choice, samples=3)
    writer.tokens = 1
    assert [[e.text for e in some] for some in writer.write(PROMPTS, choice, samples=3)] == [
        [e.text for e in some] for some in whole
    ]
    assert all(len({e.text for e in some}) > 1 for some in whole)


def test_samples_depend_on_seed_prompt_and_number() -> None:
    writer = made("gpt")
    one, two = (writer.write(["the"], Decoding(longest=9, seed=s), 2)[0] for s in (1, 2))
    assert one[0].text != two[0].text
    assert writer.write(["the"], Decoding(longest=9, seed=1), 1)[0][0].text == one[0].text
    assert (
        len({seed_of(0, 0, [1]), seed_of(0, 1, [1]), seed_of(1, 0, [1]), seed_of(0, 0, [2])}) == 4
    )


@torch.no_grad()
def test_a_written_text_has_its_probability() -> None:
    """Read again as a whole."""
    writer = made("gpt")
    ((found,),) = writer.write(["the"], Decoding(longest=15, seed=2))
    (ids,) = writer.vocabulary.encode(["the" + found.text])
    logits = writer.model(torch.tensor([ids[:-1]])).logits[0]
    nats = cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")[2:].sum()
    assert found.log_prob == pytest.approx(-float(nats), rel=1e-4)
    assert not found.ended
    assert not found.slid


def test_beyond_its_positions_it_slides_and_says_so() -> None:
    writer, choice = made("gpt"), Decoding(method="greedy", longest=22)
    ((found,),) = writer.write(["the"], choice)
    assert not found.slid  # 3 and 21 are read: the last is not
    ((longer,),) = writer.write(["the"], Decoding(method="greedy", longest=60))
    assert longer.slid
    assert longer.text.startswith(found.text)
    ((prompted,),) = writer.write(["the" + longer.text[:40]], Decoding(method="greedy", longest=20))
    assert prompted.slid
    assert prompted.text == longer.text[40:]
    ((state,),) = made("lstm").write(["the"], Decoding(longest=99))
    assert not state.slid


def test_a_beam_may_fill_all_positions() -> None:
    """The last symbol is written and never read."""
    ((found,),) = made("gpt").write(["the"], Decoding(method="beam", longest=22, width=2))
    assert (found.symbols, found.slid) == (22, False)


CHOICES = [
    Decoding(method="greedy", longest=17),
    Decoding(method="sample", longest=40, seed=5, top_k=9),
    Decoding(method="beam", longest=17, width=3),
]


class Eager:
    """Replaces a Studio on a CPU: what is recorded is the work itself."""

    def __init__(self, device: torch.device) -> None:
        pass

    def rehearse(self, work: Callable[[], Tensor]) -> Tensor:
        return work()

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        return work


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.method)
def test_steps_are_replayed_if_possible(
    monkeypatch: pytest.MonkeyPatch, choice: Decoding, device: str
) -> None:
    """With the same results, in one batch or many; unless it is switched off."""
    writer, recorded = made("gpt"), []
    writer.device = torch.device(device)
    writer.model.double().to(device)
    studio = Eager if device == "cpu" else replaying.Studio
    record = studio.record
    monkeypatch.setattr(studio, "record", lambda *x: recorded.append(1) or record(*x))
    monkeypatch.setattr(replaying, "studio_of", studio)
    plain = writer.write(PROMPTS, choice.model_copy(update={"replay": False}))
    assert not recorded
    for tokens in (writer.tokens, 60):
        writer.tokens = tokens
        for found, wanted in zip(writer.write(PROMPTS, choice), plain, strict=True):
            assert found[0].text == wanted[0].text
            assert found[0].log_prob == pytest.approx(wanted[0].log_prob, rel=1e-5)
    assert recorded


def test_only_text_symbols_are_written() -> None:
    """Neither rows that pad the table nor special symbols."""
    writer = made("gpt")
    with torch.no_grad():
        writer.model.words.table.weight[writer.vocabulary.size :] = 9.0
        writer.model.words.table.weight[UNK] = 9.0
    (found,) = writer.write(["the"], Decoding(longest=50, temperature=5.0), samples=5)
    assert all(len(each.text) == each.symbols for each in found)
    assert not any("�" in each.text or "<" in each.text for each in found)


def test_the_end_symbol_ends_a_text() -> None:
    writer = made("lstm")
    with torch.no_grad():
        writer.model.labeller.out.bias[EOS] = 99.0
    ((found,),) = writer.write(["the"], Decoding(method="greedy"))
    assert (found.text, found.symbols, found.ended) == ("", 0, True)


def test_greedy_gives_one_text() -> None:
    with pytest.raises(Refused, match="one answer, not 2"):
        made("lstm").write(["a"], Decoding(method="greedy"), samples=2)
    (beams,) = made("lstm").write(["a"], Decoding(method="beam", longest=4, width=2), samples=3)
    assert len({each.text for each in beams}) == 3
    assert beams[0].log_prob >= beams[1].log_prob >= beams[2].log_prob


@torch.no_grad()
@pytest.mark.parametrize("tokens", ["character", "byte-bpe"])
@pytest.mark.parametrize("overlap", [0, 3, 7])
@pytest.mark.parametrize("kind", ["gpt", "lstm"])
def test_every_symbol_but_the_first_is_scored_once(kind: str, overlap: int, tokens: str) -> None:
    writer = made(kind, tokens)
    text = TEXT[:-1]
    (ids,) = writer.vocabulary.encode([text])
    reading = writer.read(text, overlap=overlap)
    nats, counted, start = 0.0, 0, 0
    while counted < len(ids) - 1:  # window by window, independently
        row = ids[start : start + 9]
        logits = writer.model(torch.tensor([row[:-1]])).logits[0]
        each = cross_entropy(logits, torch.tensor(row[1:]), reduction="none")
        new = each if start == 0 else each[overlap:]
        nats, counted = nats + float(new.sum()), counted + len(new)
        start += 8 - overlap
    assert reading.nats == pytest.approx(nats, rel=1e-5)
    assert reading.symbols == counted == len(ids) - 1
    first = len(writer.vocabulary.decode(ids[:1]))
    assert reading.characters == reading.bytes == len(text) - first
    assert reading.bits(reading.characters) == pytest.approx(
        reading.loss * reading.symbols / reading.characters / math.log(2)
    )
    assert reading.perplexity == pytest.approx(math.exp(reading.loss))


def test_texts_that_cannot_be_scored_are_refused() -> None:
    writer = made("lstm")
    with pytest.raises(Refused, match="nothing to predict"):
        writer.read("t")
    with pytest.raises(Refused, match="overlap"):
        writer.read(TEXT, overlap=8)
    assert writer.read("t☃☃").unknown == 2


def test_all_layers_and_heads_can_be_shown() -> None:
    pieces, likeliest, seen = made("gpt").look("the cat\n")
    assert pieces == [*"the", "␣", *"cat", "↵"]
    assert len(likeliest) == 8
    assert list(seen) == ["0.self", "1.self"]
    assert seen["1.self"].weight.shape == (1, 3, 8, 8)
    assert all(0 < x < math.log(8) for x in sharpness(seen).values())
    assert len(made("gpt").look(TEXT)[0]) == 24
    assert made("lstm").look("the")[2] == {}
