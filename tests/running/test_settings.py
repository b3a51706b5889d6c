"""Every key of `training` in a recipe, and of decoding, takes effect."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from heed.answers import text as working
from heed.answers.text import Decoding
from heed.answers.worker import Worker
from heed.errors import Refused
from heed.events import Progress, finish
from heed.running.evaluate import evaluate
from heed.running.preparing import prepare
from heed.running.recipe import resolve
from heed.running.train import Learner, Trained, train
from heed.storage import checkpoint, journal, tensors
from heed.storage.run_folder import RunFolder
from heed.tasks.task import Prepared
from heed.tasks.translate import TASK
from heed.tasks.translate import TranslateRecipe as Recipe
from heed.training.distributed import Distributed
from heed.training.settings import Training
from heed.training.signals import Stop
from tests.running.small import small

Weights = dict[str, Tensor]


def recipe(*overrides: str) -> Recipe:
    """Four steps, three to an epoch."""
    raw = small(epochs=None, steps=4, accumulate=1, batch_tokens=80, deterministic=False)
    raw["data"]["grammar"] |= {"pairs": 24, "held_out": 3}
    raw["training"] |= {"validate_every": None, "save_every": None}
    return resolve(raw, overrides)


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """One thread: faster for so little work, and always in the same order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = RunFolder.create(tmp_path_factory.mktemp("prepared") / "run")
    return finish(prepare(TASK, recipe(), folder))


class Crew(Distributed):
    """One of several processes, without the others: it gathers its own values."""

    def share(self, value: Any) -> Any:
        return value


def learner(prepared: Prepared, path: Path, *overrides: str, rank: int = 0) -> Learner:
    crew = Crew(rank, rank + 1)
    folder = RunFolder.create(path)
    prepared.codec.inputs["source"].pieces.save(folder.tokenizer)
    prepared.codec.form.target.pieces.save(folder.target_tokenizer)
    return Learner(recipe(*overrides), folder, prepared, crew, Stop(), None)


def learnt(prepared: Prepared, path: Path, *overrides: str) -> Weights:
    """The weights after the last step."""
    one = learner(prepared, path, *overrides)
    with one.journal:
        finish(one.catch_up())
        finish(one.learn())
    return {name: weight.clone() for name, weight in one.model.state_dict().items()}


def same(one: Weights, other: Weights) -> bool:
    return all(torch.equal(weight, other[name]) for name, weight in one.items())


@pytest.fixture
def hopeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """No validation is better than the first."""
    monkeypatch.setattr(Worker, "loss", lambda self, examples: 1.0)


@pytest.fixture(scope="module")
def usual() -> dict[tuple[str, ...], Weights]:
    """The results without the key in question; trained once for each combination."""
    return {}


COSINE = ("training.schedule=cosine",)
PLATEAU = (
    "training.schedule=plateau",
    "training.plateau_patience=1",
    "training.validate_every=1",
    "training.warmup=0",
)
COVERED = ("model.attention=coverage/additive",)
DRAWN = ("model.attention=sample/additive",)
MOVING: dict[str, tuple[Any, tuple[str, ...]]] = {  # another value, and where it matters
    "epochs": (1, ()),
    "steps": (3, ()),
    "least_steps": (5, ("training.epochs=1", "training.steps=null")),
    "batch_tokens": (50, ()),
    "accumulate": (2, ()),
    "optimiser": ("adam", ("training.weight_decay=1",)),  # they differ in weight decay
    "rate": (0.01, ()),
    "betas": ("[0.5,0.5]", ()),
    "epsilon": (0.1, ()),
    "weight_decay": (1, ()),
    "clip": (0.01, ()),
    "schedule": ("constant", ("training.warmup=2",)),
    "warmup": (2, ()),
    "floor": (0.002, (*COSINE, "training.warmup=1")),
    "plateau_factor": (0.1, PLATEAU),
    "plateau_patience": (3, PLATEAU),
    "smoothing": (0.1, ()),
    "coverage": (5, COVERED),
    "reinforce": (0, DRAWN),
    "entropy_bonus": (1, DRAWN),
    "precision": ("bf16", ()),
    "patience": (1, ("training.validate_every=1",)),
}
STILL = {
    "capture": "true",  # nothing can be captured on a CPU
    "deterministic": "true",
    "validate_every": 1,
    "save_every": 1,
    "log_every": 3,
    "keep": 1,
    "average": 2,
}


def test_no_key_is_missing() -> None:
    told = [*MOVING, *STILL, "compile"]
    assert sorted(told) == sorted(Training.model_fields)


@pytest.mark.usefixtures("hopeless")
@pytest.mark.parametrize("key", [*MOVING, *STILL])
def test_a_key_changes_the_weights_or_not_as_expected(
    key: str, prepared: Prepared, usual: dict[tuple[str, ...], Weights], tmp_path: Path
) -> None:
    value, around = MOVING.get(key) or (STILL[key], ())
    if around not in usual:
        usual[around] = learnt(prepared, tmp_path / "usual", *around)
    found = learnt(prepared, tmp_path / "run", *around, f"training.{key}={value}")
    assert same(found, usual[around]) == (key in STILL)


@pytest.mark.usefixtures("hopeless")
def test_the_rate_drops_while_validations_do_not_improve(
    prepared: Prepared, tmp_path: Path
) -> None:
    chosen = ("training.plateau_patience=2", "training.steps=6", "training.rate=0.008")
    learnt(prepared, tmp_path / "run", *PLATEAU, *chosen)
    told = journal.read(tmp_path / "run/metrics.jsonl")
    rates = [entry["train/rate"] for entry in told if "train/rate" in entry]
    assert rates == pytest.approx([0.008, 0.008, 0.008, 0.004, 0.004, 0.002])


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ("training.steps=199", "199 training steps; for more, set training.steps above 199"),
        (
            "training.epochs=1",
            "3 training steps; for more, set training.least_steps above 3 or training.epochs above "
            "1 or training.batch_tokens below 80",
        ),
        ("training.accumulate=3", "4 training steps; for more, set training.steps above 4"),
        ("training.steps=200", None),
        (
            "training.epochs=1 training.steps=null training.least_steps=5",
            "5 training steps; for more, set training.least_steps above 5",
        ),
        (
            "training.epochs=1 training.steps=5 training.least_steps=5",
            "5 training steps; for more, set training.steps above 5 with training.least_steps "
            "above 5",
        ),
        (
            "training.epochs=1 training.steps=4 training.least_steps=2",
            "3 training steps; for more, set training.least_steps above 3 or training.epochs ",
        ),
        (
            "training.epochs=2 training.steps=5 training.least_steps=5",
            "5 training steps; for more, set training.steps above 5",
        ),
        (
            "training.epochs=2 training.steps=6",
            "6 training steps; for more, set training.steps above 6 with training.least_steps "
            "above 6 or training.epochs above 2 or training.batch_tokens below 80",
        ),
        ("training.epochs=1 training.steps=null training.least_steps=200", None),
    ],
)
def test_few_steps_are_reported_with_the_keys_that_make_more(
    chosen: str, says: str | None, prepared: Prepared, tmp_path: Path
) -> None:
    one = learner(prepared, tmp_path / "run", *chosen.split())
    told = [note.text for note in one.notes if " training steps; " in note.text]
    assert len(told) == (says is not None)
    assert (says or "") in "".join(told)


def test_the_rate_falls_until_the_last_of_the_fewest_steps(
    prepared: Prepared, tmp_path: Path
) -> None:
    chosen = ("training.epochs=1", "training.steps=null", "training.least_steps=5")
    learnt(prepared, tmp_path / "run", *chosen, *COSINE, "training.warmup=1")
    told = journal.read(tmp_path / "run/metrics.jsonl")
    rates = [entry["train/rate"] for entry in told if "train/rate" in entry]
    assert len(rates) == 5
    assert rates == sorted(rates, reverse=True)
    assert rates[-2] > 1e-5
    assert rates[-1] == pytest.approx(0, abs=1e-9)


def test_fewer_gathered_batches_make_more_steps(prepared: Prepared, tmp_path: Path) -> None:
    one = learner(prepared, tmp_path / "run", "training.epochs=1", "training.accumulate=2")
    assert "below 80 or training.accumulate below 2" in one.notes[0].text


def test_a_warmup_longer_than_the_training_is_reported(prepared: Prepared, tmp_path: Path) -> None:
    one = learner(prepared, tmp_path / "run", "training.warmup=5")
    assert "warmup=5 is longer than the 4 steps in all" in one.notes[-1].text


def test_short_epochs_are_validated_and_saved_together(prepared: Prepared, tmp_path: Path) -> None:
    """With three steps to an epoch, seven epochs are the first with at least twenty."""
    learnt(prepared, tmp_path / "run", "training.steps=44", "training.log_every=1000")
    told = journal.read(tmp_path / "run/metrics.jsonl")
    assert [entry["step"] for entry in told if "valid/loss" in entry] == [21, 42, 44]
    assert sorted(checkpoint.steps(tmp_path / "run/checkpoints")) == [21, 42, 44]


@pytest.mark.parametrize("asked", [False, True])
def test_the_network_is_compiled_if_asked(
    asked: bool, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[nn.Module, dict[str, Any]]] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, **how: told.append((self, how)))
    one = learner(prepared, tmp_path / "run", f"training.compile={asked}", "training.steps=1")
    with one.journal:
        finish(one.learn())
    assert told == ([(one.model, {})] if asked else [])


@pytest.mark.parametrize("asked", [False, True])
def test_steps_are_deterministic_if_asked(asked: bool, prepared: Prepared, tmp_path: Path) -> None:
    one = learner(prepared, tmp_path / "run", f"training.deterministic={asked}")
    flags: set[bool] = set()
    one.model.register_forward_hook(
        lambda *_: flags.add(torch.are_deterministic_algorithms_enabled())
    )
    with one.journal:
        steps = [event for event in one.learn() if isinstance(event, Progress)]
    assert len(steps) == 4
    assert flags == {asked}
    assert not torch.are_deterministic_algorithms_enabled()


def test_processes_start_alike_and_draw_their_own_dropout(
    prepared: Prepared, tmp_path: Path
) -> None:
    begun, dropped = [], []
    for rank in range(2):
        one = learner(prepared, tmp_path / str(rank), rank=rank)
        begun.append(one.model.state_dict())
        dropped.append(dropout(torch.ones(100)))
    assert same(*begun)
    assert not torch.equal(*dropped)


def judging(monkeypatch: pytest.MonkeyPatch, *losses: float) -> None:
    """Validations give these losses, one after the other."""
    found = iter(losses)
    monkeypatch.setattr(Worker, "loss", lambda self, examples: next(found))


def trained(path: Path, *overrides: str) -> Trained:
    return finish(train(recipe(*overrides), path, device="cpu"))


@pytest.mark.parametrize(("last", "taken"), [(0.9, True), (1.1, False), (math.nan, False)])
def test_a_mean_of_checkpoints_is_used_only_if_it_is_no_worse(
    last: float, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the best single checkpoint is the third of four."""
    judging(monkeypatch, 3.0, 2.0, 1.0, 4.0, last)
    run = tmp_path / "run"
    each = ("training.validate_every=1", "training.save_every=1")
    done = trained(run, *each, "training.average=2", "training.keep=2")
    third, fourth = (checkpoint.at(run / "checkpoints", step) for step in (3, 4))
    best = tensors.read(third / "model.safetensors")
    mean = checkpoint.average([third, fourth])
    assert not same(best, mean)
    assert same(tensors.read(run / "model.safetensors"), mean if taken else best)
    assert done.perplexity == pytest.approx(math.exp(last if taken else 1.0))
    scores = finish(evaluate(run, "test", device="cpu")).scores
    assert scores.perplexity == pytest.approx(done.scores["test"].perplexity)


@pytest.mark.parametrize(("asked", "case"), [("true", "lc"), ("false", "mixed")])
def test_a_lowercase_run_is_scored_in_lower_case(asked: str, case: str, tmp_path: Path) -> None:
    done = trained(tmp_path / "run", f"data.tokens.lowercase={asked}", "training.steps=1")
    scores = done.scores["test"]
    assert f"|case:{case}|" in scores.bleu_signature
    assert f"|case:{case}|" in scores.chrf_signature


@pytest.mark.parametrize("asked", ["char", "intl", "none"])
def test_the_recipes_tokeniser_of_bleu_is_that_of_every_score(asked: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = trained(run, f"scores.bleu_tokenize={asked}", "training.steps=1")
    scores = done.scores["test"]
    assert f"|tok:{asked}|" in scores.bleu_signature
    assert scores.line().startswith(f"BLEU (tok:{asked}) {scores.bleu:.1f} · chrF ")
    again = finish(evaluate(run, "test", device="cpu")).scores
    assert (again.bleu, again.bleu_signature) == (scores.bleu, scores.bleu_signature)


def test_a_tokeniser_of_bleu_that_cannot_run_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "MeCab", None)
    for module in [each for each in sys.modules if each.startswith("sacrebleu.tokenizers.")]:
        monkeypatch.delitem(sys.modules, module)  # it may have been imported with the package
    with pytest.raises(Refused, match=r"ja-mecab needs .*pip install 'sacrebleu\[ja\]'"):
        trained(tmp_path / "run", "scores.bleu_tokenize=ja-mecab")
    assert not (tmp_path / "run").exists()
    with pytest.raises(Refused, match=r"scores\.bleu_tokenize: .*'13a'"):
        trained(tmp_path / "run", "scores.bleu_tokenize=mecab")


def test_penalties_affect_the_beam(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an untrained model every symbol is expensive: without a penalty the shortest text wins."""
    told: list[dict[str, Any]] = []

    def spied(*given: Any, **rules: Any) -> Any:
        told.append(rules)
        return beam(*given, **rules)

    beam = working.beam
    monkeypatch.setattr(working, "beam", spied)
    one = learner(prepared, tmp_path / "run")
    written = {}
    for length, coverage in ((0.0, 0.0), (3.0, 0.0), (0.0, 5.0)):
        chosen = Decoding(length_penalty=length, coverage_penalty=coverage, width=100, longest=4)
        ((best,),) = one.worker.answers([prepared.valid[0].inputs], chosen)
        written[length, coverage] = best.symbols
        assert (told[-1]["length_penalty"], told[-1]["coverage_penalty"]) == (length, coverage)
    assert len(written[3.0, 0.0]) > len(written[0.0, 0.0])
