"""Watches in files are read as they were written; invalid files are refused."""

import json
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import heed
from heed.errors import Refused
from heed.records import Summary
from heed.watching.watch import Watched, load_watch

HOSTILE = ["</script><script>alert(1)</script>", "\u202e\ud800", "", "x" * 1000, "\x00", "中国"]


def watched(tmp_path: Path, spill: bool = False) -> Watched:
    net = torch.nn.ModuleList([heed.MultiHeadAttention(8, 2), heed.Attention("mixed", query=8)])
    wish: dict[str, Any] = {"limit": 900, "spill": tmp_path / "spilled"} if spill else {}
    asked = Summary(top=2, map=(2, 3), rows=(0, 4))
    with torch.no_grad(), heed.watch(net.eval(), "energy", statistics=asked, **wish) as seen:
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            net.to(dtype)
            x = torch.randn(2, 5, 8).to(dtype)
            net[0](x, visible=heed.causal())
            net[1](net[0](x[:1]).context)
    seen.tokens(HOSTILE, [HOSTILE[:2], ["a"]], modules="1")
    return seen


def same(one: Watched, two: Watched) -> None:
    assert list(one) == list(two)
    assert one.words == two.words
    assert (one.heads, one.rows) == (two.heads, two.rows)
    for path in one:
        assert one[path].when == two[path].when
        assert len(one[path]) == len(two[path])
        for a, b in zip(one[path], two[path], strict=True):
            assert (a.kernel, a.refusals) == (b.kernel, b.refusals)
            assert (a.state.step, a.state.origin) == (b.state.step, b.state.origin)
            assert torch.equal(a.weight, b.weight)
            assert a.weight.dtype == b.weight.dtype
            for x, y in zip(a.statistics, b.statistics, strict=True):
                assert (x is None) == (y is None)
                assert x is None or (y is not None and torch.equal(x, y))


@pytest.mark.parametrize("spill", [False, True])
def test_a_file_is_read_as_it_was_written(tmp_path: Path, spill: bool) -> None:
    seen = watched(tmp_path, spill)
    file = tmp_path / "seen.safetensors"
    seen.save(file)
    again = load_watch(file)
    same(seen, again)
    again.save(tmp_path / "twice")
    same(seen, load_watch(str(tmp_path / "twice")))
    assert (tmp_path / "twice").read_bytes() == file.read_bytes()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize("folder", ["missing", "a file"])
def test_a_path_that_cannot_be_written_is_reported_in_one_line(tmp_path: Path, folder: str) -> None:
    (tmp_path / "a file").touch()
    place = tmp_path / folder / "seen"
    with pytest.raises(Refused, match=f"cannot write '{re.escape(str(place))}'"):
        watched(tmp_path).save(place)


def test_followed_texts_can_still_be_followed(tmp_path: Path) -> None:
    from tests.watching.test_hypotheses import searched, survivors, transformer

    net: Any = transformer()
    with heed.watch(net, heads=[1]) as seen:
        found = searched(net)
    seen.save(tmp_path / "seen")
    again = load_watch(tmp_path / "seen")
    for _, one in survivors(found):
        want, got = seen.follow(one), again.follow(one)
        assert list(want) == list(got)
        assert all(torch.equal(want[path].weight, got[path].weight) for path in want)


def test_tensors_are_read_when_they_are_accessed(tmp_path: Path) -> None:
    seen = watched(tmp_path)
    seen.save(tmp_path / "seen")
    again = load_watch(tmp_path / "seen")
    assert all(callable(entry) for entry in again["0"].entries)
    os.remove(tmp_path / "seen")
    with pytest.raises(Refused, match="there is no file"):
        again["0"][0]


def parts(file: Path) -> tuple[dict[str, Any], bytes]:
    data = file.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + n]), data[8 + n :]


def put(file: Path, header: dict[str, Any], numbers: bytes) -> None:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + numbers)


Spoil = Callable[[dict[str, Any]], object]


def first(told: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = told["modules"]["0"][0]
    return entry


SPOILT: dict[str, Spoil] = {
    "version": lambda t: t.update(version=2),
    "no modules": lambda t: t.pop("modules"),
    "something more": lambda t: t.update(run="os.system"),
    "modules are no table": lambda t: t.update(modules=[1]),
    "a record is not a table": lambda t: t["modules"].update({"0": [3]}),
    "a field twice": lambda t: first(t)["fields"].append("weight"),
    "an unknown field": lambda t: first(t).update(fields=["__class__"]),
    "a field that is elsewhere": lambda t: first(t)["fields"].append("penalty"),
    "fields left over": lambda t: first(t)["fields"].remove("energy"),
    "half the statistics": lambda t: first(t).update(fields=["statistics.mass"]),
    "a kernel that is a number": lambda t: first(t).update(kernel=1),
    "refusals that are no pairs": lambda t: first(t).update(refusals=["ab", "abc"]),
    "a state of words": lambda t: first(t).update(state=["a", "b"]),
    "a text that is not there": lambda t: first(t).update(when=[0, 0]),
    "heads of words": lambda t: t.update(heads=["0"]),
    "words of nobody": lambda t: t["words"].update({"9": [[], []]}),
    "words that are numbers": lambda t: t["words"].update({"1": [[[1]], [[2]]]}),
    "rows from nowhere": lambda t: t.update(texts=[[[[1], [2]], [[0], [5]]]]),
    "rows of another number": lambda t: t.update(texts=[[[[1, 2]], [[0]]]]),
    "texts of words": lambda t: t.update(texts=["ab"]),
    "texts of booleans": lambda t: t.update(texts=[[[[True]], [[False]]]]),
}


@pytest.mark.parametrize("name", SPOILT)
def test_invalid_files_are_refused(name: str, tmp_path: Path) -> None:
    file = tmp_path / "seen"
    watched(tmp_path).save(file)
    header, numbers = parts(file)
    told = json.loads(header["__metadata__"]["heed.watch"])
    SPOILT[name](told)
    header["__metadata__"]["heed.watch"] = json.dumps(told)
    put(file, header, numbers)
    with pytest.raises(Refused):
        load_watch(file)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "[" * 100_000, "9" * 10_000, '{"version": 1}', '"heed"']
)
def test_hostile_metadata_are_refused(text: str, tmp_path: Path) -> None:
    save_file({"0.weight": torch.zeros(1, 1, 1, 1)}, tmp_path / "seen", {"heed.watch": text})
    with pytest.raises(Refused):
        load_watch(tmp_path / "seen")


def test_statistics_must_be_complete(tmp_path: Path) -> None:
    file, names = tmp_path / "seen", ("mass", "entropy", "peak", "place", "expected", "spread")
    tensors = {f"0.statistics.{name}": torch.zeros(1, 1, 2) for name in (*names, "received")}
    tensors["0.statistics.place"] = torch.zeros(1, 1, 2, dtype=torch.long)
    for left in (None, *tensors):
        kept = {name: x for name, x in tensors.items() if name != left}
        entry = {"kernel": "", "refusals": [], "state": [0, 0], "when": None}
        entry["fields"] = [name[2:] for name in kept]
        told: dict[str, Any] = {"version": 1, "modules": {"a": [entry]}, "heads": None}
        told |= {"rows": None, "words": {}, "texts": []}
        save_file(kept, file, {"heed.watch": json.dumps(told)})
        if left is None:
            assert load_watch(file)["a"][0].statistics.peak.shape == (1, 1, 2)
        elif left == "0.statistics.received":  # not always asked for
            assert load_watch(file)["a"][0].statistics.received is None
        else:
            with pytest.raises(Refused, match="describes an invalid watch"):
                load_watch(file)


def test_the_largest_weights_need_places_and_shares(tmp_path: Path) -> None:
    file, attend = tmp_path / "seen", heed.MultiHeadAttention(4, 2)
    with heed.watch(attend, statistics=heed.Summary(top=2)) as seen:
        attend(torch.randn(1, 3, 4))
    seen.save(file)
    assert load_watch(file)[""][0].statistics.top.shape[-1] == 2
    header, _ = parts(file)
    tensors = load_file(file)
    for left in ("0.statistics.top", "0.statistics.share"):
        told = json.loads(header["__metadata__"]["heed.watch"])
        told["modules"][""][0]["fields"].remove(left[2:])
        kept = {name: x for name, x in tensors.items() if name != left}
        save_file(kept, file, {"heed.watch": json.dumps(told)})
        with pytest.raises(Refused, match="describes an invalid watch"):
            load_watch(file)


def test_shapes_and_dtypes_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "seen"
    watched(tmp_path).save(file)
    header, numbers = parts(file)
    size = 2 * 2 * 5 * 5
    for change in (
        {"shape": [size]},
        {"shape": [2, 2, 25, 1]},
        {"shape": [1, 4, 5, 5]},
        {"dtype": "I32"},
    ):
        put(file, {**header, "0.weight": {**header["0.weight"], **change}}, numbers)
        with pytest.raises(Refused, match="describes an invalid watch"):
            load_watch(file)
    for change in (
        {"shape": [2, 2, 5, 2**40]},
        {"data_offsets": [0, 2**50]},
        {"dtype": "object"},
    ):
        put(file, {**header, "0.weight": {**header["0.weight"], **change}}, numbers)
        with pytest.raises(Refused, match="not a safetensors file"):
            load_watch(file)


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "seen"
    watched(tmp_path).save(file)
    data = file.read_bytes()
    for cut in (0, 7, 8, 100, len(data) - 1):
        file.write_bytes(data[:cut])
        with pytest.raises(Refused, match="not a safetensors file, or is incomplete"):
            load_watch(file)
    torch.save({"a": 1}, file)
    with pytest.raises(Refused, match="not a safetensors file"):
        load_watch(file)
    save_file({"a": torch.zeros(1)}, file)
    with pytest.raises(Refused, match="not a saved watch"):
        load_watch(file)
    with pytest.raises(Refused, match="there is no file"):
        load_watch(tmp_path / "nothing")
    with pytest.raises(Refused, match="not a plain file"):
        load_watch(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Refused, match="not a plain file"):
        load_watch(tmp_path / "pipe")
