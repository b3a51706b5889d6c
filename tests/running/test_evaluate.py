"""Evaluation on the run's own data, or on files: scores are those of the written translations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sacrebleu
import torch

from heed.answers.text import Decoding
from heed.errors import Refused
from heed.events import Note, Progress, finish
from heed.running.evaluate import evaluate
from heed.running.opening import open_run
from heed.running.recipe import resolve
from heed.running.train import train
from tests.running.kept import kept
from tests.running.small import small
from tests.running.writing import written


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory)


def test_the_scores_of_training_are_reproduced(writer: Path) -> None:
    found = finish(evaluate(writer, device="cpu")).scores
    told = json.loads((writer / "scores.json").read_text())["scores"]["test"]
    assert found.bleu > 0
    assert found.bleu == pytest.approx(told["bleu"])
    assert found.perplexity == pytest.approx(told["perplexity"])
    assert found.aer == pytest.approx(told["aer"])


def test_scores_are_those_of_the_written_translations(writer: Path) -> None:
    found = finish(evaluate(writer, "valid", device="cpu"))
    texts, pairs = found.answers(), kept(writer, "valid")
    targets = [pair.answer for pair in pairs]
    assert found.scores.bleu == pytest.approx(sacrebleu.corpus_bleu(texts, [targets]).score)
    assert found.scores.chrf == pytest.approx(sacrebleu.corpus_chrf(texts, [targets]).score)
    worker, decoding = open_run(writer, torch.device("cpu")).worker, Decoding(method="greedy")
    again = worker.answers([pair.inputs for pair in pairs], decoding)
    assert [best[0].text for best in again] == texts
    lines = found.pharaoh()
    for line, pair in zip(lines, pairs, strict=True):
        links = [tuple(map(int, link.split("-"))) for link in line.split()]
        assert sorted(j for _, j in links) == list(range(len(pair.answer.split())))
        assert all(i < len(pair.inputs[0].split()) for i, _ in links)


def test_other_files_are_counted_and_scored(writer: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("我 爱 中国\ti love china\n\n你 爱 我\tyou love me\n")
    work = evaluate(writer, [path], device="cpu", method="beam", width=2)
    events = []
    while True:
        try:
            events.append(next(work))
        except StopIteration as done:
            found = done.value
            break
    assert events[0] == Note("3 pairs read = 2 kept + 1 dropped (1 blank source)")
    assert events[-1] == Progress("answering", 2, 2)
    assert (found.scores.pairs, found.scores.aer) == (2, None)
    assert [bool(line) for line in found.answers()] == [True, False, True]
    assert [len(line.split()) for line in found.pharaoh()] == [3, 0, 3]


def test_a_first_line_that_names_languages_is_reported(writer: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("Chinese\tEnglish\n我 爱 中国\ti love china\n")
    first = next(evaluate(writer, [path], device="cpu", method="greedy"))
    assert isinstance(first, Note)
    assert first.text.startswith(f"{path}:1: the first line, 'Chinese, English', is read as a pair")


def test_missing_parts_and_wrong_choices_are_refused(writer: Path) -> None:
    with pytest.raises(
        Refused, match="no train pairs; name one of valid, test, long, or give a file"
    ):
        finish(evaluate(writer, "train", device="cpu"))
    with pytest.raises(Refused, match=r"^decoding: width: input should be greater"):
        finish(evaluate(writer, device="cpu", width=0))
    with pytest.raises(Refused, match="there is no folder nowhere/at/all, and it cannot be a name"):
        finish(evaluate(Path("nowhere/at/all"), device="cpu"))


def test_a_pair_that_the_model_cannot_read_as_a_whole_has_an_empty_line(
    tmp_path: Path,
) -> None:
    """Learned positions end: what comes after them is not read, so its links would be wrong."""
    raw = small(steps=1, epochs=None)
    raw["data"]["longest"] = 8
    raw["model"] = {"kind": "transformer", "width": 16, "heads": 2, "feed": 16, "longest": 8}
    raw["model"] |= {"position": "learned", "encoder_layers": 1, "decoder_layers": 1}
    run = finish(train(resolve(raw), tmp_path / "run", device="cpu")).folder
    path, links = tmp_path / "pairs.tsv", tmp_path / "links"
    rows = [("我 爱 你", "i love you"), ("我 " * 8, "i"), ("我", "i " * 8), ("我 " * 7, "i " * 7)]
    path.write_text("".join(f"{source}\t{target}\n" for source, target in rows))
    notes: list[str] = []
    work = evaluate(run, [path], device="cpu", links=links)
    found = finish(work, lambda event: notes.append(str(getattr(event, "text", ""))))
    assert [len(line.split()) for line in found.pharaoh()] == [3, 0, 0, 7]
    told = f"{links}: the lines of some pairs are empty (2 longer than the model reads)"
    assert told in notes


def test_links_need_attention(tmp_path: Path) -> None:
    raw = small(steps=1, epochs=None)
    raw["model"] |= {"decoder": "fixed"}
    run = finish(train(resolve(raw), tmp_path / "run", device="cpu")).folder
    with pytest.raises(Refused, match="--links needs attention to the source"):
        finish(evaluate(run, device="cpu", links=tmp_path / "links"))
    finish(evaluate(run, device="cpu"))
