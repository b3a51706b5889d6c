"""The public names of heed, pinned, so that none is added or removed by accident."""

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import heed

ROOT = Path(__file__).resolve().parents[1]

PUBLIC = [
    "Attended",
    "Attention",
    "HeedError",
    "Mechanism",
    "Memory",
    "MultiHeadAttention",
    "State",
    "Summary",
    "Visible",
    "Watched",
    "attend",
    "causal",
    "kernels",
    "lengths",
    "load",
    "load_watch",
    "watch",
    "window",
]


def undocumented(root: Path) -> list[str]:
    """The modules of heed without a docstring."""
    return [
        str(path.relative_to(root))
        for path in sorted((root / "heed").rglob("*.py"))
        if not ast.get_docstring(ast.parse(path.read_text("utf-8")))
    ]


def test_the_public_names_are_pinned() -> None:
    assert sorted(heed.__all__) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_exists_and_has_a_docstring(name: str) -> None:
    thing = getattr(heed, name)
    # The attribute itself: a subclass without a docstring would inherit that of nn.Module.
    own = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    assert own
    assert own.strip()


def test_the_version_is_said_in_one_place_and_needs_no_installation() -> None:
    """The package takes it from the source, and the source alone tells it, without torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"] == {"version": {"attr": "heed.__version__"}}
    assert re.fullmatch(r"\d+\.\d+\.\d+", heed.__version__)
    assert version("heed-attention") == heed.__version__
    told = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import heed; print(heed.__version__)"
    bare = [sys.executable, "-I", "-S", "-c", f"{told}; assert 'torch' not in sys.modules"]
    done = subprocess.run(bare, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (heed.__version__, "")


TYPED = """
import torch
import heed
from heed.attention.names import build
from heed.models.text_settings import BertSettings, build_bert
from heed.models.encoder_decoder import EncoderDecoder

def of(x: torch.Tensor, n: torch.Tensor, network: EncoderDecoder) -> None:
    one, two = heed.Attention("additive", query=4), heed.MultiHeadAttention(4, 2)
    mechanism = build("dot", query=4, key=4)
    reveal_type(one(x, one.remember(x)))
    reveal_type(two(x, visible=heed.causal(), need="weights").weight)
    reveal_type(mechanism(x, mechanism.remember(x)))
    reveal_type(heed.attend(x, x, x, scale=0.1))
    reveal_type(network(n, n, n).logits)
    reveal_type(build_bert(BertSettings())(n))
    two(x, need="wieght")
"""


@pytest.mark.slow
def test_a_type_checker_sees_what_a_call_gives(tmp_path: Path) -> None:
    """nn.Module alone would give Any; 12 s of the processor, or one if mypy has run before."""
    (tmp_path / "typed.py").write_text(TYPED, "utf-8")
    command = [sys.executable, "-m", "mypy", "--no-pretty", str(tmp_path / "typed.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    seen = re.findall(r'Revealed type is "([\w.]+)"', done.stdout)
    record = "heed.records.Attended"
    tensor, answered = "torch._tensor.Tensor", "heed.models.answers.Answered"
    assert seen == [record, tensor, record, record, tensor, answered], done.stdout
    (error,) = re.findall(r"error: (.*)", done.stdout)
    assert 'Argument "need"' in error


@pytest.mark.parametrize(
    ("name", "meant"),
    [("MultiheadAttention", "MultiHeadAttention"), ("attention", None), ("Atention", "Attention")],
)
def test_a_misspelt_name_is_told_the_nearest(name: str, meant: str | None) -> None:
    """torch spells heads another way."""
    if meant is None:
        assert inspect.ismodule(getattr(heed, name))  # a room, not a misspelt name
        return
    with pytest.raises(AttributeError, match=f"'{name}'; did you mean heed.{meant}\\?$"):
        getattr(heed, name)
    assert not hasattr(heed, "quite_another")


def test_every_module_has_a_docstring() -> None:
    assert undocumented(ROOT) == []


def test_a_module_without_a_docstring_is_found(tmp_path: Path) -> None:
    (tmp_path / "heed").mkdir()
    (tmp_path / "heed" / "silent.py").write_text("x = 1\n", "utf-8")
    (tmp_path / "heed" / "spoken.py").write_text('"""Words."""\n', "utf-8")
    assert undocumented(tmp_path) == ["heed/silent.py"]
