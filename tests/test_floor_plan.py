"""Rooms of heed may import only certain others, and importing heed loads little.

The floor plan below is the one that CONTRIBUTING.md prints. Every import counts: at the top, inside
a function, under TYPE_CHECKING, or as a literal name passed to importlib.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Plain modules that any room may import, and that import only each other.
SHARED = {"errors", "events", "records", "settings", "shapes", "visible"}

MAY_IMPORT: dict[str, set[str]] = {
    "attention": {"kernels"},
    "models": {"attention", "kernels"},
    "answers": {"data", "decoding", "training", "models", "attention", "viewing"},
    "tasks": {
        "answers",
        "data",
        "training",
        "storage",
        "models",
        "attention",
        "watching",
        "decoding",
        "viewing",
    },
    "running": {
        *("tasks", "answers", "models", "training", "storage", "watching", "data", "decoding"),
        "viewing",
    },
    "integrations": {"attention", "watching", "viewing"},
    "serving": {"running", "viewing"},
    "cli": {"running", "serving", "viewing", "integrations", "attention"},
    "__main__": {"cli"},
    "watching": {"attention", "storage"},
    "kernels": set(),
    "data": {"storage"},
    "decoding": set(),
    "storage": set(),
    "training": {"storage"},
    "viewing": {"storage"},
}

# `heed` itself: the public names, gathered from these rooms.
DOOR = "heed"
BEHIND_THE_DOOR = {"attention", "kernels", "running", "watching"}


def reaches(room: str) -> set[str]:
    """Every room that can be reached from this one along the arrows."""
    found: set[str] = set()
    ahead = [room]
    while ahead:
        for following in MAY_IMPORT[ahead.pop()] - found:
            found.add(following)
            ahead.append(following)
    return found


def allowed(room: str) -> set[str]:
    """What a room may import: itself, the shared modules, the rooms its arrows reach, and, above
    attention, the public names of `heed`, as any user does."""
    if room == DOOR:
        return SHARED | BEHIND_THE_DOOR | {DOOR}
    if room in SHARED:
        return SHARED
    door = {DOOR} if "attention" in reaches(room) else set()
    return SHARED | MAY_IMPORT[room] | {room} | door


def room_of(module: str) -> str:
    """heed.attention.score -> attention, heed.errors -> errors, heed -> heed"""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else DOOR


def dynamic_import(call: ast.Call) -> str | None:
    """The literal name in import_module("...") or __import__("..."), if that is the call."""
    name = getattr(call.func, "attr", getattr(call.func, "id", None))
    if name not in {"import_module", "__import__"} or not call.args:
        return None
    target = call.args[0]
    return str(target.value) if isinstance(target, ast.Constant) else None


def imported(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and full name of every import from heed in the source of `module`."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from heed import errors` imports a module; `from heed import Attention` a public
            # name.
            is_module = {*MAY_IMPORT, *SHARED}.__contains__
            names = [
                f"{DOOR}.{alias.name}" if base == DOOR and is_module(alias.name) else base
                for alias in node.names
            ]
        elif isinstance(node, ast.Call) and (literal := dynamic_import(node)):
            names = [literal]
        else:
            continue
        for name in names:
            if name.split(".")[0] == DOOR:
                yield node.lineno, name


def trespasses(source: str, module: str, is_package: bool = False) -> list[str]:
    """One line for each import in the source that violates the floor plan."""
    room = room_of(module)
    if room not in {DOOR, *SHARED, *MAY_IMPORT}:
        return [f"{module}: {room} is not on the floor plan"]
    return [
        f"{module}:{line}: {room} may not import {name}"
        for line, name in imported(source, module, is_package)
        if room_of(name) not in allowed(room)
    ]


def walk(root: Path) -> Iterator[tuple[str, Path]]:
    """Name and file of every module of heed under root."""
    for path in sorted((root / DOOR).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def trespasses_under(root: Path) -> list[str]:
    return [
        complaint
        for module, path in walk(root)
        for complaint in trespasses(path.read_text("utf-8"), module, path.name == "__init__.py")
    ]


def test_imports_follow_the_floor_plan() -> None:
    assert list(walk(ROOT)), "no module of heed was found"
    assert trespasses_under(ROOT) == []


def test_the_arrows_have_no_cycle() -> None:
    assert [room for room in MAY_IMPORT if room in reaches(room)] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("heed.kernels.sdpa", "from heed.attention.score import scaled_dot"),
        ("heed.kernels.sdpa", "from heed.attention import score"),
        ("heed.kernels.sdpa", "from heed import attention"),
        ("heed.kernels.sdpa", "import heed.attention.score as s"),
        ("heed.kernels.sdpa", "from ..attention import score"),
        ("heed.kernels.sdpa", "from .. import attention"),
        ("heed.kernels.sdpa", "import heed"),
        ("heed.kernels.sdpa", "from heed import Attention"),
        ("heed.kernels.sdpa", "def late():\n    import heed.attention"),
        ("heed.kernels.sdpa", "if TYPE_CHECKING:\n    from heed.attention import Memory"),
        ("heed.kernels.sdpa", "import importlib\nimportlib.import_module('heed.attention')"),
        ("heed.errors", "from heed.kernels import choose"),
        ("heed.viewing.terminal", "from heed.attention.statistics import entropy"),
        ("heed.attention.multi_head", "from heed.watching.watch import watch"),
        ("heed.running.demo", "from heed.attention.score import scaled_dot"),
        ("heed.cli.train", "from heed.training.fit import fit"),
        ("heed.utils", "import math"),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str) -> None:
    assert len(trespasses(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("heed.attention.apply", "from heed.kernels import choose"),
        ("heed.attention.apply", "from ..kernels.choose import choose"),
        ("heed.attention.apply", "from . import score\nfrom .align import softmax"),
        ("heed.attention.apply", "from heed import errors\nfrom heed.visible import causal"),
        ("heed.shapes", "from heed.errors import ShapeError"),
        ("heed.running.demo", "import heed\nfrom heed.viewing import terminal"),
        ("heed.cli.list", "from heed.attention.catalogue import entries\nimport rich"),
        ("heed", "from heed.attention.apply import attend\nfrom heed import kernels"),
    ],
)
def test_an_allowed_import_passes(module: str, source: str) -> None:
    assert trespasses(source, module) == []


def test_a_relative_import_is_resolved_from_a_package() -> None:
    assert trespasses("from ..attention import score", "heed.kernels", is_package=True) != []
    assert trespasses("from . import sdpa", "heed.kernels", is_package=True) == []
    assert trespasses("from ...attention import score", "heed.kernels.window.plain") != []


def write_tree(root: Path, files: dict[str, str]) -> None:
    for name, source in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, "utf-8")


def test_a_violation_in_a_tree_is_found(tmp_path: Path) -> None:
    write_tree(
        tmp_path,
        {
            "heed/__init__.py": "from .attention import score",
            "heed/attention/__init__.py": "",
            "heed/attention/score.py": "from heed.viewing import terminal",
            "heed/viewing/__init__.py": "from ..attention import score",
        },
    )
    assert trespasses_under(tmp_path) == [
        "heed.attention.score:1: attention may not import heed.viewing",
        "heed.viewing:1: viewing may not import heed.attention",
    ]


# Run in a fresh interpreter: prints the packages and the settings that `import heed` changed.
IMPORT_HEED = """
import json, logging, os, random, sys, warnings
import numpy, torch

def settings():
    return {
        "environment": dict(os.environ),
        "warning filters": [str(f) for f in warnings.filters],
        "log handlers": [str(h) for h in logging.getLogger().handlers],
        "default dtype": str(torch.get_default_dtype()),
        "gradients": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "torch seed": torch.random.get_rng_state().tolist(),
        "numpy seed": str(numpy.random.get_state()),
        "python seed": str(random.getstate()),
    }

set_before = settings()
loaded = set(sys.modules)
import heed
set_after = settings()
known = {"heed", "torch", "numpy", *sys.stdlib_module_names}
new = {name.split(".")[0] for name in set(sys.modules) - loaded} - known
changed = [name for name in set_before if set_before[name] != set_after[name]]
print(json.dumps({"file": heed.__file__, "new": sorted(new), "changed": changed}))
"""


def import_heed(root: Path) -> dict[str, list[str]]:
    """What `import heed` from this root loads beyond torch and numpy, and what it sets."""
    run = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(root)!r})\n{IMPORT_HEED}"]
    done = subprocess.run(run, capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    report: dict[str, list[str]] = json.loads(done.stdout)
    assert Path(str(report.pop("file"))).is_relative_to(root)
    return report


def test_importing_heed_loads_torch_and_numpy_only_and_changes_no_setting() -> None:
    assert import_heed(ROOT) == {"new": [], "changed": []}


def test_a_heavy_import_is_found(tmp_path: Path) -> None:
    source = "import rich, torch\ntorch.manual_seed(1)"
    write_tree(tmp_path, {"heed/__init__.py": source})
    report = import_heed(tmp_path)
    assert "rich" in report["new"]
    assert report["changed"] == ["torch seed"]
