"""heed convert on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.running.folders import cut, network, page, pointer, reconfigure, save

FIRST = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # the first symbols of BERT's vocabulary


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    made = save(network("BertForMaskedLM"), tmp_path / "theirs")
    capsys.readouterr()  # progress bars of transformers
    return made


@pytest.fixture
def converting(command: Callable[..., Any], tmp_path: Path, folder: Path) -> Callable[..., Any]:
    """Convert the folder, or another one, to a new folder."""

    def run(*words: str, source: Path = folder, target: str = "ours") -> Any:
        return command("convert", str(source), str(tmp_path / target), *words)

    return run


def test_a_round_trip(converting: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    done = converting()
    assert done.code == 0
    assert "bert with the head 'masked'" in done.out
    assert "weights" in done.err
    again = converting("--json", source=tmp_path / "ours", target="back")
    assert again.err == ""
    told = json.loads(again.out)
    assert (told["layout"], told["kind"], told["head"]) == ("huggingface", "bert", "masked")
    symbols = torch.randint(20, (1, 8))
    cls = transformers.BertForMaskedLM
    one, other = (cls.from_pretrained(path).eval() for path in (folder, tmp_path / "back"))
    with torch.no_grad():
        assert torch.equal(one(symbols).logits, other(symbols).logits)


@pytest.mark.parametrize("verb", ["show", "predict"])
def test_verbs_accept_a_converted_folder(
    verb: str,
    converting: Callable[..., Any],
    command: Callable[..., Any],
    folder: Path,
    tmp_path: Path,
) -> None:
    words = [*FIRST, *(f"w{n}" for n in range(len(FIRST), 20))]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    assert converting().code == 0
    given = tmp_path / "in.txt" if verb == "predict" else "w7 w8 w9"
    (tmp_path / "in.txt").write_text("w7 [MASK] w9\n")
    mine, theirs = (command(verb, str(path), str(given)) for path in (tmp_path / "ours", folder))
    assert (mine.code, mine.err.count("heed:")) == (0, 0)
    assert mine.out == theirs.out != ""


def test_converting_twice_is_refused(converting: Callable[..., Any], tmp_path: Path) -> None:
    assert converting().code == 0
    before = (tmp_path / "ours" / "config.json").read_bytes()
    done = converting()
    assert (done.code, done.out) == (2, "")
    assert "name a new folder" in done.err
    assert (tmp_path / "ours" / "config.json").read_bytes() == before


BROKEN: dict[str, tuple[Any, str]] = {
    "pointer": (lambda f: pointer(f / "model.safetensors"), "git lfs pull"),
    "page": (lambda f: page(f / "model.safetensors"), "download it again"),
    "cut": (lambda f: cut(f / "model.safetensors"), "bytes of numbers"),
    "missing": (lambda f: (f / "model.safetensors").unlink(), "has no model.safetensors"),
    "sizes": (lambda f: reconfigure(f, hidden_size=10**12), "hidden_size"),
    "shapes": (lambda f: reconfigure(f, vocab_size=21), "has the shape"),
    "family": (lambda f: reconfigure(f, model_type="bort"), "did you mean bert?"),
    "architecture": (
        lambda f: reconfigure(f, architectures=["BertForMaskedLN"]),
        "did you mean BertForMaskedLM",
    ),
    "control": (lambda f: reconfigure(f, model_type="\x1b[31mred\n"), "\\x1b[31mred"),
}


@pytest.mark.parametrize("wrong", BROKEN)
def test_bad_input_is_one_line_and_code_2(
    converting: Callable[..., Any], folder: Path, tmp_path: Path, wrong: str
) -> None:
    change, says = BROKEN[wrong]
    change(folder)
    done = converting()
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("heed: ")
    assert done.err.count("\n") == 1
    assert says in done.err
    assert not (tmp_path / "ours").exists()


def test_pickled_weights_need_the_option(
    converting: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    torch.save(network("BertForMaskedLM").state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    done = converting()
    assert done.code == 2
    assert "--pickled" in done.err
    assert converting("--pickled").code == 0


def test_a_name_is_looked_up_at_the_hub(
    converting: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(name: str, **options: Any) -> str:
        raise ConnectionError("no route to host")

    for verb in ("snapshot_download", "model_info"):
        monkeypatch.setattr(f"huggingface_hub.{verb}", offline)
    done = converting("--revision", "abc", source=Path("someone/bert"))
    assert (done.code, done.out) == (2, "")
    assert "hub cannot be reached" in done.err
    assert done.err.count("\n") == 1
