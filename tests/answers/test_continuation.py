"""A language model at work: alone and in a batch, beyond its positions, and symbol by symbol."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from heed.answers.continuation import Continuation, Continued, Decoding, Memory
from heed.answers.continuation_scores import LanguageScores, PredictedText
from heed.answers.form import Example
from heed.answers.worker import Worker
from heed.data.borrowed import marks_of
from heed.data.kinds.text import RawText
from heed.data.tokenise import EOS, UNK
from heed.data.verbatim import Verbatim
from heed.decoding.sampling import seed_of
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


def made(kind: str, tokens: str = "character") -> Worker:
    vocabulary = Verbatim.train(tokens, [TEXT], 270 if tokens == "byte-bpe" else 100)
    settings = MODELS[kind]
    torch.manual_seed(1)
    model = build(settings, symbols=vocabulary.size, context=8)
    if kind in ("lstm", "gru"):
        for weight in model.parameters():
            weight.data.mul_(3)  # or all symbols would be equally likely
    form = Continuation(marks_of(vocabulary), context=8, places=places(settings))
    return Worker(model, {"text": RawText(vocabulary)}, form, torch.device("cpu"))


def written(
    worker: Worker, prompts: Sequence[str], choice: Decoding, samples: int = 1
) -> list[list[Continued]]:
    return worker.answers([(prompt,) for prompt in prompts], choice, samples)


def reading(worker: Worker, text: str, **more: int) -> PredictedText:
    (found,) = worker.read([Example((text,), True)], **more)
    return found


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
    together = written(writer, PROMPTS, choice)
    for prompt, (found,) in zip(PROMPTS, together, strict=True):
        ((alone,),) = written(writer, [prompt], choice)
        assert found.prompt == prompt
        assert alone.written == found.written
        assert alone.log_prob == pytest.approx(found.log_prob, rel=1e-4)
        assert found.symbols == len(found.written) <= choice.longest
    assert len({each[0].written for each in together}) > 1


@pytest.mark.parametrize("kind", MODELS)
def test_batches_of_any_size_give_the_same(kind: str) -> None:
    writer, choice = made(kind), Decoding(longest=12, seed=3)
    whole = written(writer, PROMPTS, choice, samples=3)
    writer.tokens = 1
    assert [[e.written for e in some] for some in written(writer, PROMPTS, choice, samples=3)] == [
        [e.written for e in some] for some in whole
    ]
    assert all(len({e.written for e in some}) > 1 for some in whole)


@pytest.mark.parametrize(
    ("method", "several"), [("sample", 3), ("greedy", 1), ("beam", 5)], ids=lambda x: str(x)
)
def test_batches_are_as_large_as_the_room_for_their_answers(method: str, several: int) -> None:
    """So many answers to each prompt take room, as long as they may become."""
    writer = made("lstm")
    choice = writer.form.settled(writer, Decoding(method=method, longest=7))
    best = 3 if method == "sample" else 1
    rows = {i: ([5] * length,) for i, length in enumerate((3, 1, 3, 2, 3))}
    for room, sizes in ((10, [1] * 5), (2 * 10, [2, 2, 1]), (5 * 10, [5])):
        writer.tokens = several * room
        found = list(writer.form.batches(writer, rows, choice, best))
        assert list(map(len, found)) == sizes
        assert [i for batch in found for i in batch] == [0, 2, 4, 3, 1]  # the longest first


def test_samples_depend_on_seed_prompt_and_number() -> None:
    writer = made("gpt")
    one, two = (written(writer, ["the"], Decoding(longest=9, seed=s), 2)[0] for s in (1, 2))
    assert one[0].written != two[0].written
    assert written(writer, ["the"], Decoding(longest=9, seed=1), 1)[0][0].written == one[0].written
    assert (
        len({seed_of(0, 0, [1]), seed_of(0, 1, [1]), seed_of(1, 0, [1]), seed_of(0, 0, [2])}) == 4
    )


@torch.no_grad()
def test_a_written_text_has_its_probability() -> None:
    """Read again as a whole."""
    writer = made("gpt")
    ((found,),) = written(writer, ["the"], Decoding(longest=15, seed=2))
    (ids,) = writer.kind.pieces.encode(["the" + found.written])
    logits = writer.model(torch.tensor([ids[:-1]])).logits[0]
    nats = cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")[2:].sum()
    assert found.log_prob == pytest.approx(-float(nats), rel=1e-4)
    assert not found.ended
    assert not found.slid


def test_beyond_its_positions_it_slides_and_says_so() -> None:
    writer, choice = made("gpt"), Decoding(method="greedy", longest=22)
    ((found,),) = written(writer, ["the"], choice)
    assert not found.slid  # 3 and 21 are read: the last is not
    ((longer,),) = written(writer, ["the"], Decoding(method="greedy", longest=60))
    assert longer.slid
    assert longer.written.startswith(found.written)
    ((prompted,),) = written(
        writer, ["the" + longer.written[:40]], Decoding(method="greedy", longest=20)
    )
    assert prompted.slid
    assert prompted.written == longer.written[40:]
    ((state,),) = written(made("lstm"), ["the"], Decoding(longest=99))
    assert not state.slid


def test_a_beam_may_fill_all_positions() -> None:
    """The last symbol is written and never read."""
    ((found,),) = written(made("gpt"), ["the"], Decoding(method="beam", longest=22, width=2))
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
    plain = written(writer, PROMPTS, choice.model_copy(update={"replay": False}))
    assert not recorded
    for tokens in (writer.tokens, 60):
        writer.tokens = tokens
        for found, wanted in zip(written(writer, PROMPTS, choice), plain, strict=True):
            assert found[0].written == wanted[0].written
            assert found[0].log_prob == pytest.approx(wanted[0].log_prob, rel=1e-5)
    assert recorded


def test_only_text_symbols_are_written() -> None:
    """Neither rows that pad the table nor special symbols."""
    writer = made("gpt")
    with torch.no_grad():
        writer.model.words.table.weight[writer.kind.pieces.size :] = 9.0
        writer.model.words.table.weight[UNK] = 9.0
    (found,) = written(writer, ["the"], Decoding(longest=50, temperature=5.0), samples=5)
    assert all(len(each.written) == each.symbols for each in found)
    assert not any("�" in each.written or "<" in each.written for each in found)


def test_the_end_symbol_ends_a_text() -> None:
    writer = made("lstm")
    with torch.no_grad():
        writer.model.out.bias[EOS] = 99.0
    ((found,),) = written(writer, ["the"], Decoding(method="greedy"))
    assert (found.written, found.symbols, found.ended) == ("", 0, True)


def test_greedy_gives_one_text() -> None:
    with pytest.raises(Refused, match="one answer, not 2"):
        written(made("lstm"), ["a"], Decoding(method="greedy"), samples=2)
    (beams,) = written(made("lstm"), ["a"], Decoding(method="beam", longest=4, width=2), samples=3)
    assert len({each.written for each in beams}) == 3
    assert beams[0].log_prob >= beams[1].log_prob >= beams[2].log_prob


@torch.no_grad()
@pytest.mark.parametrize("tokens", ["character", "byte-bpe"])
@pytest.mark.parametrize("overlap", [0, 3, 7])
@pytest.mark.parametrize("kind", ["gpt", "lstm"])
def test_every_symbol_but_the_first_is_scored_once(kind: str, overlap: int, tokens: str) -> None:
    writer = made(kind, tokens)
    text = TEXT[:-1]
    (ids,) = writer.kind.pieces.encode([text])
    found = reading(writer, text, overlap=overlap)
    nats, counted, start = 0.0, 0, 0
    while counted < len(ids) - 1:  # window by window, independently
        row = ids[start : start + 9]
        logits = writer.model(torch.tensor([row[:-1]])).logits[0]
        each = cross_entropy(logits, torch.tensor(row[1:]), reduction="none")
        new = each if start == 0 else each[overlap:]
        nats, counted = nats + float(new.sum()), counted + len(new)
        start += 8 - overlap
    assert found.nats == pytest.approx(nats, rel=1e-5)
    assert found.count == counted == len(ids) - 1
    first = len(writer.kind.pieces.decode(ids[:1]))
    assert found.characters == found.bytes == len(text) - first
    scores = LanguageScores.of([found], context=8)
    bits = found.loss * found.count / found.characters / math.log(2)
    assert scores.bits_per_character == pytest.approx(bits)
    assert scores.perplexity == pytest.approx(math.exp(found.loss))


def test_texts_that_cannot_be_scored() -> None:
    writer = made("lstm")
    assert reading(writer, "t") == PredictedText(0.0, 0, 0, 0, 0)
    with pytest.raises(Refused, match="overlap"):
        reading(writer, TEXT, overlap=8)
    assert reading(writer, "t☃☃").unknown == 2


def test_what_is_seen_while_a_text_is_read() -> None:
    writer = made("gpt")
    (found,) = writer.form.once(writer, ("the cat\n",))
    assert found.pieces == [*"the", "␣", *"cat", "↵"]
    assert len(found.likeliest) == 8
    assert (found.written, found.unread) == (None, "")
    examples = [Example((text,), True) for text in ("the cat\n", "a", "")]
    rows = writer.rows([each.inputs for each in examples])
    seen = writer.form.seen(writer, examples, rows)
    assert list(seen) == ["0.self", "1.self"]
    record, counts = seen["1.self"]
    assert record.weight.shape == (3, 3, 8, 8)
    assert counts.tolist() == [8, 1, 1]  # what opens a text is read where there is none
    sharp = writer.sharpness(examples[:1])
    assert all(0 < each["entropy"] < math.log(8) for each in sharp.values())
    assert writer.sharpness(examples) != sharp
    (long,) = writer.form.once(writer, (TEXT,))
    assert "".join(long.pieces) == TEXT[-24:].replace(" ", "␣").replace("\n", "↵")
    assert long.remark.startswith("only the last 24 symbols are read")
    ((again,),) = written(writer, ["the"], Decoding(longest=5))
    (both,) = writer.form.once(writer, ("the",), [again])
    assert "".join(both.pieces) == f"the{again.written}".replace(" ", "␣").replace("\n", "↵")
    assert both.facts()[0][:2] == [("Prompt", "the"), ("Written", again.written.replace("\n", "↵"))]
    assert made("lstm").sharpness(examples) == {}
    two = made("xlnet")  # streams, of which one predicts
    assert list(two.form.seen(two, examples, rows)) == ["0.query", "1.query"]


def test_what_stands_before_a_window_is_remembered() -> None:
    """With a memory that is long enough, windows of any size predict alike."""
    pieces = Verbatim.train("character", [TEXT], 100)
    settings = MODELS["xlnet"].model_copy(update={"memory": 64})
    torch.manual_seed(1)
    model = build(settings, symbols=pieces.size, context=8)
    found = []
    for context in (5, 8, 64):
        form = Continuation(marks_of(pieces), context=context, memory=Memory(64, 2, 24))
        given = Worker(model, {"text": RawText(pieces)}, form, torch.device("cpu"))
        found.append(reading(given, TEXT).nats)
        assert reading(given, TEXT, overlap=1).nats != found[-1] or context == 64
    assert found == pytest.approx([found[-1]] * 3, rel=1e-5)
