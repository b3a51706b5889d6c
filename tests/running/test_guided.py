"""Training guided by given alignments: what is learnt from them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from heed.answers.text import LINKS, TeacherForcing, TextTraining, linked, shifted
from heed.data import grammar
from heed.data.batches import Batch
from heed.errors import Refused
from heed.events import finish
from heed.models import building
from heed.running.evaluate import evaluate
from heed.running.preparing import prepare
from heed.running.recipe import check, resolve
from heed.running.train import train
from heed.storage.run_folder import RunFolder
from heed.tasks.translate import TASK
from tests.running.writing import recipe

RECURRENT = {"kind": "recurrent", "embedding": 8, "hidden": 12, "dropout": 0}
TRANSFORMER = {"kind": "transformer", "width": 16, "heads": 2, "feed": 16, "dropout": 0}
TRANSFORMER |= {"encoder_layers": 1, "decoder_layers": 3}
MODELS: dict[str, dict[str, Any]] = {
    "search": RECURRENT,
    "luong": {**RECURRENT, "decoder": "luong"},
    "no feeding": {**RECURRENT, "decoder": "luong", "input_feeding": False},
    "local-p": {**RECURRENT, "decoder": "luong", "attention": "local-p/general"},
    "transformer": TRANSFORMER,
    "last layer": {**TRANSFORMER, "alignment_layer": 2},
}


def raw(model: dict[str, Any] | None = None, **training: Any) -> dict[str, Any]:
    """The recipe of the other tests, guided."""
    found = recipe(**({"guided": 0.5} | training))
    return found if model is None else {**found, "model": model}


def batch_of() -> Batch:
    """Two pairs: 3 and 2 source pieces, 3 and 1 target pieces; the first has 3 links of pieces."""
    return Batch(
        {
            "source": torch.tensor([[4, 5, 3], [6, 3, 0]]),
            "target": torch.tensor([[4, 5, 3], [3, 0, 0]]),
            LINKS: torch.tensor([[0, 0, 1, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0]]),
        },
        {
            "source": torch.tensor([3, 2]),
            "target": torch.tensor([3, 1]),
            LINKS: torch.tensor([6, 0]),
        },
        torch.tensor([0, 1]),
    )


def test_links_become_a_table_of_pieces() -> None:
    table = linked(batch_of(), "source")
    assert table[0].tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]
    assert not table[1].any()


def test_links_outside_the_pair_in_a_damaged_cache_are_left_out() -> None:
    batch = batch_of()
    batch.tokens[LINKS][0, :6] = torch.tensor([9, 0, 0, 7, 1, 1])
    assert linked(batch, "source")[0].nonzero().tolist() == [[1, 1]]


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_has_the_cross_entropy_of_the_alignment(name: str) -> None:
    """By a loop over links; and no other attention of a Transformer forms its weights."""
    settings = resolve(raw(MODELS[name])).model
    model = building.build(settings, source=9, target=9, shared=False, longest=9)
    batch, training = batch_of(), {"steps": 1, "guided": 0.7}
    guided = TeacherForcing(["source"], TextTraining(**training)).eval()
    plain = TeacherForcing(["source"], TextTraining(steps=1)).eval()
    source, target = batch.tokens["source"], batch.tokens["target"]
    written: Any = model(source, batch.lengths["source"], shifted(target), need="weight")
    if settings.kind == "transformer":
        layer = 1 if name == "transformer" else 2
        weight = written.seen[f"decoder.{layer}.cross"].weight.mean(1)
    else:
        weight = written.seen["decoder.attention"].weight[:, 0]
    wanted = -(weight[0, 0, 0].log() + weight[0, 0, 1].log()) / 2 - weight[0, 1, 1].log()
    loss, bare = guided(model, batch), plain(model, batch)
    torch.testing.assert_close(loss.total, bare.total + 0.7 * wanted)
    torch.testing.assert_close(loss.parts["guided"], wanted.detach())
    assert "guided" not in bare.parts
    loss.total.backward()
    if settings.kind == "transformer":
        seen: Any = model(source, batch.lengths["source"], shifted(target), aligned=True)
        formed = {path for path, each in seen.seen.items() if each.formed.weight is not None}
        assert formed == {f"decoder.{layer}.self", f"decoder.{layer}.cross"}


def pharaoh(folder: Path, pairs: int) -> tuple[Path, Path]:
    """Sentences of the grammar and their links, as files."""
    rows, found = [], []
    for each in grammar.draw(pairs, shortest=3, longest=5, seed=0, part="train"):
        rows.append("\t".join(each.pair))
        found.append(" ".join(f"{i}-{j}" for i, j in each.links))
    told = {"pairs.tsv": rows, "links": found}
    for name, lines in told.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return folder / "pairs.tsv", folder / "links"


def from_files(folder: Path, pairs: int = 150, **training: Any) -> dict[str, Any]:
    tsv, links = pharaoh(folder, pairs)
    data = {"train": {"tsv": str(tsv), "alignments": str(links)}, "held_out": 0.1}
    return {**raw(**training), "data": {**data, "tokens": {"kind": "bpe", "size": 300}}}


@pytest.mark.parametrize("kind", ["grammar", "files"])
def test_guided_training_aligns_better(kind: str, tmp_path: Path) -> None:
    """Of the grammar and of files, a share of which is held out with its links."""
    aer = {}
    for guided in (0.0, 1.0):
        told = from_files(tmp_path, guided=guided) if kind == "files" else raw(guided=guided)
        found = finish(train(resolve(told), tmp_path / str(guided), device="cpu"))
        aer[guided] = found.scores["test"].aer
    assert aer[1.0] < 0.7 * aer[0.0], aer


def test_a_guided_run_is_stopped_and_resumed_bit_for_bit(tmp_path: Path) -> None:
    told = resolve(
        from_files(tmp_path, steps=8, save_every=4, validate_every=4, deterministic=True)
    )
    whole = finish(train(told, tmp_path / "whole", device="cpu"))
    work = train(told, tmp_path / "half", device="cpu")
    for _ in work:
        if (tmp_path / "half/checkpoints/step-0000004").exists():
            break
    work.close()
    half = finish(train(None, tmp_path / "half", resume=True, device="cpu"))
    assert half.perplexity == whole.perplexity
    one, other = ((tmp_path / run / "model.safetensors").read_bytes() for run in ("whole", "half"))
    assert one == other


def test_the_links_change_no_batch(tmp_path: Path) -> None:
    """A guided run and one that is not see the same batches, so that they can be compared."""
    rows = []
    for guided in (0.0, 1.0):
        recipe = resolve(raw(guided=guided))
        prepared = finish(prepare(TASK, recipe, RunFolder.create(tmp_path / str(guided))))
        assert (LINKS in prepared.train.tokens) == (guided > 0)
        batches = TASK.batches(recipe, prepared, shard=(0, 1), fixed=False)
        rows.append([batch.rows.tolist() for batch in batches.epoch(0)])
        assert all(pair.gold for pair in prepared.valid)
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": {**RECURRENT, "decoder": "fixed"}}, "attention to the source"),
        ({"model": {**RECURRENT, "attention": "none"}}, "attention to the source"),
        ({"model": {**RECURRENT, "attention": "argmax/additive"}}, "chooses single words"),
        ({"model": {**RECURRENT, "attention": "sample/additive"}}, "chooses single words"),
        ({"model": {**TRANSFORMER, "cross_attention": "gumbel/dot"}}, "chooses single words"),
        ({"data": {"train": "a.tsv", "held_out": 0.1}}, "data.train.alignments=FILE"),
    ],
)
def test_what_cannot_be_guided_is_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(Refused, match=rf"^training\.guided needs .*{told}") as error:
        check(resolve({**raw(), **change}))
    assert "\n" not in str(error.value)
    plain = {**raw(guided=0), **change}
    check(resolve(plain))


def test_a_file_without_a_link_is_refused(tmp_path: Path) -> None:
    told = from_files(tmp_path, 60)
    (tmp_path / "links").write_text("\n" * 60)
    with pytest.raises(Refused, match=r"training\.guided needs alignments, and no training pair"):
        finish(train(resolve(told), tmp_path / "run", device="cpu"))
    (tmp_path / "links").write_text("0-0\n" * 59)
    with pytest.raises(Refused, match=rf"60 pairs and {tmp_path / 'links'} has 59 lines"):
        finish(train(resolve(told), tmp_path / "run", device="cpu"))


def test_other_tasks_are_not_guided() -> None:
    told = {"task": "language-model", "data": {"train": "a.txt", "held_out": 0.1}}
    told |= {"model": {"kind": "gpt2"}, "training": {"steps": 1, "guided": 1}}
    with pytest.raises(Refused, match=r"training\.guided"):
        resolve(told)


def test_the_run_scores_files_with_gold_links(tmp_path: Path) -> None:
    told = resolve(from_files(tmp_path, steps=3))
    run = finish(train(told, tmp_path / "run", device="cpu")).folder
    files = [tmp_path / "pairs.tsv"]
    found = finish(evaluate(run, files, device="cpu", alignments=tmp_path / "links"))
    assert found.scores.aer is not None
