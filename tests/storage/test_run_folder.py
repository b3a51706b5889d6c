"""The run folder: it refuses other folders, excludes other processes, and contains its paths."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from heed.errors import HeedError, Refused
from heed.storage import checkpoint, manifest
from heed.storage.run_folder import FILES, Damaged, RunFolder
from heed.storage.tensors import header, tied
from tests.storage.faults import every_fault


def make_run(path: Path) -> RunFolder:
    run = RunFolder.create(path)
    run.write_text("recipe.yaml", "task: translate\n")
    run.seal()
    run.write_json("config.json", {"task": "translate"})
    return run


def test_a_new_run_is_made_and_opened(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "one")
    run = RunFolder.open(tmp_path / "runs" / "one")
    assert run.read_json("config.json") == run.read_json(run.config) == {"task": "translate"}
    assert run.read_text("recipe.yaml") == "task: translate\n"
    assert {name: getattr(run, name).name for name in FILES} == FILES
    assert repr(run) == f"RunFolder('{tmp_path}/runs/one')"


def test_a_relative_path_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = make_run(Path("one"))
    assert run.write_text(run.samples / "a.txt", "我") == Path("one/samples/a.txt")
    assert run.read_text("samples/a.txt") == run.read_text(run.samples / "a.txt") == "我"


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """TensorBoard and JSON could not write it down."""
    with pytest.raises(Refused, match="is not UTF-8; name a new folder"):
        RunFolder.create(tmp_path / os.fsdecode(b"run\xff"))
    assert not os.listdir(tmp_path)


def test_an_empty_folder_is_accepted_and_another_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    make_run(tmp_path / "empty")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("x")
    for overwrite in (False, True):
        with pytest.raises(Refused, match="home holds other files and is not a run"):
            RunFolder.create(tmp_path / "home", overwrite=overwrite)
    assert os.listdir(tmp_path / "home") == ["thesis.tex"]
    with pytest.raises(Refused, match="a folder is needed there"):
        RunFolder.create(tmp_path / "home" / "thesis.tex")


def test_another_librarys_model_is_not_overwritten(tmp_path: Path) -> None:
    """A Hugging Face model has a config.json too."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(Refused, match="not a run"):
        RunFolder.create(tmp_path, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["config.json", "model.safetensors"]


def test_a_run_is_overwritten_only_on_request(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    run.save_model({"a": torch.zeros(2)})
    for name in ("events.out.tfevents.1", "scores.json", "target_tokenizer.json"):
        run.write_text(name, "x")
    run.write_text("notes.txt", "mine")
    run.write_text("samples/a.txt", "x")
    checkpoint.save(run.checkpoints / "step-1", {}, {})
    with pytest.raises(Refused, match="already holds a run; resume it: --resume"):
        RunFolder.create(run.path)
    assert run.read_json("config.json") == {"task": "translate"}
    before = contents(run.path)
    other = RunFolder.create(run.path, overwrite=True)
    assert os.listdir(run.path) == []
    assert other.former == tmp_path / "one.1"
    assert contents(other.former) == before
    with RunFolder.open(other.former).lock():
        pass


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, but the lock."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".heed.lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_replaced_run_gets_the_first_free_number(tmp_path: Path) -> None:
    (tmp_path / "one.1").write_text("no folder")
    (tmp_path / "one.2").symlink_to("nowhere")
    for n in (3, 4):
        make_run(tmp_path / "one").write_text("notes.txt", f"{n}")
        former = RunFolder.create(tmp_path / "one", overwrite=True).former
        assert former == tmp_path / f"one.{n}"
        assert (former / "notes.txt").read_text() == f"{n}"


def test_only_a_run_is_renamed(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "one", overwrite=True)
    run.write_text("cache/train.bin", "of a start that was killed")
    assert RunFolder.create(run.path, overwrite=True).former is None
    assert os.listdir(run.path) == [".heed.lock"]


def test_a_run_that_is_being_written_is_not_renamed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    with run.lock(), pytest.raises(Refused, match="is being written by process"):
        RunFolder.create(run.path, overwrite=True)
    assert os.listdir(tmp_path) == ["one"]


def test_a_folder_without_a_name_of_its_own_is_not_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "one")
    (run.path / "within").mkdir()
    for place, name in ((run.path, "."), (run.path / "within", "..")):
        monkeypatch.chdir(place)
        with pytest.raises(Refused, match="cannot be renamed from within"):
            RunFolder.create(name, overwrite=True)
    assert os.listdir(tmp_path) == ["one"]


def test_a_start_that_was_killed_can_be_repeated(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "one")
    run.write_text("cache/train.bin", "x")
    (run.path / "config.json.tmp-01234567").write_text("{")
    RunFolder.create(run.path)
    assert os.listdir(run.path) == [".heed.lock"]


def test_a_withdrawn_run_leaves_what_was_there_before(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "runs" / "one")
    with run.lock():
        run.write_text("cache/train.bin", "x")
        run.write_text("config.json", "{}")
        run.withdraw()
    assert not os.listdir(tmp_path)

    (tmp_path / "runs").mkdir()
    other = RunFolder.create(tmp_path / "runs" / "two")
    with other.lock():
        other.write_text("recipe.yaml", "x")
        (other.path / "notes.txt").write_text("mine")
        other.withdraw()
    assert sorted(os.listdir(other.path)) == [".heed.lock", "notes.txt"]

    (tmp_path / "empty").mkdir()
    empty = RunFolder.create(tmp_path / "empty")
    with empty.lock():
        empty.write_text("recipe.yaml", "x")
        empty.withdraw()
    assert os.listdir(empty.path) == [".heed.lock"]
    make_run(empty.path)  # and it can be used


def test_a_run_that_was_there_already_is_not_withdrawn(tmp_path: Path) -> None:
    made = make_run(tmp_path / "one")
    for run in (RunFolder.open(made.path), RunFolder(made.path)):
        with run.lock():
            run.withdraw()
    there = [".heed.lock", "config.json", "manifest.json", "recipe.yaml"]
    assert sorted(os.listdir(made.path)) == there


@pytest.mark.parametrize("how", ["removed", "renamed"])
def test_a_lock_that_was_lost_before_it_was_taken_locks_nothing(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process withdraws its run, or replaces it, after this one has opened the lock."""
    run = make_run(tmp_path / "one")
    take = fcntl.flock

    def late(file: int, how_: int) -> None:
        if how == "removed":
            (run.path / ".heed.lock").unlink()
        else:
            os.rename(run.path, tmp_path / "one.1")
            run.path.mkdir()
        take(file, how_)

    monkeypatch.setattr(fcntl, "flock", late)
    with (
        pytest.raises(Refused, match="one was removed or renamed by another process; try again"),
        run.lock(),
    ):
        pass


def test_a_run_that_lost_its_config_is_not_started_again(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    checkpoint.save(run.checkpoints / "step-1", {}, {})
    run.config.unlink()
    with pytest.raises(Refused, match="already holds a run"):
        RunFolder.create(run.path)
    assert run.newest(print) == run.checkpoints / "step-1"


def test_a_folder_that_is_not_a_run_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"there is no run .*nowhere"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(Refused, match=r"is not a run: it has no config\.json"):
        RunFolder.open(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(Refused, match="there is no run"):
        RunFolder.open(tmp_path / "file")


READERS: dict[str, Callable[[RunFolder, str], object]] = {
    "bytes": RunFolder.read_bytes,
    "text": RunFolder.read_text,
    "json": RunFolder.read_json,
    "writing": lambda run, name: run.write_text(name, "x"),
}


@pytest.mark.parametrize("way", READERS)
def test_no_path_leads_outside(tmp_path: Path, way: str) -> None:
    run = make_run(tmp_path / "one")
    (tmp_path / "outside").mkdir()
    secret = tmp_path / "outside" / "secret.json"
    secret.write_text('"secret"')
    (run.path / "link.json").symlink_to(secret)
    (run.path / "samples").symlink_to(secret.parent)
    (run.path / "circle").symlink_to(run.path / "circle")
    for name in ["../outside/secret.json", str(secret), "link.json", "samples/secret.json"]:
        with pytest.raises(Refused, match="leads outside the run's folder"):
            READERS[way](run, name)
    for name in ["circle", "a\0b"]:
        with pytest.raises(HeedError):
            READERS[way](run, name)
    assert secret.read_text() == '"secret"'


def test_links_to_a_model_or_checkpoints_elsewhere_are_refused(tmp_path: Path) -> None:
    other = make_run(tmp_path / "other")
    other.save_model({"a": torch.zeros(2)})
    checkpoint.save(other.checkpoints / "step-1", {}, {})
    run = make_run(tmp_path / "one")
    run.model.symlink_to(other.model)
    run.checkpoints.symlink_to(other.checkpoints)
    for look in (run.load_model, lambda: run.newest(print)):
        with pytest.raises(Refused, match="leads out"):
            look()
    with pytest.raises(Refused, match="leads out"):
        RunFolder.create(run.path, overwrite=True)
    assert other.newest(print) == other.checkpoints / "step-1"


def test_a_run_may_be_behind_a_link(tmp_path: Path) -> None:
    make_run(tmp_path / "disk" / "one")
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    run = RunFolder.open(tmp_path / "runs" / "one")
    assert run.read_json("config.json") == {"task": "translate"}


def test_broken_files_are_reported_in_one_line(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    run.write_bytes("bad.json", b'{"a": 1, "a": 2}')
    run.write_bytes("bad.txt", b"\xff\xfe")
    with pytest.raises(Damaged, match=r"bad\.json is not valid JSON: the name 'a' is given twice"):
        run.read_json("bad.json")
    with pytest.raises(Damaged, match=r"bad\.txt is not UTF-8"):
        run.read_text("bad.txt")
    with pytest.raises(Damaged, match="larger than 5 bytes"):
        run.read_json("config.json", limit=5)
    with pytest.raises(Damaged, match=r"none\.json cannot be read: No such file"):
        run.read_json("none.json")


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "one")
    run.save_model({"a": torch.ones(2, device="cpu")})

    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for attempt in (
            lambda: run.write_json("config.json", {}),
            lambda: run.save_model({"a": torch.zeros(2)}),
        ):
            with pytest.raises(OSError, match="No space left"):
                attempt()
    assert run.read_json("config.json") == {"task": "translate"}
    assert run.load_model()["a"].tolist() == [1, 1]
    assert not list(run.path.glob("*.tmp-*"))


def test_the_model_is_described_before_it_is_read(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    weight = torch.randn(3, 2, device="cpu")
    run.save_model({"a": weight, "tied": weight, "b": torch.zeros(4, dtype=torch.bfloat16)})
    expected = {
        "a": (torch.float32, (3, 2)),
        "tied": (torch.float32, (3, 2)),
        "b": (torch.bfloat16, (4,)),
    }
    assert header(run.model) == expected
    assert tied(run.model) == {"tied": "a"}
    assert torch.equal(run.load_model()["tied"], weight)
    assert torch.equal(safetensors.torch.load_file(run.model)["a"], weight)


def test_two_processes_never_write_to_one_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    with run.lock():
        told = pytest.raises(Refused, match=f"being written by process {os.getpid()}")
        with told, RunFolder.open(run.path).lock():
            pass
        with pytest.raises(Refused, match="being written by"):
            RunFolder.create(run.path, overwrite=True)
        assert run.read_json("config.json") == {"task": "translate"}
    with run.lock():
        pass


HOLD = """
import sys, time
from heed.storage.run_folder import RunFolder
with RunFolder(sys.argv[1]).lock():
    print("locked", flush=True)
    time.sleep(60)
"""


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    command = [sys.executable, "-c", HOLD, str(run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(Refused, match=f"process {holder.pid}"), run.lock():
            pass
        holder.send_signal(signal.SIGKILL)
    with run.lock():
        pass


def test_taking_the_lock_removes_leftovers(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    checkpoint.save(run.checkpoints / "step-1", {}, {"step": 1})
    (run.checkpoints / "step-2.tmp-01234567").mkdir()
    (run.checkpoints / "step-1").rename(run.checkpoints / "step-1.was-01234567")
    (run.path / "model.safetensors.tmp-01234567").write_text("x")
    run.write_text("samples/a.txt", "x")
    (run.samples / "b.txt.tmp-01234567").write_text("x")
    with run.lock():
        assert os.listdir(run.checkpoints) == ["step-1"]
        assert checkpoint.load(run.checkpoints / "step-1").facts == {"step": 1}
        assert os.listdir(run.samples) == ["a.txt"]
        assert not list(run.path.glob("*.tmp-*"))


def trained(path: Path) -> RunFolder:
    """A run with all that the manifest covers."""
    run = RunFolder.create(path)
    for name in ("recipe.yaml", "tokenizer.json", "target_tokenizer.json", "frequencies.json"):
        run.write_text(name, name)
    for name in ("examples/valid.jsonl", "cache/ready.json", "cache/train.source.tokens"):
        run.write_text(name, name)
    run.seal()
    run.write_json("config.json", {"task": "translate"})
    run.save_model({"a": torch.zeros(2)})
    run.write_json("scores.json", {})
    return run


def test_the_manifest_covers_all_that_is_read_again(tmp_path: Path) -> None:
    run = trained(tmp_path / "one")
    for name in ("metrics.jsonl", "samples/a.txt", "notes.txt", "examples/notes.txt"):
        run.write_text(name, "x")
    run.verify(cache=True)
    covered = json.loads((run.path / "manifest.json").read_text())["files"]
    assert sorted(covered) == [
        "cache/ready.json",
        "cache/train.source.tokens",
        "config.json",
        "examples/valid.jsonl",
        "frequencies.json",
        "model.safetensors",
        "recipe.yaml",
        "scores.json",
        "target_tokenizer.json",
        "tokenizer.json",
    ]
    assert {len(states) for states in covered.values()} == {1}
    for name in covered:
        whole = (run.path / name).read_bytes()
        for data in (whole + b" ", None):
            (run.path / name).unlink()
            if data is not None:
                (run.path / name).write_bytes(data)
            lost = name == "config.json" and data is None
            told = f"has no {name}" if lost else f"{name} is .*; put it back as it was, or train"
            with pytest.raises(HeedError, match=told):
                RunFolder.open(run.path, cache=True)
            (run.path / name).write_bytes(whole)


@pytest.mark.parametrize("name", ["target_tokenizer.json", "examples/test.jsonl"])
def test_a_file_that_was_added_is_found(tmp_path: Path, name: str) -> None:
    """heed would read it: it changes answers as a damage does."""
    run = make_run(tmp_path / "one")
    (run.path / name).parent.mkdir(exist_ok=True)
    (run.path / name).write_text("x")
    with pytest.raises(Damaged, match=rf"{name} does not belong there"):
        RunFolder.open(run.path)


def test_a_run_without_its_data_can_be_opened_but_not_trained(tmp_path: Path) -> None:
    run = trained(tmp_path / "one")
    shutil.rmtree(run.cache)
    RunFolder.open(run.path)
    with pytest.raises(Damaged, match=r"ready\.json is missing"):
        RunFolder.open(run.path, cache=True)


def test_a_run_without_a_manifest_is_refused(tmp_path: Path) -> None:
    run = trained(tmp_path / "one")
    (run.path / "manifest.json").unlink()
    with pytest.raises(Damaged, match=r"one is not a whole run: it has no manifest\.json; put"):
        RunFolder.open(run.path)


@pytest.mark.parametrize("kill", [False, True], ids=["full", "killed"])
@pytest.mark.parametrize("first", [True, False])
def test_a_failed_save_leaves_a_run_that_opens(tmp_path: Path, kill: bool, first: bool) -> None:
    """With the old weights or with the new ones, and it can go on."""

    def prepare(path: Path) -> None:
        run = make_run(path)
        if not first:
            run.save_model({"a": torch.zeros(2)})

    def held(run: RunFolder) -> list[float] | None:
        return run.load_model()["a"].tolist() if run.model.exists() else None

    def save(path: Path) -> None:
        RunFolder(path).save_model({"a": torch.ones(2)})

    seen = set()
    for path, _ in every_fault(tmp_path, save, kill, prepare):
        found = held(RunFolder.open(path))
        assert found in (None if first else [0, 0], [1, 1])
        seen.add(found == [1, 1])
        run = RunFolder.open(path)
        with run.lock():
            run.save_model({"a": torch.full((2,), 2.0)})
        assert held(RunFolder.open(path)) == [2, 2]
        states = json.loads((path / "manifest.json").read_text())["files"]["model.safetensors"]
        assert len(states) == 1
        run.model.unlink()
        with pytest.raises(Damaged, match="is missing"):
            RunFolder.open(path)
    assert seen == {False, True}


@pytest.mark.parametrize("kill", [False, True], ids=["full", "killed"])
def test_a_failed_start_is_no_run_or_a_whole_one(tmp_path: Path, kill: bool) -> None:
    for path, _ in every_fault(tmp_path, lambda path: trained(path / "one"), kill, Path.mkdir):
        run = RunFolder(path / "one")
        if run.config.exists():
            RunFolder.open(run.path, cache=True)
        else:
            trained(run.path)


def test_weights_that_are_replaced_while_a_run_is_opened_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training replaces them after the manifest was read."""
    run = make_run(tmp_path / "one")
    run.save_model({"a": torch.zeros(2)})
    check, left = manifest.check, [1.0, 2.0]

    def late(path: Path, states: manifest.States) -> None:
        if path == run.model and left:
            run.save_model({"a": torch.full((2,), left.pop())})
        check(path, states)

    monkeypatch.setattr(manifest, "check", late)
    RunFolder.open(run.path)
    assert not left
