"""Conversion in both directions, with `transformers` loading what was written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import heed
from heed.data.masked_words import with_mask
from heed.data.tokenise import BOS, EOS, Tokeniser
from heed.data.verbatim import Verbatim
from heed.errors import HeedError, Refused
from heed.events import Note, Progress, finish
from heed.models.layouts import LAYOUTS
from heed.models.text_settings import BertSettings, GPT2Settings
from heed.running import converting
from heed.running.converting import Converted, convert
from heed.running.evaluate import evaluate
from heed.running.opening import open_run
from heed.storage.run_folder import RunFolder
from heed.tasks.classify import ClassifyConfig
from heed.tasks.language_model import LanguageConfig
from heed.tasks.pretrain import PretrainConfig
from tests.running.folders import network, reconfigure, save

CLASSES = [name for layout in LAYOUTS.values() for name in layout.architectures]


def converted(source: Path, target: Path, **options: Any) -> Converted:
    return finish(convert(str(source), target, **options))


@pytest.mark.parametrize("name", CLASSES)
def test_a_round_trip_changes_nothing(name: str, tmp_path: Path) -> None:
    their = network(name)
    save(their, tmp_path / "theirs", shards=2)
    ours = converted(tmp_path / "theirs", tmp_path / "ours")
    assert (ours.layout, ours.kind) == ("heed", their.config.model_type)
    assert ours.parameters == sum(x.numel() for x in their.parameters())
    back = converted(tmp_path / "ours", tmp_path / "back")
    assert (back.layout, back.head, back.unused) == ("huggingface", ours.head, ())
    again = type(their).from_pretrained(tmp_path / "back").eval()
    symbols = torch.randint(20, (2, 9))
    with torch.no_grad():
        expected, found = their(symbols).to_tuple(), again(symbols).to_tuple()
    for x, y in zip(expected, found, strict=True):
        if isinstance(x, torch.Tensor):
            assert torch.equal(x, y)
    assert again.config.architectures == [name]
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    tokeniser = heed.load(tmp_path / "theirs").tokeniser
    assert tokeniser is not None
    assert words("the cats 爱 🙂").input_ids == tokeniser.encode(["the cats 爱 🙂"])[0]
    assert words.pad_token == "[PAD]"


def test_a_converted_folder_is_loaded_by_heed(tmp_path: Path) -> None:
    their = network("BertForSequenceClassification", num_labels=3)
    their.config.id2label = {0: "bad", 1: "so-so", 2: "good"}
    save(their, tmp_path / "theirs")
    converted(tmp_path / "theirs", tmp_path / "ours")
    one, other = heed.load(tmp_path / "theirs"), heed.load(tmp_path / "ours")
    assert (one.settings, one.labels) == (other.settings, other.labels)
    assert_equal(one.model, other.model)
    assert one.tokeniser is not None
    assert other.tokeniser is not None
    assert one.tokeniser.roles == other.tokeniser.roles
    converted(tmp_path / "ours", tmp_path / "back")
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config["id2label"] == {"0": "bad", "1": "so-so", "2": "good"}
    with pytest.raises(Refused, match="has the head 'classify', not 'masked'"):
        heed.load(tmp_path / "ours", head="masked")


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())


def test_a_folder_of_heed_with_other_shapes_is_refused(tmp_path: Path) -> None:
    save(network("GPT2Model"), tmp_path / "theirs", words=False)
    converted(tmp_path / "theirs", tmp_path / "ours")
    good = json.loads((tmp_path / "ours" / "config.json").read_text())
    for change, says in (
        ({"n_layer": 3}, "no key 'n_layer'"),
        ({"model": good["model"] | {"layers": 3}}, "does not fit"),
        ({"model": good["model"] | {"width": 10**12}}, "width"),
        ({"model": good["model"] | {"kind": "os.system"}}, "model"),
        ({"heed": 3}, "heed"),
        ({"task": "nothing"}, "is a run"),
        ({"model_type": "bert"}, "model_type"),
    ):
        reconfigure(tmp_path / "ours", **good)
        reconfigure(tmp_path / "ours", **change)
        with pytest.raises(HeedError, match=says):
            heed.load(tmp_path / "ours")
        reconfigure(tmp_path / "ours", **dict.fromkeys(change))


def test_progress_and_omitted_weights_are_reported(tmp_path: Path) -> None:
    save(network("BertForPreTraining"), tmp_path / "theirs")
    events = list(convert(str(tmp_path / "theirs"), tmp_path / "ours", head="masked"))
    notes = [event.text for event in events if isinstance(event, Note)]
    assert len(notes) == 1
    assert "cls.seq_relationship.weight" in notes[0]
    stages = [event for event in events if isinstance(event, Progress)]
    assert stages[0].done == 0
    assert all(stage.done <= stage.total for stage in stages)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    save(network("GPT2Model"), tmp_path / "theirs", words=False)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("full", "file", "link", "theirs"):
        with pytest.raises(Refused, match="name a new folder"):
            converted(tmp_path / "theirs", tmp_path / name)
    assert (tmp_path / "full" / "kept").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    converted(tmp_path / "theirs", tmp_path / "empty")
    converted(tmp_path / "theirs", tmp_path / "deep" / "er")


def test_a_conversion_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(network("GPT2Model"), tmp_path / "theirs", words=False)

    def full(named: Any) -> Any:
        yield b"some"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(converting.tensors, "parts", full)
    with pytest.raises(OSError, match="No space"):
        converted(tmp_path / "theirs", tmp_path / "ours")
    assert os.listdir(tmp_path) == ["theirs"]


def written(folder: Path, config: Any, tokeniser: Any) -> nn.Module:
    """A trained run, as far as converting is concerned."""
    run = RunFolder.create(folder)
    torch.manual_seed(1)
    model: nn.Module = config.build().eval()
    tokeniser.save(run.tokenizer)
    told = config.model_dump(mode="json")
    if told["model"]["kind"] == "classifier" and told["model"]["encoder"]["kind"] != "lstm":
        for other in ("embedding_dropout", "word_dropout"):  # settings of other encoders
            told["model"].pop(other, None)
    run.seal()
    run.write_json(run.config, told)
    run.save_model(model.state_dict())
    return model


def test_a_language_model_run_converts_to_hugging_face(tmp_path: Path) -> None:
    tokeniser = Verbatim.train("byte-bpe", ["the cat sat on the mat 爱"], size=270)
    model = GPT2Settings(size="nano", layers=2, width=16, heads=2, longest=12, multiple=8)
    config = LanguageConfig(
        heed="0.1.0",
        task="language-model",
        model=model,
        symbols=tokeniser.size,
        context=12,
        decoding={},
    )
    mine = written(tmp_path / "run", config, tokeniser)
    converted(tmp_path / "run", tmp_path / "theirs")
    their = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "theirs").eval()
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    text = "the cat 🙂 爱"
    ids = words(text).input_ids
    assert ids == tokeniser.encode([text])[0]
    assert "token_type_ids" not in words(text)  # which it would add as symbols
    assert (words.bos_token_id, words.eos_token_id, words.pad_token_id) == (2, 3, 0)
    symbols = torch.tensor([ids[:10]])
    with torch.no_grad():
        expected, found = mine(symbols).logits, their(symbols).logits
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert_equal(heed.load(tmp_path / "theirs").model, mine)


def test_an_xlnet_language_model_run_converts_to_hugging_face(tmp_path: Path) -> None:
    tokeniser = Verbatim.train("character", ["the cat sat on the mat"], size=50)
    config = LanguageConfig(
        heed="0.1.0",
        task="language-model",
        model={"kind": "xlnet", "layers": 2, "width": 12, "heads": 3, "feed": 14},
        symbols=tokeniser.size,
        context=12,
        decoding={},
    )
    mine: Any = written(tmp_path / "run", config, tokeniser)
    converted(tmp_path / "run", tmp_path / "theirs")
    their = transformers.XLNetLMHeadModel.from_pretrained(tmp_path / "theirs").eval()
    assert their.config.attn_type == "uni"
    ids = torch.tensor(tokeniser.encode(["the cat sat"]))
    T = ids.shape[1]
    # Each next symbol in theirs: a query one position further, which sees what comes before it.
    longer, hides = torch.cat([ids, ids[:, :1]], 1), torch.triu(torch.ones(1, T + 1, T + 1))
    with torch.no_grad():
        expected = mine(ids).logits
        found = their(longer, perm_mask=hides, target_mapping=torch.eye(T + 1)[None, 1:]).logits
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_a_bert_classifier_run_converts_to_hugging_face(tmp_path: Path) -> None:
    tokeniser = Tokeniser.train("wordpiece", ["the cat sat", "a dog ran"], size=60)
    facts: dict[str, Any] = {"layers": 1, "width": 12, "heads": 3, "feed": 14, "longest": 16}
    encoder = BertSettings(size="tiny", symbols=tokeniser.size, **facts)
    config = ClassifyConfig(
        heed="0.1.0",
        task="classify",
        model={"encoder": encoder, "pool": "first"},
        symbols=tokeniser.size,
        labels=["bad", "good", "so-so"],
        longest=12,
    )
    mine = written(tmp_path / "run", config, tokeniser)
    assert converted(tmp_path / "run", tmp_path / "theirs").head == "classify"
    name = "BertForSequenceClassification"
    their = getattr(transformers, name).from_pretrained(tmp_path / "theirs").eval()
    assert their.config.id2label == {0: "bad", 1: "good", 2: "so-so"}
    symbols = torch.randint(4, tokeniser.size, (2, 7))
    lengths = torch.tensor([7, 4])
    mask = (torch.arange(7) < lengths[:, None]).long()
    with torch.no_grad():
        expected = mine(symbols, lengths).logits
        found = their(symbols, attention_mask=mask).logits
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert_cut_alike(tmp_path, ("run", "theirs"), 12)


def assert_cut_alike(place: Path, folders: Sequence[str], longest: int) -> None:
    """A text that is longer than what the run read is cut to that wherever the model goes."""
    text = "the cat sat a dog ran " * 20
    workers = [open_run(place / folder, torch.device("cpu")).worker for folder in folders]
    (first, *others), judged = zip(
        *((worker.rows([(text,)])[0][0], worker.answers([(text,)])[0][0]) for worker in workers),
        strict=True,
    )
    assert len(first) == longest
    assert all(each == first for each in others)
    assert all(each.cut for each in judged)
    words = transformers.AutoTokenizer.from_pretrained(place / "theirs")
    assert words(text, truncation=True).input_ids == first


def test_an_xlnet_classifier_run_converts_to_hugging_face(tmp_path: Path) -> None:
    tokeniser = Tokeniser.train("wordpiece", ["the cat sat", "a dog ran"], size=60)
    facts: dict[str, Any] = {"layers": 2, "width": 12, "heads": 3, "feed": 14, "initial": 0.3}
    config = ClassifyConfig(
        heed="0.1.0",
        task="classify",
        model={"encoder": {"kind": "xlnet", **facts}, "pool": "last"},
        symbols=tokeniser.size,
        labels=["bad", "good", "so-so"],
        longest=40,
    )
    written(tmp_path / "run", config, tokeniser)
    assert converted(tmp_path / "run", tmp_path / "theirs").head == "classify"
    name = "XLNetForSequenceClassification"
    their = getattr(transformers, name).from_pretrained(tmp_path / "theirs").eval()
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    texts = ["the cat sat", "a dog", "ran ran the cat a"]
    coded = words(texts, padding=True, return_tensors="pt")
    assert coded.input_ids[:, -1].tolist() == [BOS] * 3  # padding comes first
    with torch.no_grad():
        expected = their(**coded).logits.softmax(-1)
    told: dict[str, Any] = {}
    for folder in ("run", "theirs"):
        worker = open_run(tmp_path / folder, torch.device("cpu")).worker
        found = [best[0] for best in worker.answers([(text,) for text in texts])]
        pieces = [worker.words((text,)) for text in texts]
        assert not {"▁", "Ġ"} & set("".join(chain.from_iterable(pieces)))
        assert pieces == told.setdefault("pieces", pieces)  # by the folder as by the run
        shares = [[each.shares[label] for label in config.labels] for each in found]
        torch.testing.assert_close(torch.tensor(shares), expected, rtol=1e-4, atol=1e-5)
    converted(tmp_path / "theirs", tmp_path / "back")
    ((back,),) = open_run(tmp_path / "back", torch.device("cpu")).worker.answers([(texts[0],)])
    assert back.shares == pytest.approx(found[0].shares, rel=1e-4)
    assert_cut_alike(tmp_path, ("run", "theirs", "back"), 40)
    mean = config.model_copy(update={"model": config.model.model_copy(update={"pool": "mean"})})
    written(tmp_path / "mean", mean, tokeniser)
    with pytest.raises(Refused, match="XLNet with the pool 'last'"):
        converted(tmp_path / "mean", tmp_path / "no")


@pytest.mark.parametrize("called", [["negative", "positive"], ["LABEL_0", "LABEL_1"]])
def test_labels_of_files_mean_the_same_there_and_back(called: list[str], tmp_path: Path) -> None:
    """The names stand in another order than the codes: "1" is the first label, not the second."""
    tokeniser = Tokeniser.train("wordpiece", ["the cat sat", "a dog ran"], size=60)
    config = ClassifyConfig(
        heed="0.1.0",
        task="classify",
        model={"encoder": {"kind": "bert", "size": "tiny", "layers": 1}, "pool": "first"},
        symbols=tokeniser.size,
        labels=called,
        names={"0": called[1], "1": called[0]},
        longest=16,
    )
    written(tmp_path / "run", config, tokeniser)
    converted(tmp_path / "run", tmp_path / "theirs")
    transformers.BertForSequenceClassification.from_pretrained(tmp_path / "theirs").save_pretrained(
        tmp_path / "trained"
    )  # whatever others do to it, the names stay
    shutil.copy(tmp_path / "theirs/tokenizer.json", tmp_path / "trained")
    shutil.copy(tmp_path / "theirs/tokenizer_config.json", tmp_path / "trained")
    converted(tmp_path / "theirs", tmp_path / "back")
    converted(tmp_path / "back", tmp_path / "again")
    texts = ["the cat sat", "a dog", "a dog ran", "cat"]
    (tmp_path / "codes.tsv").write_text("".join(f"1\t{text}\n" for text in texts))
    (tmp_path / "names.tsv").write_text("".join(f"{called[0]}\t{text}\n" for text in texts))
    found = [
        finish(evaluate(tmp_path / folder, [tmp_path / file], device="cpu")).scores
        for folder in ("run", "theirs", "trained", "back", "again")
        for file in ("codes.tsv", "names.tsv")
    ]
    assert found[0].labels == called
    assert [sum(row) for row in found[0].confusion] == [4, 0]
    assert all(each.confusion == found[0].confusion for each in found)


def test_names_of_labels_from_a_stranger_are_checked(tmp_path: Path) -> None:
    save(network("BertForSequenceClassification"), tmp_path / "theirs")
    path = tmp_path / "theirs/config.json"
    for odd, said in (
        (["a"], "is not a map"),
        ({"0": 1}, "is not a map"),
        ({"0": "x"}, "not among"),
    ):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"heed_label_names": odd}))
        with pytest.raises(Refused, match=said):
            converted(tmp_path / "theirs", tmp_path / "no")


@pytest.mark.parametrize(
    ("model", "objective", "name"),
    [
        ({"kind": "bert", "size": "tiny"}, {"kind": "masked"}, "BertForPreTraining"),
        (
            {"kind": "bert", "size": "tiny"},
            {"kind": "masked", "next_sentence": False},
            "BertForMaskedLM",
        ),
        (
            {"kind": "xlnet", "layers": 2, "width": 12, "heads": 3, "feed": 14},
            {"kind": "permutation"},
            "XLNetLMHeadModel",
        ),
    ],
)
def test_a_pretraining_run_converts_to_hugging_face(
    model: dict[str, Any], objective: dict[str, Any], name: str, tmp_path: Path
) -> None:
    tokeniser = with_mask(Tokeniser.train("bpe", ["the cat sat", "a dog ran 爱"], size=60))
    config = PretrainConfig(
        heed="0.1.0",
        task="pretrain",
        model=model,
        objective=objective,
        symbols=tokeniser.size,
        longest=32,
    )
    mine = written(tmp_path / "run", config, tokeniser)
    converted(tmp_path / "run", tmp_path / "theirs")
    their = getattr(transformers, name).from_pretrained(tmp_path / "theirs").eval()
    assert sum(x.numel() for x in their.parameters()) == sum(x.numel() for x in mine.parameters())
    assert_equal(heed.load(tmp_path / "theirs").model, mine)
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    assert words.mask_token_id == tokeniser.size - 1
    # The text is framed as in training.
    ids = tokeniser.encode(["the cat 爱"])[0]
    found = words("the cat 爱")
    if name == "XLNetLMHeadModel":
        assert (found.input_ids, "token_type_ids" in found) == ([*ids, BOS], False)
        return
    assert found.input_ids == [BOS, *ids]
    pair = words("the cat", "a dog")
    sides = [*tokeniser.encode(["the cat", "a dog"])]
    assert pair.input_ids == [BOS, *sides[0], *sides[1]]
    assert pair.token_type_ids == [0] * (1 + len(sides[0])) + [1] * len(sides[1])
    assert (words.cls_token_id, words.sep_token_id) == (BOS, EOS)


def test_a_run_without_a_counterpart_is_refused(tmp_path: Path) -> None:
    tokeniser = Tokeniser.train("word", ["the cat sat", "a dog ran"], size=60)
    facts: dict[str, Any] = {"symbols": tokeniser.size, "labels": ["a", "b"], "longest": 16}
    config = ClassifyConfig(heed="0.1.0", task="classify", model={}, **facts)
    written(tmp_path / "lstm", config, tokeniser)
    with pytest.raises(Refused, match="no equivalent of the model"):
        converted(tmp_path / "lstm", tmp_path / "theirs")
    sharp = BertSettings(size="tiny", attention="entmax", symbols=tokeniser.size, longest=16)
    model = {"encoder": sharp, "pool": "first"}
    config = ClassifyConfig(heed="0.1.0", task="classify", model=model, **facts)
    written(tmp_path / "entmax", config, tokeniser)
    with pytest.raises(Refused, match="no place for 'entmax'"):
        converted(tmp_path / "entmax", tmp_path / "theirs")
    with pytest.raises(Refused, match="leave out --head"):
        converted(tmp_path / "entmax", tmp_path / "theirs", head="none")
    assert not (tmp_path / "theirs").exists()
