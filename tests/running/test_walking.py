"""Walks through the models of runs: the words, and the choice of query, layer and head."""

from __future__ import annotations

from pathlib import Path

import pytest

from heed.errors import Refused
from heed.events import finish
from heed.running.recipe import resolve
from heed.running.showing import opened
from heed.running.train import train
from heed.running.walking import _place, walk
from tests.running import labelling, writing

SENTENCE = "我 爱 我"


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return writing.written(tmp_path_factory)


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("walked") / "run"
    recipe = writing.recipe(steps=4, validate_every=4, save_every=4)
    sizes = {"encoder_layers": 1, "decoder_layers": 2, "width": 16, "feed": 16, "heads": 2}
    recipe["model"] = {"kind": "transformer", **sizes}
    finish(train(resolve(recipe), folder, device="cpu"))
    return folder


def test_the_step_that_wrote_a_word_can_be_walked(writer: Path) -> None:
    (told,) = walk(writer, [SENTENCE], at="1", device="cpu")
    assert [key.word for key in told.keys] == ["我", "爱", "我", "</s>"]
    assert told.title.split(" · ")[1:] == ["position 1", "decoder.attention"]
    assert told.agrees
    assert told.choice == ""  # the only one
    assert "= the model's context" in told.check
    assert told.columns == ["e", "a"]
    assert sum(key.weight for key in told.keys) == pytest.approx(1)
    for n, number in enumerate(told.context):
        assert number == pytest.approx(sum(key.value[n] for key in told.keys), abs=1e-5)
    word = told.title.split(" · ")[0]
    (named,) = walk(writer, [SENTENCE], at=word.upper(), device="cpu")
    assert named.title.startswith(word)


def test_without_a_text_the_first_example_of_the_run_is_walked(writer: Path) -> None:
    (told,) = walk(writer, device="cpu")
    assert told.agrees


def test_layers_and_heads_of_a_transformer_can_be_chosen(transformer: Path) -> None:
    (aligning,) = walk(transformer, [SENTENCE], device="cpu")
    assert aligning.title.endswith("decoder.stack.layers.0.cross · head 0")  # the last but one
    (other,) = walk(transformer, [SENTENCE], layer=1, head=1, device="cpu")
    assert other.title.endswith("decoder.stack.layers.1.cross · head 1")
    assert aligning.choice == "one of 2 attentions and 2 heads"
    assert aligning.options == "--layer 0 to 1, --head 0 to 1"
    assert aligning.agrees
    assert other.agrees
    assert aligning.context != other.context
    (seen,) = opened(transformer).passes([SENTENCE], several=False)  # type: ignore[call-arg]
    (take,) = seen.look.takes
    assert take.layers[take.opens].name == "decoder 0 cross"  # a page opens with the same


def test_a_static_attention_has_one_query(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = labelling.labelled(tmp_path_factory)
    (told,) = walk(folder, ["the film is good"], at="0", device="cpu")
    assert told.title.startswith("the text")
    assert [key.word for key in told.keys][:4] == ["the", "film", "is", "good"]
    assert told.agrees
    for at in ("good", "1"):
        with pytest.raises(Refused, match="has one query, for the whole text; leave"):
            walk(folder, ["the film is good"], at=at, device="cpu")


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ({"at": "elephant"}, "neither a word of the queries"),
        ({"at": "99"}, "nor a position"),
        ({"at": "²"}, "nor a position"),
        ({"layer": 3}, "there are 1"),
        ({"layer": -1}, "there are 1"),
        ({"head": 1}, "no head 1"),
    ],
)
def test_a_choice_that_does_not_exist_is_refused(
    writer: Path, which: dict[str, str], said: str
) -> None:
    with pytest.raises(Refused, match=said):
        walk(writer, [SENTENCE], device="cpu", **which)  # type: ignore[arg-type]


def test_a_word_is_found_without_its_marks() -> None:
    words = ["Stir", "##ring", "[MASK]", "ring", "##"]
    places = [_place(words, at, 0, "layer 0") for at in ("ring", "##ring", "stir", "mask", "-1")]
    assert places == [3, 1, 0, 2, 4]
    assert _place(words[:3], "ring", 0, "layer 0") == 1


def test_a_blank_text_is_refused(writer: Path) -> None:
    with pytest.raises(Refused, match="blank"):
        walk(writer, ["  "], device="cpu")


@pytest.mark.parametrize(
    ("task", "model", "text", "asking"),
    [
        ("language-model", {"kind": "gpt2"}, "the cat", "t"),
        ("pretrain", {"kind": "bert"}, "the <mask> sat", "<mask>"),
    ],
)
def test_self_attention_can_be_walked(
    tmp_path: Path, task: str, model: dict[str, str], text: str, asking: str
) -> None:
    (tmp_path / "text.txt").write_text("the cat sat .\nthe dog ran .\n\n" * 30)
    tokens = {"kind": "character"} if task == "language-model" else {"kind": "word", "size": 50}
    data = {"folder": str(tmp_path), "train": "text.txt", "valid": "text.txt", "tokens": tokens}
    data |= {"context": 12} if task == "language-model" else {"longest": 12}
    small = {"layers": 2, "width": 8, "heads": 2, "longest": 12}
    steps = {"steps": 1, "batch_tokens": 100, "validate_every": 1, "save_every": 1, "log_every": 1}
    raw = {"task": task, "data": data, "model": {**small, **model}, "training": steps}
    raw |= {"objective": {"kind": "masked"}} if task == "pretrain" else {}
    finish(train(resolve(raw), tmp_path / "run", device="cpu"))
    (told,) = walk(tmp_path / "run", [text], device="cpu")
    assert told.title.split(" · ")[0] == asking  # the last, and the hidden one
    assert told.agrees
    if task == "language-model":
        (early,) = walk(tmp_path / "run", [text], at="h", layer=0, head=1, device="cpu")
        assert [key.hidden for key in early.keys] == ["", ""] + ["later position"] * 5
        assert [key.word for key in early.keys[:3]] == ["t", "h", "e"]
