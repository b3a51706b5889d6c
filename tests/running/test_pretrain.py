"""The task pretrain on the command line: train, resume, evaluate, predict, show, start from it."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from heed.answers.hidden import Hidden, HiddenObjective, HiddenWords
from heed.data.batches import Batch
from heed.data.permutation import sees
from heed.models.text_settings import BertSettings
from heed.running.opening import open_run
from heed.running.preparing import examples_of
from heed.running.recipe import load, resolve, with_attention
from heed.running.train import onward
from heed.running.walking import walk
from heed.storage import tensors
from heed.storage.run_folder import RunFolder
from heed.tasks.pretrain import TASK, build
from heed.tasks.task import Codec
from heed.training.settings import Training
from heed.viewing.layers import Layer
from tests.running.small import Server, write_recipe

TOPICS = "abcdefghijkl"
BERT = {"kind": "bert", "size": "tiny", "layers": 2, "width": 48, "heads": 3, "longest": 24}
XLNET = {"kind": "xlnet", "size": "tiny", "layers": 1, "width": 16, "heads": 2}
BLIND = {"blind": "uniform"}  # as published: some rows are so short that a query sees nothing
STILL = {"dropout": 0.0, "attention_dropout": 0.0, "initial": 0.1}


def topical(documents: int, seed: int) -> str:
    """Each document has one topic, and its sentences use words of that topic: so next sentences and
    hidden words can be predicted from the words around them."""
    draw = random.Random(seed)

    def sentence(topic: str) -> str:
        words = (f"{topic}{draw.randint(1, 4)}" for _ in range(draw.randint(2, 4)))
        return f"{' '.join(words)} ."

    found = (
        [sentence(TOPICS[d % len(TOPICS)]) for _ in range(draw.randint(3, 6))]
        for d in range(documents)
    )
    return "\n\n".join("\n".join(document) for document in found) + "\n"


def small(folder: Path, model: dict[str, Any], objective: dict[str, Any], **changes: Any) -> Path:
    """A recipe of a few steps, and its text beside it."""
    (folder / "train.txt").write_text(topical(240, 0))
    (folder / "valid.txt").write_text(topical(36, 1))
    data = {"folder": str(folder), "train": "train.txt", "valid": "valid.txt", "longest": 24}
    training = {
        "steps": 12,
        "batch_tokens": 300,
        "rate": 0.003,
        "warmup": 2,
        "schedule": "cosine",
        "validate_every": 6,
        "save_every": 3,
        "log_every": 3,
        "deterministic": True,
    }
    raw = {
        "task": "pretrain",
        "data": {**data, "tokens": {"kind": "word", "size": 200}, **changes.pop("data", {})},
        "objective": objective,
        "model": {**STILL, **model},
        "training": training | changes,
    }
    return write_recipe(folder, raw)


@pytest.fixture(scope="module")
def learnt(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trained BERT."""
    folder = tmp_path_factory.mktemp("learnt")
    long = {"steps": 240, "batch_tokens": 768, "validate_every": 120, "save_every": 120}
    recipe = small(folder, BERT, {"kind": "masked"}, **long, warmup=20)
    done = server.run("train", recipe, "--run", folder / "run")
    assert done.code == 0, done.err
    assert "valid text:" in done.err + done.out
    return folder / "run"


@pytest.fixture(scope="module")
def ordered(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An XLNet after a few steps, without validation data."""
    folder = tmp_path_factory.mktemp("ordered")
    data = {"valid": None, "held_out": {"share": 0.1}, "tokens": {"kind": "unigram", "size": 90}}
    recipe = small(folder, {**XLNET, **BLIND}, {"kind": "permutation"}, data=data, rate=0.01)
    done = server.run("train", recipe, "--run", folder / "run")
    assert done.code == 0, done.err
    return folder / "run"


def test_it_learns_from_context_and_predicts_next_sentences(learnt: Path) -> None:
    scores = json.loads((learnt / "scores.json").read_text())["scores"]["valid"]
    assert scores["unigram_loss"] > 3.0
    assert scores["loss"] < 0.5 * scores["unigram_loss"]
    assert scores["follows_accuracy"] >= 90
    told = [json.loads(line) for line in (learnt / "metrics.jsonl").read_text().splitlines()]
    trained = [entry for entry in told if "train/nll" in entry]
    for entry in trained:
        whole = entry["train/nll"] + entry["train/follows"]
        assert entry["train/loss"] == pytest.approx(whole, rel=1e-5)
    valid = [entry for entry in told if "valid/loss" in entry]
    assert valid[-1]["valid/loss"] < valid[0]["valid/loss"]
    assert "[MASK]" in (learnt / "samples/step-0000240.txt").read_text()
    assert (learnt / "samples/step-0000240.svg").exists()


def test_masks_are_filled_and_pairs_are_classified(server: Server, learnt: Path) -> None:
    lines = learnt.parent / "lines.txt"
    lines.write_text("a1 a2 [MASK] a4 .\n\nb1 b2 .\tb3 [MASK] .\nb1 b2 b4 .\tc1 c3 c2 .\nno mask\n")
    done = server.run("predict", learnt, lines, "--json")
    assert done.code == 0, done.err
    first, blank, same, other, plain = map(json.loads, done.out.splitlines())
    assert first["words"][0][0]["word"].startswith("a")
    assert first["text"] == f"a1 a2 {first['words'][0][0]['word']} a4 ."
    assert blank["text"] == ""
    assert same["follows"] > 0.5 > other["follows"]
    assert same["words"][0][0]["word"].startswith("b")
    assert plain["text"] == "no mask"
    done = server.run("predict", learnt, lines, "--best", "2")
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 5
    text, named = done.out.splitlines()[0].split("\t")
    assert text == first["text"]
    assert named.count(",") == 1
    refused = server.run("predict", learnt, lines, "--method", "beam")
    assert refused.code == 2
    assert "--method is not for runs of the task pretrain" in refused.err


def test_a_mean_over_heads_is_labelled_as_one() -> None:
    heads = {f"{n}.self": np.full((count, 2, 2), 0.5) for n, count in enumerate((4, 1))}
    layers = {path: Layer.of(f"layer {path[0]}", weight, "ab") for path, weight in heads.items()}
    lead = HiddenWords.lead(None, None, None, layers)  # type: ignore[arg-type]
    assert [panel.title for panel in lead.panels] == ["layer 0 · mean of 4 heads", "layer 1"]


def test_masks_that_were_not_read_are_reported(server: Server, learnt: Path) -> None:
    lines = learnt.parent / "long.txt"
    lines.write_text(f"{'a1 a2 ' * 15}[MASK] .\na1 [MASK] .\n")
    done = server.run("predict", learnt, lines)
    assert done.code == 0, done.err
    said = [line for line in done.err.splitlines() if "not read" in line]
    assert said == ["heed: line 1: the last 10 symbols were not read: the model's limit is reached"]


def test_a_mask_can_be_walked_to_as_it_was_typed(learnt: Path) -> None:
    for at in ("[MASK]", "<mask>", "mask"):
        (told,) = walk(learnt, ["a1 [MASK] a2"], at=at, device="cpu")
        assert told.title.startswith("<mask> · position 2 · ")


def test_a_run_is_evaluated_on_its_own_data_and_on_files(server: Server, learnt: Path) -> None:
    kept = server.run("evaluate", learnt, "--json")
    assert kept.code == 0, kept.err
    lines = learnt.parent / "lines.jsonl"
    lines.write_text('{"text": "a1 a2 .\\na3 a4 ."}\n')
    file = server.run("evaluate", learnt, learnt.parent / "valid.txt", lines, "--json")
    assert file.code == 0, file.err
    for out in (kept.out, file.out):
        scores = json.loads(out)
        scores = scores.get("scores", scores)
        assert scores["follows_accuracy"] >= 90
        assert scores["words"] > 100
    page = learnt.parent / "page.html"
    shown = server.run("show", learnt, "a1 [MASK] a2", "--html", page)
    assert shown.code == 0, shown.err
    assert "layer 1" in page.read_text()
    names = re.findall("<dt>([^<]*)</dt>", page.read_text())
    assert names[:2] == ["Text", "Answer"]  # no translation


def test_hidden_words_are_compared_with_frequencies_in_the_training_text(
    server: Server, learnt: Path, tmp_path: Path
) -> None:
    """Of a text of one word: by its own frequencies it would be no surprise at all."""
    (tmp_path / "short.txt").write_text("a1\na1\n\na1\na1\n")
    done = server.run("evaluate", learnt, tmp_path / "short.txt", "--json")
    assert done.code == 0, done.err
    scores = json.loads(done.out)
    counts = Counter((learnt.parent / "train.txt").read_text().split())
    by_hand = -math.log(counts["a1"] / counts.total())
    assert scores["unigram_loss"] == pytest.approx(by_hand, abs=0.05)  # some pieces never occur
    assert scores["words_entropy"] == 0
    told = server.run("evaluate", learnt, tmp_path / "short.txt")
    assert re.search(r"unigram loss .*from word frequencies in the training text", told.out)


def test_without_frequencies_of_the_training_text_the_entropy_is_reported(
    server: Server, learnt: Path, tmp_path: Path
) -> None:
    older = shutil.copytree(learnt, tmp_path / "older")
    (older / "frequencies.json").unlink()
    RunFolder(older).seal()
    done = server.run("evaluate", older)
    assert done.code == 0, done.err
    assert "unigram" not in done.out
    assert re.search(r"entropy of these words .*are unknown", done.out)
    first, *others = json.loads((learnt / "frequencies.json").read_text())
    endless = json.dumps([first + 10**30, *others])
    for spoilt in ("[1, 2]", "{}", "[" * 1000, "[-1" + ", 1" * 200 + "]", endless):
        (older / "frequencies.json").write_text(spoilt)
        RunFolder(older).seal()
        refused = server.run("evaluate", older)
        assert (refused.code, refused.out) == (2, "")
        assert re.fullmatch("heed: .*frequencies.json .*", refused.err.splitlines()[-1])


def test_writing_answers_is_refused(server: Server, learnt: Path, tmp_path: Path) -> None:
    """Before anything is read."""
    done = server.run("evaluate", learnt, "--out", tmp_path / "out")
    assert "--out is not for runs of the task pretrain" in done.refused()


def test_an_xlnet_holds_documents_out_and_fills_masks(server: Server, ordered: Path) -> None:
    scores = json.loads((ordered / "scores.json").read_text())["scores"]["valid"]
    assert scores["follows_accuracy"] is None
    told = [json.loads(line) for line in (ordered / "metrics.jsonl").read_text().splitlines()]
    valid = [entry["valid/loss"] for entry in told if "valid/loss" in entry]
    assert valid[-1] < valid[0]
    lines = ordered.parent / "lines.txt"
    lines.write_text("a1 [MASK] .\n")
    done = server.run("predict", ordered, lines, "--json")
    assert done.code == 0, done.err
    assert len(json.loads(done.out)["words"]) == 1


def test_an_xlnet_that_is_asked_to_continue_names_the_conversion(
    server: Server, ordered: Path
) -> None:
    said = server.run("predict", ordered, "-", "--samples", "3").err
    assert "--samples is for continuing texts" in said
    assert f"heed convert {ordered} FOLDER" in said
    said = server.run("predict", ordered, "-", "--text", "1").err
    assert "--text is not for runs of the task pretrain" in said


def test_an_xlnet_reads_two_texts_as_one_with_a_remark(server: Server, ordered: Path) -> None:
    """Nor is a line an answer that has nothing to be filled in."""
    theirs = ordered.parent / "of pairs"
    assert server.run("convert", ordered, theirs).code == 0
    lines = ordered.parent / "pairs.txt"
    lines.write_text("a1 a2 .\tb1 [MASK] .\na1 .\tb1 .\na1 .\na1 [MASK] .\n\n")
    joined = "both texts are read as one: this model was not trained on pairs of texts"
    nothing = "the line has no [MASK], so nothing is filled in"
    for path in (ordered, theirs):
        done = server.run("predict", path, lines)
        assert done.code == 0, done.err
        assert len(done.out.splitlines()) == 5
        assert done.err.splitlines() == [
            f"heed: line 1: {joined}",
            f"heed: line 2: {joined}; {nothing}",
            f"heed: line 3: {nothing}",
        ]


def test_an_xlnet_keeps_its_task_through_a_conversion(server: Server, ordered: Path) -> None:
    theirs, back = ordered.parent / "there", ordered.parent / "back"
    assert server.run("convert", ordered, theirs).code == 0
    assert server.run("convert", theirs, back).code == 0
    lines = ordered.parent / "masks.txt"
    lines.write_text("a1 [MASK] .\nb1 <mask> b3 [MASK]\n")
    told = [server.run("predict", path, lines, "--best", "3") for path in (ordered, theirs, back)]
    assert all(done.code == 0 for done in told), told
    assert told[0].out == told[1].out == told[2].out
    assert "a1 " in told[0].out


@pytest.mark.parametrize(
    ("model", "objective", "several"),
    [(BERT, {"kind": "masked"}, True), (XLNET, {"kind": "permutation"}, False)],
    ids=["bert", "xlnet"],
)
def test_a_stopped_run_resumes_to_the_same_weights(
    server: Server, tmp_path: Path, model: dict[str, Any], objective: dict[str, Any], several: bool
) -> None:
    recipe = small(tmp_path, model, objective, steps=6)
    (tmp_path / "more.tsv").write_text("0\tm1 m2 .\n1\tm2 m3 .\n")
    (tmp_path / "more.jsonl").write_text('{"s": ["n1 n2 .", "n3 ."]}\n')
    table, lines = "{text: more.tsv, column: 1, lines: apart}", "{jsonl: more.jsonl, key: s}"
    changes = [f"data.train=[train.txt, {table}, {lines}]"] * several
    whole = server.run("train", recipe, *changes, "--run", tmp_path / "whole")
    assert whole.code == 0, whole.err
    if several:
        told = "more.tsv: 2 sentences read = 2 kept + 0 dropped; 2 documents"
        assert f"training text, {told}" in whole.err + whole.out
        assert "together: " in whole.err + whole.out
        tokens = (tmp_path / "whole/tokenizer.json").read_text()
        assert all(f'{word}"' in tokens for word in ("a1", "m2", "n3"))
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut/checkpoints/step-6")
    on = server.run("train", tmp_path / "cut", "--resume")
    assert on.code == 0, on.err
    assert "resuming from step 3" in on.err + on.out
    one, two = (
        tensors.read(tmp_path / name / "checkpoints/step-6/model.safetensors")
        for name in ("whole", "cut")
    )
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_classifier_can_start_from_a_pretraining(server: Server, learnt: Path) -> None:
    asked = (f"predict {learnt} FILE", f"show {learnt}", f"train RECIPE --from {learnt}")
    assert onward(learnt) == [*asked]
    folder = learnt.parent
    rows = "".join(f"{i % 2}\t{'a1 a2' if i % 2 else 'b3 b1'} .\n" for i in range(40))
    (folder / "labels.tsv").write_text(rows)
    encoder = {**BERT, **STILL}
    raw = {
        "task": "classify",
        "data": {"folder": str(folder), "train": {"tsv": "labels.tsv"}, "longest": 24}
        | {"valid": {"tsv": "labels.tsv"}},
        "model": {"encoder": encoder, "pool": "first", "dropout": 0},
        "training": {"steps": 1, "rate": 1e-9, "warmup": 0, "batch_tokens": 100},
    }
    recipe = write_recipe(folder, raw)
    done = server.run("train", recipe, "--run", folder / "fine", "--from", learnt)
    assert done.code == 0, done.err
    assert "taken from" in done.err + done.out
    before, after = (tensors.read(run / "model.safetensors") for run in (learnt, folder / "fine"))
    same = [name for name in after if name.startswith("encoder.")]
    assert len(same) > 10
    for name in same:
        assert torch.allclose(after[name], before[name], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.longest=600", "set model.longest=600"),
        ("objective.kind=permutation", "is for xlnet"),
        ("model.attention=additiv", "additive"),
        ("data.train=[train.txt,missing.jsonl]", "missing.jsonl: No such file"),
        ("objective.masked=0.95", "add up to more than 1"),
        ("objective.share=2", "objective.share"),
        ("data.valid=null data.held_out.share=0", "data.valid is missing"),
    ],
)
def test_bad_recipes_are_refused(server: Server, tmp_path: Path, change: str, message: str) -> None:
    recipe = small(tmp_path, BERT, {"kind": "masked"})
    done = server.run("train", recipe, *change.split(), "--run", tmp_path / "run")
    assert done.code == 2, done.err
    assert message in done.err
    assert "Traceback" not in done.err


def test_a_text_of_one_document_has_no_next_sentences(server: Server, tmp_path: Path) -> None:
    recipe = small(tmp_path, BERT, {"kind": "masked"})
    (tmp_path / "train.txt").write_text("a1 a2 .\na3 a4 .\n")
    done = server.run("train", recipe, "--run", tmp_path / "run")
    assert done.code == 2, done.err
    assert "two documents at least" in done.err


@torch.no_grad()
def test_the_objective_is_the_mean_over_words_plus_the_mean_over_pairs() -> None:
    torch.manual_seed(0)
    model: Any = build(BertSettings(**BERT, **STILL), Hidden(), symbols=30, longest=24)
    text = torch.randint(4, 30, (4, 9))
    text[3] = 0
    labels = torch.tensor([[5, 6, 0], [7, 0, 0], [8, 9, 10], [0, 0, 0]])
    places = torch.tensor([[1, 2, 0], [3, 0, 0], [1, 4, 5], [0, 0, 0]])
    follows = torch.tensor([[1], [2], [2], [0]])
    tokens = {"text": text, "segments": torch.zeros_like(text), "places": places}
    lengths = torch.tensor([9, 9, 9, 1])
    batch = Batch(
        {**tokens, "labels": labels, "follows": follows}, {"text": lengths}, torch.arange(4)
    )
    objective = HiddenObjective(Training(steps=1))
    loss = objective(model, batch)
    said = model(text, lengths, torch.zeros_like(text))
    logits = said.words.form()
    words = [cross_entropy(logits[b, places[b, k]], labels[b, k]) for b, k in labels.nonzero()]
    pairs = cross_entropy(said.follows[:3], torch.tensor([0, 1, 1]))
    count = objective.count(batch)
    assert count == 6
    assert float(loss.total) / count == pytest.approx(float(torch.stack(words).mean() + pairs))
    assert float(loss.parts["follows"]) / count == pytest.approx(float(pairs))


def batch_of(run: Path) -> tuple[Any, Batch]:
    """The model of a run, and some rows of its training data."""
    opened = open_run(run, torch.device("cpu"))
    codec = Codec(opened.worker.inputs, opened.worker.form)
    documents = list(examples_of(TASK, codec, opened.folder, "valid"))
    made = opened.worker.form.coded(opened.worker, documents)
    return opened.worker.model.eval(), next(made.epoch(0))


@torch.no_grad()
def test_the_loss_of_bert_equals_transformers(server: Server, learnt: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = learnt.parent / "theirs"
    done = server.run("convert", learnt, folder)
    assert done.code == 0, done.err
    theirs = transformers.BertForPreTraining.from_pretrained(folder).eval()
    model, batch = batch_of(learnt)
    objective = HiddenObjective(Training(steps=1))
    ours = float(objective(model, batch).total) / objective.count(batch)
    tokens = batch.tokens
    labels = torch.full_like(tokens["text"], -100)
    for b, k in tokens["labels"].nonzero():
        labels[b, tokens["places"][b, k]] = tokens["labels"][b, k]
    said = theirs(
        input_ids=tokens["text"],
        attention_mask=(tokens["text"] != 0).long(),
        token_type_ids=tokens["segments"],
        labels=labels,
        next_sentence_label=tokens["follows"][:, 0] - 1,
    )
    assert ours == pytest.approx(float(said.loss), rel=1e-6)


@torch.no_grad()
def test_the_loss_of_xlnet_equals_transformers(server: Server, ordered: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = ordered.parent / "theirs"
    done = server.run("convert", ordered, folder)
    assert done.code == 0, done.err
    theirs = transformers.XLNetLMHeadModel.from_pretrained(folder).eval()
    model, batch = batch_of(ordered)
    objective = HiddenObjective(Training(steps=1))
    ours = float(objective(model, batch).total) / objective.count(batch)
    tokens = batch.tokens
    sights = torch.from_numpy(sees(tokens["order"].numpy(), tokens["predicted"].numpy()))
    places, T = tokens["places"], tokens["text"].shape[1]
    mapping = torch.nn.functional.one_hot(places.clamp(min=0), T).float()
    said = theirs(
        input_ids=tokens["text"],
        attention_mask=(tokens["text"] != 0).float(),
        perm_mask=(~sights).float(),
        target_mapping=mapping * (places >= 0)[..., None],
        labels=torch.where(tokens["labels"] == 0, -100, tokens["labels"]),
    )
    assert ours == pytest.approx(float(said.loss), rel=1e-6)


@pytest.mark.parametrize("name", ["bert-mini", "bert-reviews", "xlnet-mini"])
def test_ready_recipes_can_be_built(name: str) -> None:
    recipe = resolve(load(name))
    TASK.check(recipe)
    TASK.check(resolve(with_attention(load(name), "additive")))
