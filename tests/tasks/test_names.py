"""A task's name stands in its own file, the table, recipes, tests and docs, and nowhere else."""

import io
import tokenize
from pathlib import Path

import pytest

from heed.tasks import TASKS

ROOT = Path(__file__).resolve().parents[2] / "heed"


def strings(source: str) -> list[str]:
    """The string literals of a module, f-strings in their parts; docstrings and comments say what
    they like."""
    found, first = [], True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.STRING:
            text = token.string.lstrip("rbfuRBFU")
            if not text.startswith('"""'):
                found.append(text.strip("'\""))
        first = first and token.type in (tokenize.COMMENT, tokenize.NL)
    return found


def named_in(source: str) -> set[str]:
    """The tasks that a module names, as a string of its own or as a module of heed.tasks."""
    words = set(strings(source))
    modules = {name for name, module in TASKS.items() if f"heed.tasks.{module}" in source}
    return {name for name in TASKS if name in words} | modules


def test_no_other_file_knows_a_task_by_name() -> None:
    wrong = {}
    for path in sorted(ROOT.rglob("*.py")):
        where = path.relative_to(ROOT).as_posix()
        own = {name for name, module in TASKS.items() if where == f"tasks/{module}.py"}
        if where == "tasks/__init__.py":
            continue
        is_head = where.startswith("models/") or where == "running/converting.py"
        heads = {"classify"} if is_head else set()  # of pretrained models
        found = named_in(path.read_text("utf-8")) - own - heads
        if found:
            wrong[where] = sorted(found)
    assert wrong == {}


@pytest.mark.parametrize(
    "source",
    [
        'if task == "translate":\n    pass\n',
        "names = {'tag': 1}\n",
        "from heed.tasks.classify import TextLabel\n",
        "import heed.tasks.pretrain\n",
    ],
)
def test_a_name_is_found(source: str) -> None:
    assert len(named_in(source)) == 1


def test_words_of_a_docstring_are_no_names() -> None:
    assert named_in('"""Translate, tag and classify."""\n# classify\n') == set()
