"""Texts classified by an XLNet: from scratch, from a run of heed, from a pretrained folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor

from heed.data.tokenise import BOS, EOS
from heed.errors import Refused
from heed.events import finish
from heed.running.opening import open_run
from heed.running.passes import one_pass
from heed.running.recipe import resolve, with_attention
from heed.running.showing import show
from heed.running.starting import opened
from heed.running.train import train
from tests.running.labelling import files, recipe
from tests.running.test_adopting import their, xlnet
from tests.running.test_classify import trained
from tests.running.test_pretrain import small as hiding

CPU = torch.device("cpu")


def weights(run: Path) -> dict[str, Tensor]:
    return dict(opened(run).weights)


def test_an_xlnet_can_start_from_a_pretrained_folder(tmp_path: Path) -> None:
    """Its body has the folder's weights, and its summary symbol has the type that it has there."""
    name = "XLNetLMHeadModel"
    theirs = xlnet(tmp_path / "theirs", name, d_model=12, n_head=3)
    raw = recipe(files(tmp_path / "data"), steps=1, rate=1e-9, validate_every=1)
    raw["data"]["longest"] = 16
    raw["model"] = {"encoder": {"kind": "xlnet", "longest": 16}, "pool": "last"}
    raw["model"]["encoder"] |= {"layers": 2}
    _, notes = trained(raw, tmp_path / "run", start=theirs)
    (told,) = [note for note in notes if "taken" in note]
    assert "new: pool.*, answer.*" in told
    run = open_run(tmp_path / "run", CPU)
    ((ids,),) = run.worker.rows([("the cat sat",)])
    words, model = their(name, theirs)
    assert ids == words("the cat sat").input_ids
    assert ids[-2:] == [words.sep_token_id, words.cls_token_id]
    mine = run.worker.model.eval()(torch.tensor([ids]), torch.tensor([len(ids)])).states
    types = [[0] * (len(ids) - 1) + [2]]
    there = model.transformer(torch.tensor([ids]), token_type_ids=torch.tensor(types))
    torch.testing.assert_close(mine, there.last_hidden_state, rtol=0, atol=1e-5)
    ((cut,),) = run.worker.rows([("the cat sat on the mat , and a dog came too",)])
    assert (len(cut), cut[-2:]) == (16, ids[-2:])  # the text is cut, not the special symbols
    (shown,) = show(tmp_path / "run", ["the cat sat"], device="cpu", every=True)
    assert len(shown.panels) == 2 * 3
    heard = one_pass(run.worker, ("the cat sat",))
    path = next(iter(heard.calls))
    assert len(heard.words(path)) == len(ids)
    assert "relative" in str(heard.walk(path, len(ids) - 1, 2).parts)


def test_an_xlnet_trains_from_scratch_and_from_a_run_and_resumes(tmp_path: Path) -> None:
    raw = recipe(files(tmp_path / "data"), rate=0.01, save_every=30)
    sizes = {"size": "tiny", "layers": 1, "width": 16, "heads": 2, "dropout": 0.0}
    raw["model"] = {"encoder": {"kind": "xlnet", **sizes}, "pool": "last", "dropout": 0}
    done, _ = trained(raw, tmp_path / "run")
    assert done.scores["test"].accuracy == 100
    ((ids,),) = open_run(tmp_path / "run", CPU).worker.rows([("it was good .",)])
    assert ids[-2:] == [EOS, BOS]  # like the rows that XLNet is pretrained on
    shutil.copytree(tmp_path / "run", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut/checkpoints/step-60")
    again = finish(train(None, tmp_path / "cut", resume=True, device="cpu"))
    assert again.scores["test"] == done.scores["test"]
    _, notes = trained(raw, tmp_path / "next", start=tmp_path / "run")
    assert not [note for note in notes if "new:" in note]
    changed = resolve(with_attention(raw, "sparsemax")).model
    assert (changed.encoder.attention, changed.pool) == ("sparsemax", "last")


def test_an_xlnet_can_start_from_a_pretraining(tmp_path: Path) -> None:
    model = {"kind": "xlnet", "size": "tiny", "layers": 2, "width": 16, "heads": 2}
    finish(
        train(
            resolve(yaml.safe_load(hiding(tmp_path, model, {"kind": "permutation"}).read_text())),
            tmp_path / "learnt",
            device="cpu",
        )
    )
    raw = recipe(files(tmp_path / "data"), steps=1, rate=1e-9, validate_every=1)
    raw["model"] = {"encoder": {"kind": "xlnet", "longest": 128}, "pool": "last"}
    raw["data"]["longest"] = 20
    _, notes = trained(raw, tmp_path / "run", start=tmp_path / "learnt")
    assert any("model.encoder.layers=2, model.encoder.width=16" in note for note in notes)
    assert any(note.endswith("tensors; new: pool.*, answer.*") for note in notes)
    before, after = weights(tmp_path / "learnt"), weights(tmp_path / "run")
    names = [name for name in before if name.startswith("streams.")]
    assert len(names) > 20
    for name in names:
        torch.testing.assert_close(after[f"encoder.{name}"], before[name], rtol=0, atol=1e-6)
    # A recipe of another kind says so, whatever else differs.
    keys = "model.encoder.kind=xlnet model.pool=last"
    command = f"heed train sst2-bert {keys} --from {tmp_path}/learnt"
    for encoder, wants in (
        ({"kind": "bert"}, f"a BERT; to take it: {keys}"),
        ({"kind": "lstm"}, f"another network; for an XLNet: {command}"),
    ):
        raw["model"] = {"encoder": encoder, "pool": "mean"}
        kind = encoder["kind"]
        said = f"learnt is an XLNet, but the recipe's model.encoder.kind={kind} is {wants}$"
        with pytest.raises(Refused, match=said):
            trained(raw, tmp_path / "other", start=tmp_path / "learnt")
