"""Checkpoints are exact, complete or absent, and any damage is found."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heed.errors import HeedError, Refused
from heed.storage import checkpoint, manifest
from heed.storage.checkpoint import Damaged, average, load, newest, prune, save, verify
from heed.storage.manifest import FORMAT
from tests.storage.faults import every_fault


def groups(seed: int) -> dict[str, dict[str, Tensor]]:
    draw = torch.Generator("cpu").manual_seed(seed)
    weight = torch.randn(4, 3, generator=draw, device="cpu")
    return {
        "model": {"weight": weight, "tied": weight, "half": weight.T.bfloat16()},
        "optimiser": {"weight.step": torch.tensor(float(seed), device="cpu")},
        "random": {"cpu": torch.get_rng_state()},
    }


def write(checkpoints: Path, seed: int, step: int | None = None) -> Path:
    step = seed if step is None else step
    return save(checkpoint.at(checkpoints, step), groups(seed), {"step": step, "seed": seed})


def check_holds(folder: Path, seed: int) -> None:
    saved = load(folder)
    assert saved.facts["seed"] == seed
    for group, named in groups(seed).items():
        assert saved.tensors[group].keys() == named.keys()
        for name, x in named.items():
            assert saved.tensors[group][name].dtype == x.dtype
            assert torch.equal(saved.tensors[group][name], x)


def leftovers(checkpoints: Path) -> list[str]:
    names = os.listdir(checkpoints) if checkpoints.exists() else []
    return [name for name in names if not checkpoint.STEP.fullmatch(name)]


def silent(line: str) -> None:
    raise AssertionError(line)


def test_a_checkpoint_is_read_as_it_was_saved(tmp_path: Path) -> None:
    facts = {"step": 7, "best": float("inf"), "名": ["我", None, 1.5]}
    folder = save(tmp_path / "runs" / "step-7", groups(7), facts)
    assert folder == tmp_path / "runs" / "step-7"
    assert load(folder).facts == facts
    assert load(folder, ["model"]).tensors.keys() == {"model"}
    model = load(folder).tensors["model"]
    assert model["weight"] is model["tied"]
    assert leftovers(folder.parent) == []


def test_the_manifest_lists_the_contents(tmp_path: Path) -> None:
    folder = write(tmp_path, 1)
    files = json.loads((folder / "manifest.json").read_text())["files"]
    sizes = {name: told["size"] for name, [told] in files.items()}
    assert sizes == {
        path.name: path.stat().st_size for path in folder.iterdir() if path.name != "manifest.json"
    }
    told = subprocess.run(
        ["sha256sum", "model.safetensors"], cwd=folder, capture_output=True, text=True, check=True
    )
    assert told.stdout.split()[0] == files["model.safetensors"][0]["sha256"]


@pytest.mark.parametrize("group", ["../model", "Model", "", "a/b", "model.x", "a" * 65, "ä"])
def test_group_names_are_plain(tmp_path: Path, group: str) -> None:
    with pytest.raises(Refused, match="cannot be named"):
        save(tmp_path / "step-1", {group: {}}, {})
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_saved_leaves_nothing(tmp_path: Path) -> None:
    for tensors, facts in [({}, {"a": {1}}), ({"model": {"a": torch.zeros(2).to_sparse()}}, {})]:
        with pytest.raises(Refused):
            save(tmp_path / "step-1", tensors, facts)  # type: ignore[arg-type]
        assert os.listdir(tmp_path) == []


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, 1)
    folder = write(tmp_path, 2, step=1)
    check_holds(folder, 2)
    assert os.listdir(tmp_path) == ["step-1"]


def test_saving_draws_no_random_numbers(tmp_path: Path) -> None:
    before = random.getstate(), torch.get_rng_state()
    write(tmp_path, 1)
    load(tmp_path / "step-1")
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    folder = write(tmp_path, 1)
    draw = random.Random(0)
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        places = (
            range(len(data)) if path.suffix == ".json" else draw.choices(range(len(data)), k=150)
        )
        for place in places:
            changed = bytearray(data)
            changed[place] ^= 1 << draw.randrange(8)
            path.write_bytes(changed)
            with pytest.raises(Damaged, match=path.name):
                verify(folder)
        path.write_bytes(data)
    check_holds(folder, 1)


def test_every_truncation_and_extension_is_found(tmp_path: Path) -> None:
    folder = write(tmp_path, 1)
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        for length in {*range(0, len(data), 29), len(data) - 1}:
            path.write_bytes(data[:length])
            with pytest.raises(Damaged, match=path.name):
                load(folder)
        for more in (b"\0", b" ", b"\n", b"x" * 5000):
            path.write_bytes(data + more)
            with pytest.raises(Damaged, match=path.name):
                load(folder)
        path.write_bytes(data)
    check_holds(folder, 1)


def test_a_missing_or_an_added_file_is_found(tmp_path: Path) -> None:
    folder = write(tmp_path, 1)
    (folder / "more.safetensors").write_bytes(b"")
    with pytest.raises(Damaged, match=r"more\.safetensors does not belong"):
        load(folder)
    (folder / "more.safetensors").unlink()
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        path.unlink()
        with pytest.raises(Damaged, match=path.name):
            load(folder)
        path.write_bytes(data)
    with pytest.raises(Damaged, match="there is no checkpoint"):
        load(tmp_path / "step-2")
    with pytest.raises(Damaged, match="holds no critic; it holds model, optimiser, random"):
        load(folder, ["critic"])


def test_a_link_is_never_followed(tmp_path: Path) -> None:
    """The linked file has the right size and hash: it is refused only because it is a link."""
    folder = write(tmp_path / "run", 1)
    for path in sorted(folder.iterdir()):
        outside = tmp_path / path.name
        shutil.move(path, outside)
        path.symlink_to(outside)
        with pytest.raises(Damaged, match=f"{path.name} is not a plain file"):
            load(folder)
        path.unlink()
        shutil.move(outside, path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "step-9").symlink_to(folder)
    assert newest(tmp_path / "other", silent) is None


def said(**files: Any) -> dict[str, Any]:
    return {"format": FORMAT, "files": files}


@pytest.mark.parametrize(
    "hostile",
    [
        said(**{"facts.json": [], "../secret.safetensors": []}),
        said(**{"facts.json": [], "/etc/passwd": []}),
        said(**{"facts.json": [], "model.pt": []}),
        said(**{"facts.json": 5}),
        said(**{"facts.json": ["ab"]}),
        said(**{"facts.json": [{"size": 3}]}),
        said(**{"facts.json": [{"size": 3, "sha256": "", "path": "/etc/passwd"}]}),
        said(),
        {"format": FORMAT, "files": []},
        {"format": 1, "files": {"facts.json": {}}},
        {},
    ],
)
def test_a_hostile_manifest_with_valid_hashes_is_refused(
    tmp_path: Path, hostile: dict[str, Any]
) -> None:
    folder = write(tmp_path, 1)
    (folder / "manifest.json").write_bytes(manifest._sealed(hostile, folder))
    with pytest.raises(Damaged, match=r"manifest\.json"):
        load(folder)


def test_the_newest_intact_checkpoint_is_found_and_damaged_ones_are_reported(
    tmp_path: Path,
) -> None:
    assert newest(tmp_path / "nowhere", silent) is None
    for step in (9, 10, 100, 20):
        write(tmp_path, step)
    for name in ("step-007", "step-x", "best", "step-200.tmp-01234567"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-300").write_text("a file")
    assert newest(tmp_path, silent) == tmp_path / "step-100"
    (tmp_path / "step-100" / "facts.json").write_text("{}")
    (tmp_path / "step-20" / "manifest.json").unlink()
    lines: list[str] = []
    assert newest(tmp_path, lines.append) == tmp_path / "step-10"
    assert [line.split(":")[0] for line in lines] == [
        "passing over the checkpoint step-100",
        "passing over the checkpoint step-20",
    ]
    assert "facts.json is damaged" in lines[0]
    assert "manifest.json cannot be read" in lines[1]
    assert not any("\n" in line for line in lines)


def test_a_manifest_that_cannot_be_written_again_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, 1)
    (write(tmp_path, 2) / "manifest.json").write_text(r'{"heed": "\ud800", "seal": ""}')
    lines: list[str] = []
    assert newest(tmp_path, lines.append) == tmp_path / "step-1"
    assert len(lines) == 1


@pytest.mark.parametrize("damaged", [False, True])
def test_a_replaced_checkpoint_is_used_only_if_the_new_one_is_damaged(
    tmp_path: Path, damaged: bool
) -> None:
    write(tmp_path, 1).rename(tmp_path / "step-1.was-01234567")
    folder = write(tmp_path, 2, step=1)
    if damaged:
        (folder / "facts.json").write_text("{}")
    checkpoint.sweep(tmp_path)
    check_holds(folder, 1 if damaged else 2)
    assert os.listdir(tmp_path) == ["step-1"]


def test_pruning_keeps_the_newest(tmp_path: Path) -> None:
    for step in (1, 2, 10, 20, 30):
        write(tmp_path, step)
    prune(tmp_path, keep=2)
    assert set(os.listdir(tmp_path)) == {"step-20", "step-30"}
    with pytest.raises(Refused, match="keep must be at least 1"):
        prune(tmp_path, keep=0)
    checkpoint.rewind(tmp_path, 20)
    assert set(os.listdir(tmp_path)) == {"step-20"}
    prune(tmp_path / "nowhere", keep=1)


def test_everything_is_synced_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename may reach the disk before the data, unless the data was synced."""
    tmp_path.joinpath("run").mkdir()
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def note_sync(file: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{file}")).name.split(".tmp-")[0])
        fsync(file)

    def note_rename(old: Path, new: Path) -> None:
        events.append("renamed")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "rename", note_rename)
    write(tmp_path / "run", 1)
    files = {"model.safetensors", "optimiser.safetensors", "random.safetensors"}
    assert set(events[:5]) == files | {"facts.json", "manifest.json"}
    assert events[5:] == ["step-1", "renamed", "run"]


@pytest.mark.parametrize("kill", [False, True], ids=["full", "killed"])
def test_a_failed_save_leaves_the_last_good_one(tmp_path: Path, kill: bool) -> None:
    outcomes = set()
    for checkpoints, told in every_fault(
        tmp_path, lambda c: write(c, 2), kill, lambda c: write(c, 1)
    ):
        if told and not kill:
            assert leftovers(checkpoints) == []
        found = newest(checkpoints, silent)
        assert found is not None
        check_holds(found, 2 if found.name == "step-2" else 1)
        outcomes.add(found.name)
        checkpoint.sweep(checkpoints)
        assert leftovers(checkpoints) == []
        check_holds(write(checkpoints, 3), 3)
        assert newest(checkpoints, silent) == checkpoints / "step-3"
    assert outcomes == {"step-1", "step-2"}  # before the last sync all is in place


@pytest.mark.parametrize("kill", [False, True], ids=["full", "killed"])
def test_a_failed_replacement_leaves_one_of_the_two(tmp_path: Path, kill: bool) -> None:
    outcomes = set()
    for checkpoints, told in every_fault(
        tmp_path, lambda c: write(c, 2, step=1), kill, lambda c: write(c, 1)
    ):
        if kill or not told:
            checkpoint.sweep(checkpoints)
        found = newest(checkpoints, silent)
        assert found is not None
        seed = load(found).facts["seed"]
        check_holds(found, seed)
        outcomes.add(seed)
        checkpoint.sweep(checkpoints)
        assert os.listdir(checkpoints) == ["step-1"]
        check_holds(write(checkpoints, 3), 3)
    assert outcomes == {1, 2}


@pytest.mark.parametrize("kill", [False, True], ids=["full", "killed"])
def test_a_failed_first_save_can_be_repeated(tmp_path: Path, kill: bool) -> None:
    for checkpoints, _ in every_fault(
        tmp_path, lambda c: write(c / "deep", 1), kill, lambda c: c.mkdir()
    ):
        checkpoint.sweep(checkpoints / "deep")
        assert newest(checkpoints / "deep", silent) in (None, checkpoints / "deep" / "step-1")
        assert leftovers(checkpoints / "deep") == []
        check_holds(write(checkpoints / "deep", 1), 1)


@pytest.mark.parametrize("kill", [False, True], ids=["full", "killed"])
def test_a_failed_pruning_deletes_no_checkpoint_to_keep(tmp_path: Path, kill: bool) -> None:
    def three(checkpoints: Path) -> None:
        for step in (1, 2, 3):
            write(checkpoints, step)

    for checkpoints, _ in every_fault(tmp_path, lambda c: prune(c, keep=1), kill, three):
        checkpoint.sweep(checkpoints)
        assert leftovers(checkpoints) == []
        for step, folder in checkpoint.steps(checkpoints).items():
            check_holds(folder, step)
        assert newest(checkpoints, silent) == checkpoints / "step-3"


def test_checkpoints_are_averaged(tmp_path: Path) -> None:
    torch.manual_seed(1)
    series = [torch.randn(5, 3, device="cpu") * 10**k for k in range(3)]
    for step, x in enumerate(series):
        model = {"x": x, "y": x, "half": x.bfloat16(), "count": torch.tensor(step, device="cpu")}
        save(checkpoint.at(tmp_path, step), {"model": model}, {})
    mean = average(list(checkpoint.steps(tmp_path).values())[::-1])
    expected = torch.stack(series).double().mean(0)
    assert torch.equal(mean["x"], expected.float())
    halves = torch.stack([x.bfloat16().double() for x in series])
    assert torch.equal(mean["half"], halves.mean(0).bfloat16())
    assert mean["count"].item() == 2
    assert mean["x"] is mean["y"]
    assert torch.equal(average([tmp_path / "step-1"])["x"], series[1])


def test_weights_tied_in_one_checkpoint_only_are_averaged_separately(tmp_path: Path) -> None:
    one, two = torch.ones(2, device="cpu"), torch.zeros(2, device="cpu")
    a = save(tmp_path / "step-1", {"model": {"x": one, "y": one}}, {})
    b = save(tmp_path / "step-2", {"model": {"x": one, "y": two}}, {})
    for folders in ([a, b], [b, a]):
        mean = average(folders)
        assert (mean["x"].tolist(), mean["y"].tolist()) == ([1, 1], [0.5, 0.5])


def test_checkpoints_that_do_not_match_are_not_averaged(tmp_path: Path) -> None:
    for step, model in enumerate(
        [
            {"x": torch.zeros(2)},
            {"x": torch.zeros(3)},
            {"y": torch.zeros(2)},
            {"x": torch.zeros(2).double()},
        ]
    ):
        save(checkpoint.at(tmp_path, step), {"model": model}, {})
    for other, reason in [(1, r"'x' is torch.float32 \(3,\)"), (2, "'x'"), (3, "float64")]:
        with pytest.raises(Refused, match=reason):
            average([tmp_path / "step-0", checkpoint.at(tmp_path, other)])
    with pytest.raises(Refused, match="nothing"):
        average([])
    with pytest.raises(HeedError, match="holds no critic"):
        average([tmp_path / "step-0"], "critic")


# Forks a training run again and again and kills it, so that torch is imported only once.
KILLING = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
from heed.storage import checkpoint

STEPS, EVERY = 600, 5
torch.set_num_threads(1)

def train(root):
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 64), torch.nn.Dropout(), torch.nn.Linear(64, 8)
    model = torch.nn.Sequential(*layers)
    speed = {name: torch.zeros_like(x) for name, x in model.named_parameters()}
    step = 0
    checkpoint.sweep(root)
    last = checkpoint.newest(root, print)
    if last:
        saved = checkpoint.load(last)
        step = saved.facts["step"]
        model.load_state_dict(saved.tensors["model"])
        speed = saved.tensors["optimiser"]
        torch.set_rng_state(saved.tensors["random"]["cpu"])
    while step < STEPS:
        x = torch.randn(16, 8)
        model.zero_grad()
        (model(x) - x.flip(1)).square().mean().backward()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight -= 0.01 * speed[name].mul_(0.9).add_(weight.grad)
        step += 1
        if step % EVERY == 0:
            tensors = {"model": model.state_dict(), "optimiser": speed}
            tensors["random"] = {"cpu": torch.get_rng_state()}
            checkpoint.save(checkpoint.at(root, step), tensors, {"step": step})
            checkpoint.prune(root, keep=2)

def fork(root):
    child = os.fork()
    if child == 0:
        try:
            train(root)
            os._exit(0)
        finally:
            os._exit(1)
    return child

def status(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def reached(root):
    names = (path.name for path in root.glob("step-*"))
    return max((int(name[5:]) for name in names if "." not in name), default=0)

def wait(root, step):
    # Until a checkpoint of that step is there, however busy the machine is: seconds.
    start = time.monotonic()
    while reached(root) < step:
        time.sleep(0.0005)
    return time.monotonic() - start

root = Path(sys.argv[1])
assert status(fork(root / "whole")) == 0
draw, kills, inside = random.Random(int(sys.argv[2])), 0, 0
while kills < 20:
    step, child = reached(root / "killed"), fork(root / "killed")
    wait(root / "killed", step + EVERY)
    pause = wait(root / "killed", step + 2 * EVERY)
    time.sleep(draw.uniform(0, 2) * pause)
    os.kill(child, signal.SIGKILL)
    code = status(child)
    if code == 0:
        break
    assert code == -signal.SIGKILL, code
    kills += 1
    inside += any(".tmp-" in path.name for path in (root / "killed").glob("*"))
assert status(fork(root / "killed")) == 0
print(json.dumps({"kills": kills, "inside": inside}))
"""


@pytest.mark.slow
def test_twenty_kills_end_in_the_same_weights(tmp_path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", KILLING, str(tmp_path), "0"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert lines == []  # no checkpoint was found damaged
    told = json.loads(last)
    assert told["kills"] == 20
    assert told["inside"] >= 1
    whole, killed = (load(tmp_path / name / "step-600") for name in ("whole", "killed"))
    assert whole.facts == killed.facts == {"step": 600}
    for group, named in whole.tensors.items():
        for name, x in named.items():
            assert torch.equal(x, killed.tensors[group][name]), (group, name)
    assert leftovers(tmp_path / "killed") == []
