"""Files of a pretrained folder, which may be anybody's."""

from __future__ import annotations

import json
import os
import pickle
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from heed.errors import HeedError, Refused
from heed.running import shards
from heed.running.shards import MANY, SMALL, Shelf, find
from tests.running.folders import cut, headed, page, pointer

TENSORS = {"a": torch.randn(3, 4), "b": torch.randn(5).half(), "c": torch.arange(6)}
INDEX = "model.safetensors.index.json"


def single(folder: Path) -> None:
    save_file(TENSORS, folder / "model.safetensors", {"format": "pt"})


def sharded(folder: Path) -> dict[str, str]:
    places = {name: f"model-0000{i + 1}-of-00003.safetensors" for i, name in enumerate(TENSORS)}
    for name, file in places.items():
        save_file({name: TENSORS[name]}, folder / file, {"format": "pt"})
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return places


def pickled(folder: Path) -> None:
    torch.save(TENSORS, folder / "pytorch_model.bin")


def assert_all_there(folder: Path, trusted: bool = False) -> None:
    weights = find(Shelf(folder), pickled=trusted)
    assert weights.header == {name: (x.dtype, tuple(x.shape)) for name, x in TENSORS.items()}
    with weights.reader() as read:
        assert all(torch.equal(read(name), x) for name, x in TENSORS.items())


def test_weights_may_be_whole_in_shards_or_pickled(tmp_path: Path) -> None:
    for i, write in enumerate((single, sharded, pickled)):
        folder = tmp_path / str(i)
        folder.mkdir()
        write(folder)
        assert_all_there(folder, trusted=True)


TABLE = torch.randn(700, 3)
TABLE[3] = 0.0


LAST = (torch.tensor(699), torch.tensor(2))


@pytest.mark.parametrize(
    ("output", "copy", "original"),
    [
        (TABLE.clone(), True, True),
        (TABLE.where(TABLE != 0, -0.0), True, True),
        (TABLE.bfloat16(), True, False),
        (TABLE.half(), True, False),
        (TABLE.double(), True, True),
        (TABLE.double() * (1 + 1e-12), False, True),
        (TABLE.index_put(LAST, torch.tensor(9.0)), False, False),
        (TABLE.index_put(LAST, torch.tensor(torch.nan)), False, False),
        (TABLE.bfloat16() * 1.01, False, False),
        (TABLE[:699].clone(), False, False),
        (torch.zeros(700, 3, dtype=torch.int64), False, False),
    ],
    ids=[
        "same",
        "-0.0",
        "bf16",
        "half",
        "double",
        "finer",
        "one-number",
        "nan",
        "other",
        "less",
        "whole",
    ],
)
def test_a_copy_is_one_by_its_numbers(
    output: torch.Tensor,
    copy: bool,
    original: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a coarser type, or with zeros of the other sign, it is still one; with digits that the
    other lacks it is none."""
    monkeypatch.setattr(shards, "PART", 999)  # several parts
    save_file({"table": TABLE, "output": output}, tmp_path / "model.safetensors")
    weights = find(Shelf(tmp_path))
    assert weights.alike("output", "table") is copy
    assert weights.alike("table", "output") is original


def test_nothing_is_a_copy_of_nothing(tmp_path: Path) -> None:
    """A table that diverged is still the same one."""
    spoilt = TABLE.where(TABLE != 0, torch.nan)
    save_file({"table": spoilt, "output": spoilt.bfloat16()}, tmp_path / "model.safetensors")
    assert find(Shelf(tmp_path)).alike("output", "table")


def described(folder: Path, **metadata: object) -> None:
    """Like `single`, with this in the metadata."""
    single(folder)
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length]) | {"__metadata__": metadata}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + length :])


def test_headers_that_only_the_library_refuses_are_reported_in_one_line(tmp_path: Path) -> None:
    """Before the first tensor is read: by then a network would have been made."""
    described(tmp_path, format=3)
    with pytest.raises(Refused, match="is not a safetensors file"), find(Shelf(tmp_path)).reader():
        raise AssertionError("opened")


@pytest.mark.parametrize("tied", [json.dumps({"d": "a"}), "yes", "{}", 3])
def test_metadata_of_heeds_own_files_have_no_meaning_here(tmp_path: Path, tied: object) -> None:
    """Every reader of safetensors knows only names with numbers of their own."""
    described(tmp_path, tied=tied)
    assert find(Shelf(tmp_path)).header.keys() == TENSORS.keys()


def test_a_pickled_file_is_read_only_if_asked_for(tmp_path: Path) -> None:
    pickled(tmp_path)
    with pytest.raises(Refused, match="--pickled"):
        find(Shelf(tmp_path))
    single(tmp_path)
    assert not find(Shelf(tmp_path), pickled=True).pickled


def test_pickled_shards(tmp_path: Path) -> None:
    for name, x in TENSORS.items():
        torch.save({name: x}, tmp_path / f"pytorch_model-{name}.bin")
    places = {name: f"pytorch_model-{name}.bin" for name in TENSORS}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    assert_all_there(tmp_path, trusted=True)


class Touch:
    """A pickle that runs code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_with_code_does_not_run_it(tmp_path: Path) -> None:
    torch.save({"a": Touch(tmp_path / "touched")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(Refused, match="cannot be read as weights"):
        find(Shelf(tmp_path), pickled=True)
    assert not (tmp_path / "touched").exists()


def plain_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps({"a": 1}))


def other_things(path: Path) -> None:
    torch.save({"a": torch.zeros(2), "step": 7}, path)


def test_pickled_weights_may_share_their_numbers(tmp_path: Path) -> None:
    """A table and the output tied to it, as `save_pretrained` wrote them; and views."""
    table = torch.randn(50, 4)
    tied = {"table": table, "output": table, "more": torch.randn(9, 9)[2:].T}
    torch.save(tied, tmp_path / "pytorch_model.bin")
    with find(Shelf(tmp_path), pickled=True).reader() as read:
        assert all(torch.equal(read(name), x) for name, x in tied.items())


def test_pickled_weights_of_every_precision(tmp_path: Path) -> None:
    kinds = (torch.double, torch.half, torch.bfloat16, torch.float8_e4m3fn, torch.uint8, torch.bool)
    named = OrderedDict({str(kind): torch.ones(3).to(kind) for kind in kinds})
    named["learnt"] = torch.nn.Parameter(torch.randn(2))
    named._metadata = OrderedDict({"": {"version": 1}})  # type: ignore[attr-defined]  # of a module
    torch.save(named, tmp_path / "pytorch_model.bin")
    weights = find(Shelf(tmp_path), pickled=True)
    assert weights.header == {name: (x.dtype, tuple(x.shape)) for name, x in named.items()}
    with weights.reader() as read:
        assert all(torch.equal(read(name).float(), x.float()) for name, x in named.items())


def odd_letters(path: Path) -> None:
    torch.save(TENSORS, path)
    path.write_bytes(path.read_bytes().replace(b"/data/0", b"/data/\xff"))


@pytest.mark.parametrize("broken", [plain_pickle, other_things, odd_letters, page, pointer])
def test_a_file_that_is_not_a_checkpoint_is_refused(tmp_path: Path, broken) -> None:
    broken(tmp_path / "pytorch_model.bin")
    with pytest.raises(Refused, match=r"pytorch_model\.bin"):
        find(Shelf(tmp_path), pickled=True)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (pointer, "Git LFS pointer"),
        (page, "web page"),
        (cut, "is incomplete"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes of numbers"),
        (lambda path: path.write_bytes(b""), "is incomplete"),
        (lambda path: path.write_bytes(b"\0" * 8), "is incomplete"),
        (lambda path: path.write_bytes(b"PK\3\4" + b"\0" * 50), "zip"),
        (lambda path: headed(path, b"[" * SMALL + b"]" * SMALL, 10), "header of 2,097,152"),
        (lambda path: headed(path, b"[" * 2000), "valid JSON"),
        (lambda path: headed(path, b"[]"), "not a table"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "not a plain file"),
        (lambda path: (path.unlink(), path.mkdir()), "not a plain file"),
    ],
)
def test_pickled_values_that_are_not_weights_are_refused(tmp_path: Path, broken, says: str) -> None:
    single(tmp_path)
    broken(tmp_path / "model.safetensors")
    with pytest.raises(HeedError, match=says):
        find(Shelf(tmp_path))


def test_a_missing_or_wrong_shard_is_refused(tmp_path: Path) -> None:
    places = sharded(tmp_path)
    second = tmp_path / places["b"]
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(Refused, match=r"no model-00002-of-00003\.safetensors, which .* lists"):
        find(Shelf(tmp_path))
    save_file({"b": TENSORS["b"], "d": torch.zeros(2)}, second)
    with pytest.raises(Refused, match="disagree on 'd'"):
        find(Shelf(tmp_path))
    save_file({"a": TENSORS["a"]}, second)
    with pytest.raises(Refused, match="disagree on 'a'"):
        find(Shelf(tmp_path))
    second.write_bytes(kept)
    assert_all_there(tmp_path)


@pytest.mark.parametrize(
    "file",
    ["../out.safetensors", "/etc/passwd", "sub/a.safetensors", "..", ".", "", ".hidden", "a\0b", 7],
)
def test_an_index_may_only_name_plain_files_of_its_folder(tmp_path: Path, file: object) -> None:
    save_file(TENSORS, tmp_path / "out.safetensors")
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    save_file(TENSORS, folder / "sub" / "a.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(TENSORS, file)}))
    with pytest.raises(HeedError, match=r"not a valid file name|file of each tensor"):
        find(Shelf(folder))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "[" * 5000, '{"a": 1, "a": 2}'],
)
def test_an_invalid_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(HeedError, match="index"):
        find(Shelf(tmp_path))


def test_too_many_shards_are_refused(tmp_path: Path) -> None:
    names = {f"t{i}": f"f{i}.safetensors" for i in range(MANY + 1)}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": names}))
    with pytest.raises(Refused, match="1,001 files"):
        find(Shelf(tmp_path))


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    single(tmp_path)
    (folder / "model.safetensors").symlink_to(tmp_path / "model.safetensors")
    with pytest.raises(Refused, match="is a link out"):
        find(Shelf(folder))
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("model.safetensors")
    with pytest.raises(Refused, match="is a broken link"):
        find(Shelf(folder))


def test_links_of_a_hub_cache_may_only_lead_to_its_blobs(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--x" / "snapshots" / "abc"
    blobs = tmp_path / "models--x" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    single(blobs)
    (snapshot / "model.safetensors").symlink_to("../../blobs/model.safetensors")
    assert_all_there(snapshot)
    single(tmp_path)
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(tmp_path / "model.safetensors")
    with pytest.raises(Refused, match="is a link out"):
        find(Shelf(snapshot))


def test_missing_weights_and_folders_are_reported(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"has no model\.safetensors"):
        find(Shelf(tmp_path))
    with pytest.raises(Refused, match="not a folder"):
        Shelf(tmp_path / "nowhere")
