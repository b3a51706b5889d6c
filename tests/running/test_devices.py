"""Devices by name, and which of several processes prints."""

import pytest
import torch

from heed.errors import Refused
from heed.running.devices import chosen, crowded, no_memory, speaks


def test_auto_takes_a_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, kind in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert chosen("auto").type == kind
    assert chosen("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("load", "threads", "device", "told"),
    [
        (3.5, 2, "cpu", True),
        (1.2, 2, "cpu", True),
        (0.3, 2, "cpu", False),  # idle
        (3.5, 1, "cpu", False),  # one thread waits for no other
        (3.5, 2, "cuda", False),
    ],
)
def test_a_busy_machine_is_reported(
    monkeypatch: pytest.MonkeyPatch, load: float, threads: int, device: str, told: bool
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    said = crowded(torch.device(device))
    assert bool(said) == told
    if told:
        assert f"load {load} on 2 cores" in said
        assert "OMP_NUM_THREADS=1" in said


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
def test_an_unavailable_device_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Refused, match=says):
        chosen(name)


def test_a_gpu_number_beyond_the_last_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert chosen("cuda:1") == torch.device("cuda:1")
    with pytest.raises(Refused, match="there is no device 'cuda:2': the last one is cuda:1"):
        chosen("cuda:2")


@pytest.mark.parametrize(("rank", "speaking"), [(None, True), ("0", True), ("1", False)])
def test_only_the_first_process_prints(
    monkeypatch: pytest.MonkeyPatch, rank: str | None, speaking: bool
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    assert speaks() is speaking


def test_a_full_gpu_is_told_from_other_errors() -> None:
    said = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 1 GiB."
    full = torch.OutOfMemoryError(said)
    assert no_memory(full) == "the GPU's memory is full: 20.00 MiB more were needed"
    assert no_memory(torch.OutOfMemoryError("?")) == "the GPU's memory is full"
    assert no_memory(MemoryError()) == "memory is full"
    assert no_memory(RuntimeError(said)) == ""
