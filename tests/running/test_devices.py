"""Devices by name, and who speaks among many processes."""

import pytest
import torch

from heed.errors import Refused
from heed.running.devices import chosen, speaks, version


def test_auto_takes_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, kind in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert chosen("auto").type == kind
    assert chosen("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gpu", "there is no device 'gpu'; use auto, cpu or cuda"),
        ("", "there is no device ''"),
        ("meta", "'meta' is not a device that heed runs on"),
        ("cuda", "there is no CUDA device here; use --device cpu"),
        ("cuda:1", "there is no CUDA device here"),
    ],
)
def test_what_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Refused, match=says):
        chosen(name)


@pytest.mark.parametrize(("rank", "speaking"), [(None, True), ("0", True), ("1", False)])
def test_the_first_process_speaks(
    monkeypatch: pytest.MonkeyPatch, rank: str | None, speaking: bool
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    assert speaks() is speaking


def test_a_source_tree_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    assert version()[0].isdigit()
    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert version() == "unknown"
