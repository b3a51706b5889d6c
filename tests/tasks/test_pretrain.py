"""Pre-training: what is held out, which head an objective needs, how documents are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from heed.answers.form import Example
from heed.answers.hidden import Hidden, HiddenWords, Ordered
from heed.data.documents import Documents, SentenceReport
from heed.data.kinds.text import MaskedText
from heed.data.masked_words import with_mask
from heed.data.pretraining_batches import MaskedPairs, MaskedStretches, PermutedStretches
from heed.data.tokenise import Tokeniser
from heed.errors import Refused
from heed.models.answers import Answerer
from heed.models.text_settings import BertSettings
from heed.models.xlnet_answers import LanguageModel
from heed.models.xlnet_settings import XLNetSettings
from heed.tasks.pretrain import TASK, Data, build, sentences
from heed.tasks.task import Codec

BERT = BertSettings(size="tiny", layers=1, width=8, heads=2, longest=16)
XLNET = XLNetSettings(size="tiny", layers=1, width=8, heads=2)


def text(count: int) -> str:
    return "\n\n".join(f"document {i}\nsecond of {i}" for i in range(count)) + "\n"


def part(data: Data, which: Any, root: Path) -> tuple[list[str], SentenceReport]:
    report = SentenceReport()
    return [s.text for s in sentences(data, which, root, report)], report


def test_documents_are_held_out_whole_and_always_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text(300))
    data = Data(train="a.txt", held_out={"share": 0.1})
    train, counted = part(data, "train", tmp_path)
    valid, judged_by = part(data, "valid", tmp_path)
    assert sorted(train + valid) == sorted(text(300).replace("\n\n", "\n").splitlines())
    assert 15 <= judged_by.documents <= 45
    assert counted.documents + judged_by.documents == 300
    assert counted.read == counted.kept == len(train) == 2 * counted.documents
    assert all(f"second of {line.split()[-1]}" in valid for line in valid)
    (tmp_path / "b.txt").write_text(text(400))
    longer, _ = part(
        data.model_copy(update={"train": Data(train="b.txt").train}), "valid", tmp_path
    )
    assert longer[: len(valid)] == valid


def test_documents_of_every_file_are_held_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text(100))
    (tmp_path / "b.tsv").write_text("".join(f"0\tline {i}\n" for i in range(100)))
    table = {"text": "b.tsv", "column": 1, "lines": "apart"}
    data = Data(train=["a.txt", table], held_out={"share": 0.2})
    (train, counted), (valid, judged_by) = (part(data, of, tmp_path) for of in ("train", "valid"))
    assert len(train) + len(valid) == len({*train, *valid}) == 300
    for (name, own), (same, held) in zip(counted.files, judged_by.files, strict=True):
        assert name == same
        assert own.documents + held.documents == 100
        assert 5 <= held.documents <= 40
    assert [name for name, _ in counted.files] == ["a.txt", "b.tsv"]
    assert (counted.read, counted.documents) == (len(train), 200 - judged_by.documents)


def test_documents_with_the_same_beginning_are_distinguished(tmp_path: Path) -> None:
    speeches = (f"First Citizen:\nspeech number {i}\n" for i in range(200))
    (tmp_path / "a.txt").write_text("\n".join(speeches))
    data = Data(train="a.txt", held_out={"share": 0.2})
    held = [x for x in sentences(data, "valid", tmp_path, SentenceReport()) if x.opens]
    assert 20 < len(held) < 60


def test_no_more_is_held_out_than_asked_and_never_the_only_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text(300))
    data = Data(train="a.txt", held_out={"share": 0.5, "most": 7})
    assert part(data, "valid", tmp_path)[1].documents == 7
    assert part(data, "train", tmp_path)[1].documents == 293
    (tmp_path / "one.txt").write_text("a\nb\n")
    with pytest.raises(Refused, match=r"too few documents .*: separate them .* data\.valid"):
        part(Data(train="one.txt"), "valid", tmp_path)


def test_separate_files_are_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text(50))
    (tmp_path / "b.txt").write_text("x\ny\n" + "z" * 30_000 + "\n")
    data = Data(train="a.txt", valid="b.txt", test="b.txt")
    assert part(data, "train", tmp_path)[1].documents == 50
    found, report = part(data, "valid", tmp_path)
    assert found == part(data, "test", tmp_path)[0] == ["x", "y"]
    assert report.dropped == {"too long": 1}
    dropped = Data(train="b.txt", held_out={"share": 0.0001})
    assert part(dropped, "train", tmp_path)[1].read == 3


def test_endings_of_paths_tell_the_format() -> None:
    assert Data(train="a.txt").train.text == (Path("a.txt"),)
    assert Data(train=["a.jsonl.gz", "b.jsonl.gz"]).train.jsonl[1] == Path("b.jsonl.gz")
    assert Data(train={"jsonl": "a", "key": "source"}).train.key == "source"
    for wrong in ({}, {"train": 3}, {"train": []}, {"train": "a", "held_out": {"share": 0}}):
        with pytest.raises(ValidationError):
            Data(**wrong)


@pytest.mark.parametrize(
    ("model", "objective", "kind"),
    [
        (BERT, Hidden(), Answerer),
        (BERT, Hidden(next_sentence=False), Answerer),
        (XLNET, Ordered(), LanguageModel),
    ],
)
def test_the_objective_determines_the_head(model: Any, objective: Any, kind: type) -> None:
    network: Any = build(model, objective, symbols=20, longest=16)
    assert isinstance(network, kind)
    if isinstance(objective, Hidden):
        assert (network.follows is not None) == objective.next_sentence
        assert network.words is not None


@pytest.mark.parametrize(
    ("model", "objective", "message"),
    [
        (BERT, Ordered(), "is for xlnet, not for bert; set objective.kind=masked"),
        (XLNET, Hidden(), "is for bert, not for xlnet; set objective.kind=permutation"),
        (BERT.model_copy(update={"head": "span"}), Hidden(), "here 'pretraining'; leave it out"),
        (BERT.model_copy(update={"symbols": 7}), Hidden(), "the vocabulary has 20; leave it out"),
        (BERT.model_copy(update={"longest": 8}), Hidden(), "set model.longest=16"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(
    model: Any, objective: Any, message: str
) -> None:
    with pytest.raises(Refused, match=message):
        build(model, objective, symbols=20, longest=16)


def test_the_objective_determines_the_rows() -> None:
    documents = Documents.of([[[5, 6], [7]], [[8]]])
    tokeniser = with_mask(Tokeniser.train("character", ["abcdefgh"], 12))
    kinds = {Hidden(): MaskedPairs, Hidden(next_sentence=False): MaskedStretches}
    for objective, kind in {**kinds, Ordered(): PermutedStretches}.items():
        form = HiddenWords(tokeniser, objective, longest=16)
        assert isinstance(form.maker(documents), kind)
        assert form.is_paired == (kind is MaskedPairs)
        assert form.is_ordered == (kind is PermutedStretches)


def test_documents_are_kept_sentence_by_sentence() -> None:
    tokeniser = with_mask(Tokeniser.train("character", ["abcdefgh"], 12))
    form = HiddenWords(tokeniser, Hidden(), longest=16)
    codec = Codec({"text": MaskedText(tokeniser, form.symbols.mask, paired=True)}, form)
    texts = [("ab", True), ("c", False), ("[MASK] d", True)]
    examples = [Example((text,), opens) for text, opens in texts]
    columns = TASK.rows(codec, examples)
    assert columns["opens"] == [[1], [0], [1]]
    assert [len(row) for row in columns["text"]][:2] == [3, 2]  # with the space, without an end
    assert form.symbols.mask not in columns["text"][2]  # in a text it is text
    kept = (codec.of_data(codec.as_data(each)) for each in examples)
    documents = list(TASK.joined(kept))
    assert [each.inputs for each in documents] == [(("ab", "c"),), (("[MASK] d",),)]
    found = [line for (line,), *_ in TASK.excerpts(codec, documents, 9)]
    assert found[0] == "[MASK]"
    assert found[1].split().count("[MASK]") in (1, 2)
