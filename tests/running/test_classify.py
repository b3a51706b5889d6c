"""Classification runs, from the recipe to what a person sees of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from heed.answers.label import LabelObjective, LabelTraining
from heed.cli.predict import printed
from heed.data.batches import FILLER, Batch
from heed.errors import Refused, UnknownName
from heed.events import Note, finish
from heed.models import classifier
from heed.running.compare import Cell, columns, page
from heed.running.evaluate import evaluate
from heed.running.opening import open_run
from heed.running.predict import predict
from heed.running.recipe import resolve, with_attention
from heed.running.showing import show
from heed.running.starting import begin, opened
from heed.running.train import Trained, train
from heed.running.validating import Validator
from heed.storage import checkpoint, tensors
from heed.storage.run_folder import RunFolder
from heed.tasks import TASKS, task_of
from heed.tasks.classify import files_from
from heed.tasks.task import Start
from tests.running.labelling import BAD, GOOD, files, labelled, recipe

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return labelled(tmp_path_factory)


@pytest.fixture(autouse=True)
def alone() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def trained(raw: dict[str, Any], path: Path, **how: Any) -> tuple[Trained, list[str]]:
    notes: list[str] = []
    work = train(resolve(raw), path, device="cpu", **how)
    tell = notes.append
    done = finish(work, lambda event: tell(event.text) if isinstance(event, Note) else None)
    return done, notes


@pytest.mark.parametrize("task", TASKS)
def test_every_story_has_its_task(task: str) -> None:
    told = task_of(task)
    assert told.name == task
    for settings in (told.recipe, told.config):
        assert get_args(settings.model_fields["task"].annotation) == (task,)
        assert settings.model_config["extra"] == "forbid"
    assert columns(told)[0].name == "mechanism"
    assert all(" runs/a" in command.format(run="runs/a") for command in told.onward)


def test_an_unknown_task_is_refused_with_the_nearest(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean classify"):
        task_of("clasify")
    with pytest.raises(Refused, match=r"^task: no task is called 'clasify'; did you mean"):
        resolve(recipe(tmp_path) | {"task": "clasify"})
    shutil.copytree(run, tmp_path / "run")
    told = json.loads((run / "config.json").read_text())
    (tmp_path / "run/config.json").write_text(json.dumps(told | {"task": "os"}))
    RunFolder(tmp_path / "run").seal()
    with pytest.raises(Refused, match=r"config\.json: task: no task is called 'os'"):
        open_run(tmp_path / "run", CPU)


def test_options_of_other_tasks_are_refused(run: Path) -> None:
    with pytest.raises(Refused, match="--width is not for runs of the task classify"):
        finish(evaluate(run, device="cpu", width=3))
    with pytest.raises(Refused, match="--top-k is not for runs of the task classify"):
        list(predict(run, "/dev/null", device="cpu", top_k=3))


def test_a_run_learns_and_keeps_what_it_needs(run: Path) -> None:
    scores = json.loads((run / "scores.json").read_text())
    assert scores["scores"]["test"]["accuracy"] == 100
    config = json.loads((run / "config.json").read_text())
    assert config["labels"] == ["disliked", "liked"]
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("valid/accuracy" in line for line in metrics)
    (sample,) = (run / "samples").glob("*.txt")
    assert "label      liked" in sample.read_text()
    found = finish(evaluate(run, device="cpu")).scores
    assert found.accuracy == 100
    assert found.loss == pytest.approx(scores["scores"]["test"]["loss"], rel=1e-4)


def test_a_text_is_shown_with_the_weight_of_each_word(run: Path) -> None:
    texts = [f"it was {word} indeed , i think" for word in (*GOOD, *BAD)]
    for each, word in zip(show(run, texts, device="cpu"), (*GOOD, *BAD), strict=True):
        assert each.text.startswith("liked" if word in GOOD else "disliked")
        (weighed,) = each.weighed
        assert list(weighed.words) == [*f"it was {word} indeed , i think".split(), "</s>"]
        assert sum(weighed.weights) == pytest.approx(1, abs=1e-3)


def test_an_interrupted_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    data = files(tmp_path / "data")
    raw = recipe(data, steps=14, validate_every=7, save_every=2)
    raw["model"] |= {"dropout": 0.3, "word_dropout": 0.2, "letters": [2, 3]}
    raw["training"] |= {"adversarial": 0.2, "smoothing": 0.1, "log_every": 4}
    trained(raw, tmp_path / "whole")
    work = train(resolve(raw), tmp_path / "parts", device="cpu")
    said = set()
    for event in work:
        said.add(str(getattr(event, "note", ""))[:35])
        if getattr(event, "stage", "") == "training" and event.done == 9:  # type: ignore[union-attr]
            break
    work.close()
    assert "smoothed loss with adversarial part" in said  # a sum, which a validation's loss is not
    trained(raw, tmp_path / "parts", resume=True)
    whole, parts = (
        tensors.read(tmp_path / name / "model.safetensors") for name in ("whole", "parts")
    )
    assert all(torch.equal(weight, parts[name]) for name, weight in whole.items())


def batch(rows: list[int]) -> Batch:
    labels = torch.tensor([[1], [2], [3], [0]])
    texts = torch.randint(4, 9, (4, 5))
    lengths = {"text": torch.tensor([5, 3, 2, 1]), "label": torch.ones(4, dtype=torch.long)}
    return Batch({"text": texts, "label": labels}, lengths, torch.tensor(rows))


@pytest.mark.parametrize("adversarial", [0.0, 0.3])
@pytest.mark.parametrize("pool", ["static/additive", "static/sample/additive"])
def test_padding_rows_have_no_gradient(pool: str, adversarial: float) -> None:
    torch.manual_seed(0)
    settings = classifier.ClassifierSettings(pool=pool, embedding_dropout=0, dropout=0)
    model = classifier.build(settings, symbols=9, labels=3)
    whole = batch([4, 7, 1, FILLER])
    losses, grads = [], []
    for filler in (5, 6):
        told = LabelTraining(steps=1, smoothing=0.1, adversarial=adversarial)
        objective = LabelObjective("text", told)
        objective.baseline.update(torch.tensor(-1.0))  # so that a reward of zero has an effect
        assert objective.count(whole) == 3
        whole.tokens["text"][3] = filler
        model.zero_grad()
        torch.manual_seed(3)
        loss = objective(model, whole)
        loss.total.backward()
        losses.append(loss.total.detach())
        grads.append([weight.grad.clone() for weight in model.parameters()])  # type: ignore[union-attr]
    torch.testing.assert_close(*losses)
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", ["lstm", "cnn", "bert", "xlnet"])
def test_adversarial_words_are_learnt_beside_the_plain_ones(kind: str) -> None:
    torch.manual_seed(0)
    text = kind in ("bert", "xlnet")
    sizes = {"size": "tiny", "longest": 8} if text else {"embedding": 8}
    encoder = {"kind": kind, **sizes}
    settings = classifier.ClassifierSettings.model_validate({"encoder": encoder, "pool": "mean"})
    model = classifier.build(settings, symbols=9, labels=3).eval()
    given = batch([0, 1, 2, FILLER])
    plain = LabelObjective("text", LabelTraining(steps=1))(model, given)
    both = LabelObjective("text", LabelTraining(steps=1, adversarial=0.01))(model, given)
    assert both.parts["moved"] > plain.total
    torch.testing.assert_close(both.total, plain.total + both.parts["moved"])
    with torch.no_grad():  # no weight is updated
        judged = LabelObjective("text", LabelTraining(steps=1, adversarial=0.01))(model, given)
    torch.testing.assert_close(judged.total, plain.total)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # compilers warn
def test_a_compiled_network_learns_from_adversarial_words_alike(tmp_path: Path) -> None:
    torch.compiler.reset()
    raw = recipe(files(tmp_path / "data"), steps=3, validate_every=3, adversarial=0.3)
    raw["model"] |= {"pool": "mean"}
    losses = []
    for compiled in (False, True):
        raw["training"]["compile"] = compiled
        done, _ = trained(raw, tmp_path / f"run-{compiled}")
        losses.append(done.scores["test"].loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_letters_are_added_once_to_adversarial_words() -> None:
    """After a tiny step, the prediction is as before; after a larger one, it is worse."""
    torch.manual_seed(0)
    settings = classifier.ClassifierSettings.model_validate(
        {"encoder": {"kind": "cnn", "embedding": 8, "layers": 2}, "pool": "max", "letters": [1, 2]}
    )
    model = classifier.build(settings, symbols=9, labels=3, letters=(5, 2)).double().eval()
    assert model.spelled is not None
    model.spelled.known[4:] = torch.randint(1, 6, (5, 2))
    given = batch([0, 1, 2, FILLER])
    plain = LabelObjective("text", LabelTraining(steps=1))(model, given)
    for size in (1e-7, 0.05):
        moved = LabelObjective("text", LabelTraining(steps=1, adversarial=size))(
            model, given
        ).parts["moved"]
        close = torch.isclose(moved, plain.total, rtol=1e-6)
        assert close if size == 1e-7 else moved > plain.total + 1e-3


def test_a_sampled_look_learns_from_its_reward() -> None:
    torch.manual_seed(0)
    settings = classifier.ClassifierSettings(pool="static/sample/additive")
    model = classifier.build(settings, symbols=9, labels=3)
    moved = {}
    for weight in (0.0, 1.0):
        model.zero_grad()
        torch.manual_seed(3)
        LabelObjective("text", LabelTraining(steps=1, reinforce=weight))(
            model, batch([0, 1, 2, FILLER])
        ).total.backward()
        moved[weight] = model.pool.attention.mechanism.reach.vector.grad  # type: ignore[union-attr]
    assert moved[1.0] is not None
    assert moved[1.0].any()
    assert moved[0.0] is None or not torch.equal(moved[0.0], moved[1.0])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mean", "mean"),
        ("none", "mean"),
        ("static/sparsemax", "static/sparsemax"),
        ("additive", "static/additive"),
    ],
)
def test_an_attention_by_name_is_used_as_the_pool(name: str, expected: str, tmp_path: Path) -> None:
    raw = recipe(tmp_path)
    raw["model"] = {**raw["model"], "heads": 4, "pool": "static/additive"}
    changed = resolve(with_attention(raw, name)).model
    assert (changed.pool, changed.heads) == (expected, 1 if expected == "mean" else 4)


def test_an_attention_by_name_is_used_between_the_words_of_a_bert(tmp_path: Path) -> None:
    raw = recipe(tmp_path)
    raw["model"] = {"encoder": {"kind": "bert", "size": "tiny"}, "pool": "first"}
    changed = resolve(with_attention(raw, "sparsemax")).model
    assert (changed.encoder.attention, changed.pool) == ("sparsemax", "first")
    changed = resolve(with_attention(raw, "static/additive")).model
    assert (changed.encoder.attention, changed.pool) == ("scaled-dot", "static/additive")


def test_a_comparison_shows_each_pool(run: Path) -> None:
    told = json.loads((run / "scores.json").read_text())
    from heed.answers.label import LabelScores, OneLabel

    def scores(given: dict[str, Any]) -> LabelScores:
        by_label = [OneLabel(**each) for each in given.pop("by_label")]
        return LabelScores(**given, by_label=by_label)

    parts = {name: scores(each) for name, each in told.pop("scores").items()}
    done = Trained(**{**told, "folder": run}, scores=parts)
    assert done.perplexity is None, "of labels there is none"
    # A run without test data is scored on its validation data.
    other = replace(done, scores={"valid": replace(parts["test"], accuracy=50.0)})
    cells = [Cell("static/additive", done, 1.0), Cell("max", other, 1.0)]
    cells.append(Cell("mean", error="<it> broke"))
    told = task_of("classify")
    assert Cell("mean", error="no").row(told) == ["mean", *[None] * 7]
    row = dict(
        zip(
            [c.name for c in columns(told)],
            cells[0].row(told),
            strict=True,
        )
    )
    assert (row["accuracy"], row["texts/s"]) == (100, done.tokens_per_second)
    html = page(cells, told).html()
    assert '<span title="best">100.00</span>' in html
    assert '<span title="best">50.00</span>' not in html
    assert "F1 of each label" in html
    assert "mean: &lt;it&gt; broke" in html
    assert "words coloured by weight" in html


def weights(start: Start) -> dict[str, Tensor]:
    return dict(start.weights)


def test_matching_weights_are_taken_from_a_run_with_other_labels(run: Path, tmp_path: Path) -> None:
    data = files(tmp_path / "data")
    for name in ("train.tsv", "valid.tsv"):
        with (data / name).open("a") as file:
            file.write("2\tan unheard word\n2\tunheard of\n")
    raw = recipe(data, steps=1, rate=1e-9, validate_every=1)
    raw["data"]["names"] = {}
    _, notes = trained(raw, tmp_path / "next", start=run)
    (told,) = [note for note in notes if "taken" in note]
    assert told.endswith("tensors; new: answer.*")
    before, after = opened(run), opened(tmp_path / "next")
    assert after.tokeniser.fingerprint == before.tokeniser.fingerprint
    table = "encoder.embed.table.weight"
    torch.testing.assert_close(weights(before)[table], weights(after)[table], rtol=0, atol=1e-6)
    assert weights(after)["answer.weight"].shape[0] == 3


def test_a_start_without_matching_weights_is_refused(run: Path, tmp_path: Path) -> None:
    raw = recipe(files(tmp_path / "data"))
    raw["model"] |= {"encoder": {"kind": "cnn", "embedding": 5, "channels": 6}, "pool": "mean"}
    with pytest.raises(Refused, match="no weight has its name and shape"):
        trained(raw | {"data": raw["data"] | {"names": {}}}, tmp_path / "next", start=run)


def test_only_new_weights_are_named() -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    there = {"a.weight": torch.ones(2, 2), "a.bias": torch.ones(3)}
    note = begin(model, Start(Path("x"), "pretrain", there), task_of("classify"))
    assert note == Note("taken from x: 1 of 4 tensors; new: a.bias, b.*")
    assert model["a"].weight.eq(1).all()  # type: ignore[union-attr]


def test_weights_that_all_fit_are_counted_too(run: Path, tmp_path: Path) -> None:
    raw = recipe(files(tmp_path / "data"), steps=1, rate=1e-9, validate_every=1)
    _, notes = trained(raw, tmp_path / "next", start=run)
    (told,) = [note for note in notes if "taken" in note]
    assert told == f"taken from {run}: all {len(opened(run).weights)} tensors"


def test_a_bert_can_start_from_a_pretrained_folder(tmp_path: Path) -> None:
    """Its body has the folder's weights, and the folder's vocabulary cuts the texts."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, "film", "it", "was", "."]
    config = transformers.BertConfig(
        vocab_size=len(pieces),
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=24,
        max_position_embeddings=20,
    )
    theirs = transformers.BertForMaskedLM(config)
    theirs.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs/vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    raw = recipe(files(tmp_path / "data"), steps=1, rate=1e-9, validate_every=1)
    raw["model"] = {"encoder": {"kind": "bert", "width": 8, "size": "tiny"}, "pool": "first"}
    with pytest.raises(Refused, match=r"width=8 \(there 12\), .* to match: model.encoder.width=12"):
        trained(raw, tmp_path / "run", start=tmp_path / "theirs")
    raw["model"]["encoder"] = {"kind": "bert", "layers": 2}
    _, notes = trained(raw, tmp_path / "run", start=tmp_path / "theirs")
    assert any("encoder.width=12, model.encoder.feed=24" in note for note in notes)
    (told,) = [note for note in notes if "taken" in note]
    assert "new: pool.*, answer.*" in told
    worker = open_run(tmp_path / "run", CPU).worker
    (ids,) = worker.kind.rows(["It was lovely ."])
    assert worker.words(("It was lovely .",)) == ["[CLS]", "it", "was", "lovely", ".", "[SEP]"]
    mine = worker.model.eval()(torch.tensor([ids]), torch.tensor([len(ids)])).states
    expected = theirs.bert.eval()(torch.tensor([ids])).last_hidden_state
    torch.testing.assert_close(mine, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"labels": ["liked", "liked"]}, "occurs twice"),
        ({"labels": ["liked"]}, "at least 2"),
        ({"symbols": 2_000_000}, "vocabulary size is not that"),
        ({"labels": ["disliked", "liked", "neither"]}, "does not fit config"),
        ({"names": {"0": "awful"}}, "names has a name that is not"),
        ({"model": {"encoder": {"kind": "lstm", "hidden": 8192}}}, "does not fit config"),
        ({"model": {"pool": "__import__('os')"}}, "no mechanism"),
    ],
)
def test_a_hostile_folder_is_refused(
    run: Path, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    shutil.copytree(run, tmp_path / "run")
    told = json.loads((run / "config.json").read_text())
    (tmp_path / "run/config.json").write_text(json.dumps(told | change))
    RunFolder(tmp_path / "run").seal()
    with pytest.raises(Refused, match=says):
        open_run(tmp_path / "run", CPU)


def test_a_training_without_a_finite_validation_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = Validator.judge

    def spoilt(self: Validator, step: int) -> Any:
        return replace(judge(self, step), loss=float("nan"))

    monkeypatch.setattr(Validator, "judge", spoilt)
    raw = recipe(files(tmp_path / "data"), steps=2, validate_every=1)
    with pytest.raises(Refused, match=r"no validation had a finite loss.*lower training\.rate"):
        trained(raw, tmp_path / "run")


def test_too_many_unknown_keys_are_refused_before_they_are_listed(
    run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    told = json.loads((run / "config.json").read_text())
    told["model"]["encoder"] |= {str(n): n for n in range(20_001)}
    (tmp_path / "run/config.json").write_text(json.dumps(told))
    RunFolder(tmp_path / "run").seal()
    with pytest.raises(Refused, match=r"config\.json has more than 20,000 keys"):
        open_run(tmp_path / "run", CPU)
    raw = recipe(tmp_path) | {"training": [{str(n): n for n in range(20_001)}]}
    with pytest.raises(Refused, match="the recipe has more than 20,000 keys"):
        resolve(raw)


def test_files_that_inflate_few_numbers_are_refused(run: Path, tmp_path: Path) -> None:
    """Some names share numbers in the file, but not in the network."""
    shutil.copytree(run, tmp_path / "run")
    told = json.loads((run / "config.json").read_text())
    told["model"]["encoder"]["layers"] = 4
    (tmp_path / "run/config.json").write_text(json.dumps(told))
    RunFolder(tmp_path / "run").seal()
    outline = task_of("classify").config.model_validate(told).outline()
    shapes = {name: tuple(x.shape) for name, x in outline.items()}
    few = {shape: torch.zeros(shape) for shape in shapes.values()}
    many = {name: few[shape] for name, shape in shapes.items()}
    (tmp_path / "run/model.safetensors").write_bytes(b"".join(map(bytes, tensors.parts(many))))
    RunFolder(tmp_path / "run").seal()
    with pytest.raises(Refused, match=r"stores '\S+' and '\S+' as one tensor"):
        open_run(tmp_path / "run", CPU)


def test_labels_and_answers_are_escaped_for_the_terminal_and_json(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "run")
    told = json.loads((run / "config.json").read_text())
    told |= {"labels": ["dis\x1b[2J\n\u202eliked", "liked"], "names": {}}
    (tmp_path / "run/config.json").write_text(json.dumps(told))
    RunFolder(tmp_path / "run").seal()
    (tmp_path / "in.txt").write_text("it was awful indeed\n")
    (said,) = predict(tmp_path / "run", str(tmp_path / "in.txt"), device="cpu")
    assert said.line().startswith(r"dis\x1b[2J\n\u202eliked")
    (shown,) = show(tmp_path / "run", ["it was awful indeed"], device="cpu")
    assert shown.text.startswith(r"dis\x1b[2J\n\u202eliked")
    assert said.as_data()["label"] == "dis\x1b[2J\n\u202eliked"  # for programs it is unchanged
    weights = tensors.read(run / "model.safetensors")
    weights["answer.bias"][:] = torch.nan
    path = tmp_path / "run/model.safetensors"
    path.write_bytes(b"".join(map(bytes, tensors.parts(weights))))
    RunFolder(tmp_path / "run").seal()
    answers = predict(tmp_path / "run", str(tmp_path / "in.txt"), device="cpu")
    with pytest.raises(Refused, match="its weights contain NaN"):
        list(printed(answers, as_json=True, keep=False))


LIKED = ("liked", "likes", "likable", "likely")
DULL = ("dulled", "dulls", "dullish", "dullest")


def speller(folder: Path, **training: Any) -> dict[str, Any]:
    """Two layers of filters, over words with letters, some of which are shared."""
    data = files(folder / "data")
    for path in data.iterdir():
        text = path.read_text()
        for word, other in zip((*GOOD, *BAD), (*LIKED, *DULL), strict=True):
            text = text.replace(f" {word} ", f" {other} ")
        path.write_text(text)
    raw = recipe(data, **training)
    raw["model"] |= {
        "encoder": {"kind": "cnn", "embedding": 16, "channels": 8, "widths": [1, 2], "layers": 2},
        "pool": "max",
        "letters": [2, 4],
    }
    return raw


@pytest.fixture(scope="session")
def spelt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spelt")
    trained(speller(folder, adversarial=0.1), folder / "run")
    return folder / "run"


def test_a_run_with_letters_keeps_them_in_its_weights(spelt: Path, tmp_path: Path) -> None:
    assert finish(evaluate(spelt, device="cpu")).scores.accuracy == 100
    run = open_run(spelt, CPU)
    letters = run.worker.form.letters
    assert run.config.grams == letters.size > 10
    assert torch.equal(run.worker.model.spelled.known, letters.known)
    assert run.worker.model.spelled.known.any()
    (tmp_path / "in.txt").write_text("it was liked\nit was likeness\nit was dullness\n\n")
    said = [each.line() for each in predict(spelt, str(tmp_path / "in.txt"), device="cpu")]
    labels = [line.partition("\t")[0] for line in said]
    assert labels == ["liked", "liked", "disliked", ""]
    (shown,) = show(spelt, ["it was dullness"], device="cpu")
    assert shown.text.startswith("disliked")


def test_an_interrupted_run_with_letters_resumes_and_starts_another(tmp_path: Path) -> None:
    raw = recipe(files(tmp_path / "data"), steps=40, validate_every=20, save_every=5)
    raw["model"] |= {"heads": 2, "letters": [2, 4], "dropout": 0.1}
    raw["training"] |= {"adversarial": 0.1}
    trained(raw, tmp_path / "whole")
    work = train(resolve(raw), tmp_path / "run", device="cpu")
    for event in work:
        if getattr(event, "stage", "") == "training" and event.done == 12:  # type: ignore[union-attr]
            break
    work.close()
    trained(raw, tmp_path / "run", resume=True)
    whole, parts = (tensors.read(tmp_path / x / "model.safetensors") for x in ("whole", "run"))
    assert all(torch.equal(weight, parts[name]) for name, weight in whole.items())

    _, notes = trained(raw, tmp_path / "again", start=tmp_path / "run")
    assert not [note for note in notes if "new:" in note]
    raw["model"] |= {"letters": [3, 3]}
    _, notes = trained(raw, tmp_path / "other", start=tmp_path / "run")
    (note,) = [note for note in notes if "taken" in note]
    assert note.endswith("new: spelled.*")


def test_a_run_from_before_letters_can_be_opened(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    told = json.loads((run / "config.json").read_text())
    del told["grams"], told["model"]["letters"]
    (tmp_path / "run/config.json").write_text(json.dumps(told))
    RunFolder(tmp_path / "run").seal()
    said = [
        next(iter(show(folder, ["it was good"], device="cpu"))).text
        for folder in (run, tmp_path / "run")
    ]
    assert said[0] == said[1]


def test_letters_are_taken_over_where_they_are_the_same(spelt: Path, tmp_path: Path) -> None:
    raw = speller(tmp_path, steps=1, rate=1e-9, validate_every=1)
    _, notes = trained(raw, tmp_path / "same", start=spelt)
    assert not [note for note in notes if "new:" in note]
    raw["model"]["letters"] = [3, 3]
    _, notes = trained(raw, tmp_path / "other", start=spelt)
    (told,) = [note for note in notes if "taken" in note]
    assert told.endswith("new: spelled.*")
    raw["model"]["letters"] = None
    _, notes = trained(raw, tmp_path / "none", start=spelt)
    assert not [note for note in notes if "new:" in note]
    raw["model"]["letters"] = [2, 4]
    _, notes = trained(raw, tmp_path / "again", start=tmp_path / "none")
    (told,) = [note for note in notes if "taken" in note]
    assert told.endswith("new: spelled.*")


def test_a_files_letters_must_be_those_of_its_words(spelt: Path, tmp_path: Path) -> None:
    shutil.copytree(spelt, tmp_path / "run")
    path = tmp_path / "run/model.safetensors"
    weights = tensors.read(path)
    for bad in (10**9, -1, 1):
        weights["spelled.known"][5, 0] = bad
        path.write_bytes(b"".join(bytes(part) for part in tensors.parts(weights)))
        RunFolder(tmp_path / "run").seal()
        with pytest.raises(Refused, match=r"do not fit the words of tokenizer\.json"):
            open_run(tmp_path / "run", CPU)
    told = json.loads((spelt / "config.json").read_text())
    for grams, says in ((3, "its grams do not fit"), (10**9, "less than or equal")):
        (tmp_path / "run/config.json").write_text(json.dumps(told | {"grams": grams}))
        RunFolder(tmp_path / "run").seal()
        with pytest.raises(Refused, match=says):
            open_run(tmp_path / "run", CPU)


def test_resuming_derives_letters_from_the_words(tmp_path: Path) -> None:
    raw = speller(tmp_path, steps=4, validate_every=4, save_every=2)
    trained(raw, tmp_path / "whole")
    work = train(resolve(raw), tmp_path / "parts", device="cpu")
    for event in work:
        if getattr(event, "stage", "") == "training" and event.done == 3:  # type: ignore[union-attr]
            break
    work.close()
    (place,) = (tmp_path / "parts/checkpoints").glob("step-*")
    found = checkpoint.load(place)
    found.tensors["model"]["spelled.known"].fill_(10**9)
    shutil.rmtree(place)
    checkpoint.save(place, found.tensors, found.facts)
    trained(raw, tmp_path / "parts", resume=True)
    whole, parts = (
        tensors.read(tmp_path / name / "model.safetensors") for name in ("whole", "parts")
    )
    assert all(torch.equal(weight, parts[name]) for name, weight in whole.items())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("data.tokens.kind=bpe", "data.tokens.kind=bpe makes pieces; set it to word"),
        ("model.letters=[5, 3]", "model: letters are a shortest and a longest run"),
        ("model.letters=[0, 3]", "model.letters.0: input should be greater than or equal to 1"),
        ("model.letters=3", "model.letters: input should be a valid tuple"),
        ("model.encoder={kind: bert}", "model: letters need whole words, which BERT does not"),
        ("model.encoder.layers=0", "model.encoder.layers: input should be greater than or"),
    ],
)
def test_impossible_letters_are_refused_in_one_line(tmp_path: Path, change: str, says: str) -> None:
    with pytest.raises(Refused) as told:
        resolve(speller(tmp_path), [change])
    assert says in str(told.value)
    assert "\n" not in str(told.value)


def test_letters_need_whole_words_in_the_start(run: Path, tmp_path: Path) -> None:
    raw = recipe(files(tmp_path / "data"), steps=1, validate_every=1)
    raw["data"]["tokens"] = {"kind": "bpe", "size": 60}
    trained(raw, tmp_path / "pieces")
    raw["data"]["tokens"] = {"kind": "word"}
    raw["model"]["letters"] = [3, 5]
    with pytest.raises(Refused, match="letters need whole words, but the tokens are bpe"):
        trained(raw, tmp_path / "next", start=tmp_path / "pieces")


def test_files_to_evaluate_have_the_columns_of_the_training() -> None:
    told = SimpleNamespace(text="review", label="sentiment")
    for name in ("a.csv", "a.tsv.gz", "a.jsonl"):
        assert files_from([Path(name)], told).columns == ("review", "sentiment")
    assert files_from([Path("a.csv")], told, {"label": "2", "text": "0"}).columns == (0, 2)
    assert files_from([Path("a.jsonl")], told, {"label": "2"}).columns == ("review", "2")
    numbered = SimpleNamespace(text=0, label=1)
    assert files_from([Path("a.csv")], numbered).columns == (0, 1)
    assert files_from([Path("a.jsonl")], numbered).columns == ("text", "label")
