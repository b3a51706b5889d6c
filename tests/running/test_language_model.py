"""The task language-model on the command line: train, resume, evaluate, predict, show."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from heed.answers.continuation import Continuation, Continued, Decoding, NextSymbol
from heed.answers.continuation_scores import LanguageScores, PredictedText
from heed.answers.form import Example
from heed.answers.memories import Remembering
from heed.data.cache import Corpus
from heed.data.kinds.text import escaped, unescaped
from heed.data.packed_rows import PackedRows
from heed.data.verbatim import Verbatim
from heed.errors import Refused
from heed.events import finish
from heed.models.written import Written
from heed.models.xlnet_settings import XLNetSettings
from heed.running import predict as predicting
from heed.running.compare import Cell, columns
from heed.running.evaluate import evaluate
from heed.running.learner import Trained
from heed.running.opening import open_run
from heed.running.predict import predict
from heed.running.recipe import load, resolve
from heed.running.validating import Validated
from heed.storage import tensors
from heed.tasks.language_model import TASK, build
from heed.training.settings import Training
from tests.running.small import Server, write_recipe

LINES = ["the cat sat on the mat.", "a dog came, too!", "and the cat ran away.", ""]
TEXT = "".join(f"{line}\n" for _ in range(30) for line in LINES)
GPT = {"kind": "gpt2", "layers": 2, "width": 16, "heads": 2, "longest": 16, "dropout": 0.1}
LSTM = {"kind": "recurrent-language", "embedding": 8, "hidden": 16, "layers": 1, "dropout": 0.1}


def small(folder: Path, model: dict[str, Any], **changes: Any) -> Path:
    """A recipe of twenty steps, and its text beside it."""
    (folder / "input.txt").write_text(TEXT)
    training = {
        "steps": 20,
        "batch_tokens": 128,
        "rate": 0.02,
        "warmup": 2,
        "schedule": "cosine",
        "validate_every": 10,
        "save_every": 5,
        "log_every": 5,
        "deterministic": True,
    }
    data = {"folder": str(folder), "train": "input.txt", "context": 16}
    raw = {
        "task": "language-model",
        "data": {**data, **changes.pop("data", {})},
        "model": model,
        "training": training | changes,
        "decoding": {"longest": 30, "temperature": 0.5},
    }
    return write_recipe(folder, raw)


@pytest.fixture(scope="module")
def runs(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run of each kind, trained once and only read."""
    found = {}
    for name, model in (("gpt", GPT), ("lstm", LSTM)):
        folder = tmp_path_factory.mktemp(name)
        done = server.run("train", small(folder, model), "--run", folder / "run")
        assert done.code == 0, done.err
        assert "training text: 1,728 symbols" in done.err + done.out
        found[name] = folder / "run"
    return found


@pytest.mark.parametrize("name", ["gpt", "lstm"])
def test_a_run_learns_and_keeps_what_it_was_judged_by(runs: dict[str, Path], name: str) -> None:
    told = [json.loads(line) for line in (runs[name] / "metrics.jsonl").read_text().splitlines()]
    valid = [entry["valid/loss"] for entry in told if "valid/loss" in entry]
    assert len(valid) == 2
    assert valid[1] < valid[0] < 3.5
    scores = json.loads((runs[name] / "scores.json").read_text())["scores"]["valid"]
    assert scores["loss"] == pytest.approx(min(valid), rel=1e-5)
    assert scores["symbols"] == scores["characters"] == 191
    assert scores["bits_per_character"] == pytest.approx(scores["loss"] / 0.693147, rel=1e-4)
    assert (runs[name] / "samples/step-0000020.txt").stat().st_size
    assert (runs[name] / "samples/step-0000020.svg").exists() == (name == "gpt")


@pytest.mark.parametrize("model", [GPT, LSTM], ids=["gpt", "lstm"])
def test_it_resumes_exactly(
    server: Server, runs: dict[str, Path], model: dict[str, Any], tmp_path: Path
) -> None:
    """Without its last checkpoints, a run arrives at the same weights again."""
    name = "gpt" if model is GPT else "lstm"
    shutil.copytree(runs[name], tmp_path / "run")
    for step in (15, 20):
        shutil.rmtree(tmp_path / f"run/checkpoints/step-{step}")
    done = server.run("train", tmp_path / "run", "--resume")
    assert done.code == 0, done.err
    assert "resuming from step 10" in done.err + done.out
    again = tensors.read(tmp_path / "run/checkpoints/step-20/model.safetensors")
    for key, weight in tensors.read(runs[name] / "checkpoints/step-20/model.safetensors").items():
        assert weight.equal(again[key]), key


@pytest.mark.parametrize("name", ["gpt", "lstm"])
def test_evaluate(server: Server, runs: dict[str, Path], name: str, tmp_path: Path) -> None:
    kept = json.loads((runs[name] / "scores.json").read_text())["scores"]["valid"]
    done = server.run("evaluate", runs[name], "--json")
    assert json.loads(done.out) == pytest.approx(kept)
    assert "bits per character" in server.run("evaluate", runs[name]).out
    (tmp_path / "other.txt").write_text("☃ sat on the mat.\n")
    other = json.loads(server.run("evaluate", runs[name], tmp_path / "other.txt", "--json").out)
    assert (other["symbols"], other["unknown"]) == (17, 0)  # the first is not predicted
    (tmp_path / "one.txt").write_text("")
    assert (
        "nothing to predict" in server.run("evaluate", runs[name], tmp_path / "one.txt").refused()
    )


@pytest.mark.parametrize("name", ["gpt", "lstm"])
def test_predict_answers_every_line(
    server: Server, runs: dict[str, Path], name: str, tmp_path: Path
) -> None:
    lines = ["the cat", "", "a dog came, too!\\nand the", "☃"]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    done = server.run("predict", runs[name], tmp_path / "in.txt")
    assert done.code == 0, done.err
    found = done.out.split("\n")
    assert len(found) == 5
    assert all(line for line in found[:-1])
    (tmp_path / "one.txt").write_text(f"{lines[2]}\n")
    assert server.run("predict", runs[name], tmp_path / "one.txt").out == f"{found[2]}\n"
    assert ("exceeds the model's positions" in done.err) == (name == "gpt")
    told = server.run("predict", runs[name], tmp_path / "in.txt", "--json", "--method", "greedy")
    answers = [json.loads(line) for line in told.out.splitlines()]
    assert answers[2]["prompt"] == "a dog came, too!\nand the"
    assert [each["answers"][0]["slid"] for each in answers] == [name == "gpt"] * 4
    refused = server.run("predict", runs[name], tmp_path / "in.txt", "--temperature", "0")
    assert "temperature" in refused.refused()


def test_a_prompt_that_is_too_long_is_continued_at_its_end(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicting, "LONGEST", 9)
    (tmp_path / "in.txt").write_text("a dog came, and the cat\nd the cat\n")
    long, end = predict(runs["lstm"], str(tmp_path / "in.txt"), device="cpu", method="greedy")
    assert long.line() == end.line() != ""
    assert long.as_data() == {**end.as_data(), "characters": 23}
    assert long.remark == "only the last 9 of 23 characters were read"


def test_a_page_distinguishes_prompt_and_continuation(
    server: Server, runs: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("a dog came!\\nand\n\n")
    told = ("--json", "--longest", "3", "--html", tmp_path / "page.html")
    done = server.run("predict", runs["gpt"], tmp_path / "in.txt", *told)
    first, blank = (json.loads(line)["answers"][0]["text"] for line in done.out.splitlines())
    page = (tmp_path / "page.html").read_text()
    facts = re.findall(r"<dt>(.*?)</dt><dd( class=\"answer\")? dir=auto>(.*?)</dd>", page)
    answer, plain, likeliest = ' class="answer"', "", "Predicted next symbol at each position"
    first, blank = (html.escape(text.replace("\n", "↵")) for text in (first, blank))
    assert facts[0] == ("Prompt", plain, "a dog came!↵and")
    assert facts[1] == ("Written", answer, first)
    assert facts[2][:2] == facts[4][:2] == (likeliest, plain)
    assert facts[3] == ("Written", answer, blank)  # a continuation of an empty prompt
    server.run("show", runs["gpt"], "the\\ncat", "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<dt>Text</dt><dd dir=auto>the↵cat</dd>" in page
    assert f"<dt>{likeliest}</dt><dd dir=auto>" in page


def test_a_validation_says_what_its_sample_is() -> None:
    said = Continuation.brief(None, Continued("", "Het the\nthore"))  # type: ignore[arg-type]
    assert Validated(2.5, {}, f"loss 2.5000 · {said}").line() == (
        "validation loss 2.5000 · sample: Het the\\nthore"
    )


def test_samples_and_overlap(runs: dict[str, Path], tmp_path: Path) -> None:
    """Called from Python."""
    (tmp_path / "in.txt").write_text("the cat\n\n")
    file, how = str(tmp_path / "in.txt"), {"device": "cpu", "longest": 5, "temperature": 2.0}
    found = list(predict(runs["gpt"], file, samples=3, **how))
    assert [len(each.line().split("\t")) for each in found] == [3, 3]
    assert all(len(one.written) <= 5 for each in found for one in each.found)
    alone = next(iter(predict(runs["gpt"], file, **how)))
    assert alone.found[0].written == found[0].found[0].written
    with pytest.raises(Refused, match="--samples 2"):
        list(predict(runs["gpt"], file, best=2, method="sample", device="cpu"))
    with pytest.raises(Refused, match="give one"):
        list(predict(runs["gpt"], file, best=2, samples=2, device="cpu"))
    for asked in ({"best": 2}, {"samples": 2}):  # neither error suggests the other
        with pytest.raises(Refused, match="greedy search has one answer") as refused:
            list(predict(runs["gpt"], file, method="greedy", device="cpu", **asked))
        assert "--samples" not in str(refused.value)
    plain, closer = (
        finish(evaluate(runs["gpt"], "valid", device="cpu", overlap=n)).scores for n in (0, 12)
    )
    assert (closer.symbols, closer.overlap) == (plain.symbols, 12)
    assert closer.loss != plain.loss
    with pytest.raises(Refused, match="--width is not for"):
        finish(evaluate(runs["gpt"], "valid", device="cpu", width=3))


def test_a_text_of_one_symbol_is_scored_with_the_others(runs: dict[str, Path]) -> None:
    """It has no symbol to predict, hence no loss, and its answer is a blank line."""
    run = open_run(runs["lstm"], torch.device("cpu"))

    def scored(*texts: str) -> Any:
        examples = [Example((text,), True) for text in texts]
        return finish(TASK.evaluated(run.worker, examples, run.config, {}, "reading"))

    found = scored("t", "the cat sat")
    assert found.scores.symbols == 10
    blank, loss = found.answers()
    assert (blank, float(loss)) == ("", pytest.approx(found.scores.loss, abs=1e-6))
    with pytest.raises(Refused, match="nothing to predict"):
        scored("t", "c")


def test_show(server: Server, runs: dict[str, Path], tmp_path: Path) -> None:
    done = server.run("show", runs["gpt"], "the cat")
    assert done.code == 0, done.err
    assert done.out.startswith("the cat → predicted next symbol at each position: ")
    assert "layer 1 · head 1" in done.out
    assert "█" in done.out
    done = server.run("show", runs["gpt"], "the cat", "--heads")
    assert "weights in %" in done.out
    done = server.run("show", runs["gpt"], "the cat" * 9)
    assert "only the last 16 symbols are read" in done.out
    done = server.run("show", runs["gpt"], "--html", tmp_path / "page.html")
    assert done.code == 0, done.err
    page = (tmp_path / "page.html").read_text()
    assert '"name":"layer 1"' in page
    for one, other, side in (("gpt", "lstm", "run (2)"), ("lstm", "gpt", "run")):
        given = ("--beside", runs[other], "--html", tmp_path / "both.html")
        done = server.run("show", runs[one], "the cat", *given)
        assert done.out.endswith(f" MB; {side}: no attention to show\n"), done
        assert f"{side}: no attention to show" in (tmp_path / "both.html").read_text()
    done = server.run("show", runs["lstm"], "the cat")
    assert "no attention" in done.out
    assert "no attention" in server.run("show", runs["lstm"], "--svg", tmp_path / "a.svg").refused()
    walk = server.run("show", runs["lstm"], "the cat", "--walk")
    assert walk.refused() == "heed: this model has no attention to walk through\n"


def test_another_attention_by_name(server: Server, tmp_path: Path) -> None:
    recipe = small(tmp_path, {**GPT, "layers": 1}, steps=3)
    done = server.run("train", recipe, "--attention", "additive", "--run", tmp_path / "run")
    assert done.code == 0, done.err
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["model"]["attention"] == "additive"
    refused = server.run("train", small(tmp_path, LSTM), "--attention", "dot").refused()
    assert "no attention to replace" in refused


def test_a_row_of_a_comparison(runs: dict[str, Path]) -> None:
    scores = {"valid": LanguageScores.of([PredictedText(2.0, 4, 4, 4, 0)], context=8)}
    trained = Trained(runs["gpt"], 99, 20, 1.5, 1e4, scores)
    row = Cell("cosine", trained, 12.0).row(TASK)
    assert len(row) == len(columns(TASK))
    assert row[:3] == ["cosine", 0.5, pytest.approx(1.6487, rel=1e-4)]


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (GPT, {"context": 17}, "set model.longest=17"),
        (GPT, {"train": "none.txt"}, "cannot read"),
        (GPT, {"tokens": {"kind": "byte-bpe", "size": 100}}, "260 symbols or more"),
        ({**GPT, "wdith": 3}, {}, "did you mean 'model.width'"),
        (LSTM, {"context": 10_000}, "too few for a row"),
        (LSTM, {"held_out": 0.0005}, "hold more out"),
        ({**LSTM, "tied": True}, {}, "must agree"),
        ({**GPT, "attention": "local-p"}, {}, "does not know"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    server: Server, tmp_path: Path, model: dict[str, Any], data: dict[str, Any], message: str
) -> None:
    recipe = small(tmp_path, model, data=data)
    done = server.run("train", recipe, "--run", tmp_path / "run")
    assert (done.code, done.out) == (2, ""), done
    *before, last = done.err.splitlines()
    assert last.startswith("heed: "), done
    assert message in last
    assert not any(line.startswith(("heed", "Trace")) for line in before)


def test_documents_and_bytes(server: Server, tmp_path: Path) -> None:
    """Several files, byte-level pieces, separate test data: bits per byte, not per symbol."""
    for name in ("a", "c"):
        (tmp_path / f"{name}.txt").write_text(TEXT.replace("cat", "猫"))
    documents = [TEXT, "", "a 猫\n"]
    lines = "".join(json.dumps({"text": document}) + "\n" for document in documents)
    (tmp_path / "b.jsonl").write_text(lines)
    data = {"train": ["a.txt", "b.jsonl"], "valid": "c.txt", "test": "c.txt"}
    data |= {"tokens": {"kind": "byte-bpe", "size": 300}}
    recipe = small(tmp_path, LSTM, data=data, steps=4)
    done = server.run("train", recipe, "--run", tmp_path / "run")
    assert done.code == 0, done.err
    scores = json.loads((tmp_path / "run/scores.json").read_text())["scores"]["test"]
    assert scores["symbols"] < scores["characters"]
    assert scores["bits_per_byte"] < scores["bits_per_character"]
    stream = Corpus.open(tmp_path / "run/cache", "train").tokens["text"]
    assert (stream == 3).sum() == 2  # ends between the three documents that are not blank
    assert "b.jsonl: 3 documents read = 2 kept + 1 dropped (1 blank)" in done.err + done.out
    found = Verbatim.load(tmp_path / "run/tokenizer.json")
    parts = np.split(stream, np.flatnonzero(stream == 3) + 1)
    assert [found.decode(part) for part in parts] == [TEXT.replace("cat", "猫"), TEXT, "a 猫\n"]


def test_symbol_0_is_learnt_and_padding_is_not() -> None:
    stream = np.array([0, 3, 0, 0, 2, 0, 1, 0, 0], np.int64)
    objective = NextSymbol(Training(steps=1, batch_tokens=8))
    (batch,) = PackedRows(stream, length=4, rows=3, seed=1, shuffle=False, fixed=True).epoch(0)
    assert batch.rows.tolist() == [0, 4, -1]
    assert objective.count(batch) == 8
    torch.manual_seed(1)
    table = torch.randn(2 + 2, 4)
    loss = objective(lambda text: Written(table[text]), batch)
    expected = torch.nn.functional.cross_entropy(
        table[torch.from_numpy(stream[:-1])], torch.from_numpy(stream[1:]), reduction="sum"
    )
    torch.testing.assert_close(loss.total, expected)


def test_xlnet_reads_from_left_to_right(server: Server, tmp_path: Path) -> None:
    """With memories passed on; without its last checkpoints, a run arrives at the same again."""
    model = {"kind": "xlnet", "layers": 2, "width": 16, "heads": 2, "feed": 32, "dropout": 0.0}
    recipe = small(tmp_path, model, data={"memory": 24})
    done = server.run("train", recipe, "--run", tmp_path / "run")
    assert done.code == 0, done.err
    last = tmp_path / "run/checkpoints/step-20"
    saved = tensors.read(last / "model.safetensors")
    for step in (15, 20):
        shutil.rmtree(last.with_name(f"step-{step}"))
    assert "resuming from step 10" in server.run("train", tmp_path / "run", "--resume").err
    again = tensors.read(last / "model.safetensors")
    assert all(weight.equal(again[key]) for key, weight in saved.items())
    rows = [json.loads(x) for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    losses = [row["valid/loss"] for row in rows if "valid/loss" in row]
    assert losses[-1] < losses[0]
    run = open_run(tmp_path / "run", torch.device("cpu"))
    assert run.config.build().streams.causal
    # A text read in one pass is as likely as when it is written step by step.
    choice = Decoding(method="greedy", longest=8)
    ((found,),) = run.worker.answers([("the cat",)], choice)
    assert not found.ended
    texts = [Example((text,), True) for text in ("the cat" + found.written, "the cat")]
    read, before = run.worker.read(texts)
    assert before.nats - found.log_prob == pytest.approx(read.nats, rel=1e-4)
    (tmp_path / "prompts.txt").write_text("the\n\na dog came\n")
    done = server.run("predict", tmp_path / "run", tmp_path / "prompts.txt", "--longest", "20")
    assert (done.code, done.out.count("\n")) == (0, 3), done.err


@torch.no_grad()
def test_consecutive_rows_with_memories_equal_one_long_row() -> None:
    """Memories replace the symbols that would have been read: Dai 2019 §3.2, in a forward pass."""
    torch.manual_seed(0)
    sizes = {"layers": 2, "width": 16, "heads": 2, "feed": 32, "initial": 0.3, "memory": 16}
    settings = XLNetSettings(**sizes, dropout=0.0, attention_dropout=0.0)
    model = build(settings, symbols=20, context=8).double()
    stream, rules = np.random.default_rng(0).integers(0, 20, 33), {"rows": 2, "seed": 0}
    whole, short = (
        PackedRows(stream, length=length, shuffle=False, onward=True, **rules) for length in (16, 8)
    )
    expected = NextSymbol(Training(steps=1))(model, next(whole.epoch(0))).total
    memories = Remembering(3, layers=2, places=16, width=16).double()
    objective = NextSymbol(Training(steps=1), memories)
    for _ in range(2):  # memories of the last epoch are dropped
        total = sum(objective(model, batch).total for batch in short.epoch(0))
        torch.testing.assert_close(total, expected)


def test_only_xlnet_has_memories(tmp_path: Path) -> None:
    raw = yaml.safe_load(small(tmp_path, GPT, data={"memory": 8}).read_text())
    with pytest.raises(Refused, match=r"data\.memory needs an xlnet; the model is gpt2"):
        resolve(raw)


def test_escaped_lines_are_restored() -> None:
    for text in ("a\nb", "\\n", "\\\n\\\\n", "plain", "a\\tb", "a\tb\\\t\r"):
        assert not set("\n\r\t") & set(escaped(text))
        assert unescaped(escaped(text)) == text
    assert unescaped("ROMEO:\\nO") == "ROMEO:\nO"
    assert unescaped("a\\tb") == "a\tb"
    assert unescaped("a\\qb") == "a\\qb"


@pytest.mark.parametrize("name", ["shakespeare-gpt", "shakespeare-lstm"])
def test_the_ready_recipes_are_valid(name: str) -> None:
    recipe = resolve(load(name))
    assert recipe.data.context * 16 <= recipe.training.batch_tokens
