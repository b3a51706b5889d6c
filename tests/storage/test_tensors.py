"""The safetensors format: the library reads what heed writes, and heed what the library writes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from heed.errors import Refused
from heed.storage import atomic, tensors
from heed.storage.durable import Damaged


def write(path: Path, named: dict[str, Tensor]) -> Path:
    atomic.replace(path, tensors.parts(named))
    return path


def bits(tensor: Tensor) -> bytes:
    plain = tensor.detach().cpu().resolve_conj().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def check_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, x in ours.items():
        y = theirs[name]
        assert (x.dtype, x.shape, bits(x)) == (y.dtype, y.shape, bits(y)), name


def many() -> dict[str, Tensor]:
    wide = torch.randn(6, 8)
    return {
        "float32": wide,
        "bf16": wide.bfloat16(),
        "float16": wide.half(),
        "float64": wide.double(),
        "float8": wide.to(torch.float8_e4m3fn),
        "turned": torch.randn(5, 7).T,
        "sliced": torch.randn(8, 8)[1:7:2, ::3],
        "expanded": torch.randn(3, 1).expand(3, 4),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0),
        "empty axis": torch.empty(3, 0, 2, dtype=torch.int16),
        "int64": torch.tensor([-(2**62), 2**62]),
        "rng": torch.get_rng_state(),
        "bool": torch.tensor([True, False, True]),
        "uint16": torch.tensor([65535], dtype=torch.uint16),
        "odd": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
        "grad": torch.randn(3, requires_grad=True),
        "名/with.dots": torch.randn(2),
    }


def test_the_library_reads_what_heed_writes(tmp_path: Path) -> None:
    named = many()
    path = write(tmp_path / "a.safetensors", named)
    check_same(safetensors.torch.load_file(path), named)


def test_heed_reads_what_the_library_writes(tmp_path: Path) -> None:
    named = {name: x.detach().contiguous() for name, x in many().items()}
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file(named, path, {"by": "someone else"})
    check_same(tensors.read(path), named)


def test_tensors_are_restored_bit_for_bit(tmp_path: Path) -> None:
    named = many() | {"conjugate": torch.randn(3, dtype=torch.complex64).conj()}
    path = write(tmp_path / "a.safetensors", named)
    found = tensors.read(path)
    check_same(found, named)
    assert all(x.data_ptr() % 16 == 0 for x in found.values() if x.numel())
    kinds = {name: (x.dtype, tuple(x.shape)) for name, x in named.items()}
    assert tensors.header(path) == kinds
    check_same(tensors.read(write(tmp_path / "none.safetensors", {})), {})


def test_tied_tensors_are_written_once_and_stay_tied(tmp_path: Path) -> None:
    embed, project = nn.Embedding(50, 40), nn.Linear(40, 50, bias=False)
    project.weight = embed.weight
    model = nn.ModuleDict({"embed": embed, "project": project})
    path = write(tmp_path / "a.safetensors", model.state_dict())
    assert path.stat().st_size < 1.2 * embed.weight.nbytes
    found = tensors.read(path)
    check_same(found, dict(model.state_dict()))
    assert found["embed.weight"] is found["project.weight"]
    assert tensors.header(path).keys() == found.keys()
    assert list(safetensors.torch.load_file(path)) == ["embed.weight"]


def test_views_that_overlap_partly_are_saved_separately(tmp_path: Path) -> None:
    base = torch.randn(4, 4)
    named = {"all": base, "row": base[0], "turned": base.T, "bits": base.view(torch.int32)}
    check_same(tensors.read(write(tmp_path / "a.safetensors", named)), named)
    assert tensors.ties(named) == {}
    assert tensors.ties({"a": torch.empty(0), "b": torch.empty(0)}) == {}


@pytest.mark.parametrize(
    "named",
    [
        {"a": torch.zeros(3).to_sparse()},
        {"a": torch.zeros(3, device="meta")},
        {"a": torch.zeros(3, dtype=torch.complex128)},
        {"__metadata__": torch.zeros(3)},
        {"a": 3.0},
    ],
)
def test_tensors_that_cannot_be_saved_are_refused(tmp_path: Path, named: Any) -> None:
    with pytest.raises(Refused, match="can"):
        write(tmp_path / "a.safetensors", named)
    assert os.listdir(tmp_path) == []


def raw(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(shape: Any = (2,), offsets: Any = (0, 8), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HOSTILE: dict[str, tuple[Any, bytes]] = {
    "no json": (b"{{", b""),
    "a list": ([], b""),
    "a name twice": (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
        b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b"x",
    ),
    "no such dtype": ({"a": entry(dtype="os.system")}, bytes(8)),
    "a dtype that is no name": ({"a": entry(dtype=["F32"])}, bytes(8)),
    "wrong size": ({"a": entry([3])}, bytes(8)),
    "huge": ({"a": entry([2**60])}, bytes(8)),
    "huge and empty": ({"a": entry([0, 2**62, 2**62], [0, 0])}, b""),
    "negative": ({"a": entry([-1, -2])}, bytes(8)),
    "a truth": ({"a": entry([True, 2])}, bytes(8)),
    "a fraction": ({"a": entry([2.0])}, bytes(8)),
    "offsets backwards": ({"a": entry([0], [8, 0])}, b""),
    "three offsets": ({"a": entry([2], [0, 4, 8])}, bytes(8)),
    "overlap": ({"a": entry(), "b": entry()}, bytes(8)),
    "gap": ({"a": entry(), "b": entry([1], [12, 16])}, bytes(16)),
    "too little": ({"a": entry()}, bytes(7)),
    "too much": ({"a": entry()}, bytes(9)),
    "a number": ({"a": 3}, bytes(8)),
    "no offsets": ({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)),
    "metadata is a list": ({"__metadata__": []}, b""),
    "tied to nothing": ({"__metadata__": {"tied": '{"b": "c"}'}, "a": entry()}, bytes(8)),
    "tied over another": ({"__metadata__": {"tied": '{"a": "a"}'}, "a": entry()}, bytes(8)),
    "tied to a list": ({"__metadata__": {"tied": '{"b": ["a"]}'}, "a": entry()}, bytes(8)),
    "tied is no json": ({"__metadata__": {"tied": "x"}, "a": entry()}, bytes(8)),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_is_refused(tmp_path: Path, case: str) -> None:
    path = raw(tmp_path / "a.safetensors", *HOSTILE[case])
    for look in (tensors.header, tensors.read):
        with pytest.raises(Damaged, match=str(path)) as caught:
            look(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("length", [0, 1, 10**6, 2**63, 2**64 - 1])
def test_a_header_of_a_wrong_length_is_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(Damaged, match="is incomplete"):
        tensors.header(raw(tmp_path / "a.safetensors", {"a": entry()}, bytes(8), length))


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", {"a": torch.randn(3), "b": torch.arange(4)})
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(Damaged):
            tensors.read(path)


def test_the_length_of_a_header_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "HEADER_LIMIT", 200)
    with pytest.raises(Refused, match="or their names too long"):
        write(tmp_path / "a.safetensors", {"x" * 200: torch.zeros(1)})
