"""heed list mechanisms: the whole catalogue, with the kernels that really serve."""

import io
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

import heed
from heed.attention.catalogue import BESIDE, CATALOGUE
from heed.cli.list import _kernels, as_data, kernels_of, tell, tell_kernels
from heed.records import Claims


@pytest.fixture
def listed(command) -> dict[str, dict]:
    done = command("list", "mechanisms", "--json")
    assert (done.code, done.err) == (0, "")
    return {each["name"]: each for each in json.loads(done.out)}


def test_json_has_every_name_and_every_field(listed) -> None:
    assert list(listed) == list(CATALOGUE)
    for name, each in listed.items():
        entry = CATALOGUE[name]
        assert [each[x] for x in ("slot", "formula", "source", "about", "synonyms")] == [
            entry.slot,
            entry.formula,
            entry.source,
            entry.about,
            list(entry.synonyms),
        ]
        assert set(each["claims"]) == set(Claims.__slots__)


def test_special_properties_are_listed(listed) -> None:
    assert listed["sample"]["claims"]["gradient"] == "score-function"
    assert listed["pointer"]["claims"]["gives_context"] is False
    assert listed["local-p"]["claims"]["mass"] == "at most one"
    assert listed["static"]["claims"]["takes_several"] is False
    assert listed["local-p"]["options"] == {"window": 10, "hidden": None}
    assert listed["mixed"]["options"] == {"gate": "query", "window": 10, "hidden": None}
    assert listed["dot"]["options"] == {}


def test_listed_kernels_are_those_that_serve(listed) -> None:
    assert listed["scaled-dot"]["kernels"] == ["sdpa", "reference"]
    assert listed["additive"]["kernels"] == ["additive", "reference"]
    assert listed["local-p"]["kernels"] == ["window", "reference"]
    assert listed["monotonic"]["kernels"] == ["scan", "reference"]
    assert listed["mixed"]["kernels"] == ["sdpa + window", "sdpa + reference", "reference"]


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("name", CATALOGUE)
def test_the_kernel_of_a_row_is_the_one_that_serves(name: str, learns: bool) -> None:
    attend = heed.Attention(name, query=4, key=4).train(learns)
    S = 90 if attend.mechanism.claims.needs_line else 2000  # some mechanisms need a longest line
    keys = torch.randn(1, S, 4)
    query = None if name == "static" else keys
    with torch.set_grad_enabled(learns):
        why = attend(query, attend.remember(keys)).why
    assert why.partition(";")[0] == f"served by {kernels_of(name)[0]}"


def test_kernels_are_determined_by_running_them() -> None:
    with heed.kernels.off("sdpa"):
        assert kernels_of("scaled-dot") == ["reference"]


def test_the_table_has_a_line_for_each_name(command) -> None:
    done = command("list", "mechanisms")
    assert done.code == 0
    assert "\x1b" not in done.out
    lines = {line.split()[0]: line for line in done.out.splitlines() if line.strip()}
    assert set(lines) >= set(CATALOGUE)
    for name, entry in CATALOGUE.items():
        assert entry.formula in lines[name]
        assert entry.source in lines[name]
    assert "not in heads, no context" in lines["pointer"]
    assert "rows sum to 1 or less" in lines["monotonic"]
    assert "rows sum to any number" in lines["mixture-window"]
    assert "learns by REINFORCE" in lines["sample"]
    assert "count=1" in lines["sample"]
    assert lines["dot"].split()[-1] == "sdpa"
    assert "learns" not in lines["dot"]


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("bahdanau", {"additive", "blend"}),
        ("hard", {"argmax", "sample", "gumbel", "monotonic"}),
        ("余弦", {"cosine"}),
        ("Multi-Head", {"heed.MultiHeadAttention(width, heads, mechanism=...)"}),
    ],
)
def test_a_word_of_the_literature_is_searched(command, word: str, names: set[str]) -> None:
    found = json.loads(command("list", "mechanisms", word, "--json").out)
    assert {each["name"] for each in found} == names
    told = command("list", "mechanisms", word)
    assert (told.code, told.err) == (0, "")
    assert {name for name in CATALOGUE if f"\n  {name} " in told.out} == names & set(CATALOGUE)
    for each in found:
        assert each["name"] in told.out
        assert f"{each['about']}; also called {', '.join(each['synonyms'])}" in told.out


def test_a_word_that_is_nowhere_gets_the_nearest(command) -> None:
    done = command("list", "mechanisms", "bahdanu")
    assert (done.code, done.out) == (2, "")
    assert done.err == "heed: no mechanism is called 'bahdanu'; did you mean additive?\n"


def test_only_mechanisms_are_searched(command) -> None:
    done = command("list", "kernels", "hard")
    assert (done.code, done.out) == (2, "")
    assert done.err == "heed: only mechanisms are searched by a word: heed list kernels\n"


@pytest.mark.parametrize(("wrong", "near"), [("mechanism", "mechanisms"), ("model", "models")])
def test_another_collection_is_refused(command, wrong: str, near: str) -> None:
    done = command("list", wrong)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"heed: no collection is called '{wrong}'")
    assert near in done.err


def test_nothing_is_lost_on_a_narrow_terminal() -> None:
    console = Console(width=80, force_terminal=True, color_system=None, file=io.StringIO())
    tell([as_data(entry) for entry in (*CATALOGUE.values(), *BESIDE)], console, searched=True)
    text = console.file.getvalue()
    assert "…" not in text
    assert max(map(cell_len, text.splitlines())) <= 80
    for word in ("Categorical", "tanh", "9-10", "缩放点积", "heed.causal()"):
        assert word in "".join(text.split())


def test_recipes_say_what_they_need_and_what_result_is_good(command) -> None:
    done = command("list", "recipes", "--json")
    recipes = {each["name"]: each for each in json.loads(done.out)}
    known = {"demo", "grammar", "multi30k-rnn", "multi30k-transformer", "sst2", "trec", "zh-en"}
    assert known <= set(recipes)
    assert all(each["needs"] and each["good"] and each["about"] for each in recipes.values())
    assert "train.en" in recipes["multi30k-rnn"]["needs"]


def test_kernels_say_where_they_run(command) -> None:
    listed = {each["name"]: each for each in json.loads(command("list", "kernels", "--json").out)}
    assert list(listed) == list(heed.kernels.NAMES)
    for name, kernel in heed.kernels.NAMES.items():
        both = "triton" in _words(kernel) or name in ("sdpa", "banded")  # these are PyTorch's own
        assert listed[name]["devices"] == (["cpu", "cuda"] if both else ["cpu"]), name
    lines = [" ".join(line.split()) for line in command("list", "kernels").out.splitlines()]
    for name, each in listed.items():
        where = "CPU, GPU" if "cuda" in each["devices"] else "CPU"
        assert f"{name} {where} {each['about']}" in lines


def _words(kernel: ModuleType) -> str:
    """All source text in the folder of a kernel, or in its file."""
    file = Path(kernel.__file__ or "")
    files = file.parent.glob("*.py") if file.name == "__init__.py" else [file]
    return "".join(path.read_text() for path in files).lower()


ON_A_GPU = [
    ("window", "local-m"),
    ("banded", "fixed-window"),
    ("sdpa", "scaled-dot"),
    ("additive", "additive"),
    ("scan", "forward"),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("kernel", "name"), ON_A_GPU)
def test_a_kernel_listed_for_a_gpu_serves_one(kernel: str, name: str) -> None:
    attend = heed.Attention(name, query=16, key=16).cuda()
    keys = torch.randn(1, 2000, 16, device="cuda")
    with heed.kernels.off(*({"window"} if kernel == "banded" else ())):
        assert attend(keys, attend.remember(keys)).kernel == kernel
    assert kernel not in heed.kernels.CPU_ALONE


def test_on_a_terminal_kernels_fit_their_lines() -> None:
    console = Console(width=80, force_terminal=True, color_system=None, file=io.StringIO())
    tell_kernels(_kernels(), console)
    text = console.file.getvalue()
    assert max(map(cell_len, text.splitlines())) <= 80
    assert "the weights are never formed" in " ".join(text.split())


@pytest.mark.parametrize("collection", ["kernels", "models", "tasks", "recipes"])
def test_every_collection_can_be_printed_as_text_and_as_json(command, collection: str) -> None:
    told, data = command("list", collection), command("list", collection, "--json")
    assert (told.code, data.code) == (0, 0)
    for each in json.loads(data.out):
        assert each["name"] in told.out


def test_models_name_the_kinds_of_their_encoder(command) -> None:
    told = " ".join(command("list", "models").out.split())
    assert "encoder.kind lstm, gru, tanh, cnn, transformer, bert, xlnet" in told
