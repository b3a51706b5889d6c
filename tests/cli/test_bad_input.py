"""Bad input of any kind gives code 2 and one line, and does not block a second attempt."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from heed.storage.run_folder import RunFolder
from tests.running.small import small

GOOD = [f"我 爱 {n}\ti love {n}" for n in range(6)]


def refused(done: Any) -> str:
    """The one line."""
    assert (done.code, done.out) == (2, ""), done
    assert done.err.startswith("heed: "), done
    assert done.err.count("\n") == 1, done
    return str(done.err)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with good pairs and a good recipe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEED_DATA", raising=False)
    Path("good.tsv").write_text("".join(f"{line}\n" for line in GOOD))
    for side, name in enumerate(("good.zh", "good.en")):
        Path(name).write_text("".join(f"{line.split(chr(9))[side]}\n" for line in GOOD))
    Path("small.yaml").write_text(yaml.safe_dump(small()))
    return tmp_path


@pytest.fixture
def training(command: Callable[..., Any], place: Path) -> Callable[..., str]:
    """Train on the given input, which is refused; afterwards the same folder can be used."""

    def refusal(*words: str, **data: Any) -> str:
        name = "small.yaml"
        if data:
            raw = small()
            valid = {"tsv": "good.tsv"}
            raw["data"] = {"train": data, "valid": valid, "tokens": {"kind": "word"}}
            name = "files.yaml"
            Path(name).write_text(yaml.safe_dump(raw))
        line = refused(command("train", name, "--run", "run", "--json", *words))
        RunFolder.create("run")
        return line

    return refusal


def write(name: str, data: bytes | str) -> str:
    Path(name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return name


def test_a_missing_file_is_refused(training: Callable[..., str]) -> None:
    line = training(tsv="nowhere.tsv")
    assert line.startswith("heed: data.train: cannot read ")
    assert line.endswith(
        "nowhere.tsv: No such file or directory; give your own: data.train=/your/file.tsv\n"
    )
    line = training(source="nowhere.en", target="good.en")
    assert line.startswith("heed: data.train.source: cannot read ")
    assert line.endswith("; give your own: data.train.source=/your/file.en\n")


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (["classify"], "data.train=/your/file.csv"),
        (["translate"], "data.train=/your/file.tsv"),
        (
            ["classify", "data.train=a.jsonl", "data.train.text=x"],
            "data.train.jsonl=/your/file.jsonl",
        ),
        (["shakespeare-gpt", "data.folder=."], "data.train=/your/file.txt"),
    ],
)
def test_a_recipe_without_a_folder_of_its_own_asks_for_a_file(
    command: Callable[..., Any], place: Path, words: list[str], cure: str
) -> None:
    line = refused(command("train", *words, "--run", "run"))
    key = cure.partition("=")[0]
    assert line.startswith(f"heed: {key}: cannot read {place}/")
    assert line.endswith(f": No such file or directory; give your own: {cure}\n")


@pytest.mark.parametrize("words", [["data.train=~/a.csv"], ["data.folder=~/x", "data.train=a.csv"]])
def test_a_tilde_that_the_shell_has_left_is_reported(
    command: Callable[..., Any], place: Path, words: list[str]
) -> None:
    line = refused(command("train", "classify", *words, "--run", "run"))
    assert line.endswith(
        "a.csv: No such file or directory; a shell leaves ~ after = as it is: write $HOME\n"
    )


@pytest.mark.parametrize(("own", "cure"), [("mine", "./mine"), (".", ".")])
def test_a_file_in_the_working_folder_is_mentioned_if_data_is_elsewhere(
    training: Callable[..., str], monkeypatch: pytest.MonkeyPatch, own: str, cure: str
) -> None:
    """A plain folder name means one in $HEED_DATA, if that is set."""
    monkeypatch.setenv("HEED_DATA", str(Path("elsewhere").absolute()))
    Path("mine").mkdir()
    write(f"{own}/pairs.tsv", "a\tb\n")
    line = training("data.folder=mine", "data.valid.tsv=pairs.tsv", tsv="pairs.tsv")
    assert "elsewhere/mine/pairs.tsv: No such file or directory" in line
    assert line.endswith(f"; it is here: data.folder={cure}\n")


def test_a_missing_file_is_reported_before_anything_is_read(
    command: Callable[..., Any], place: Path
) -> None:
    """The training file is bad too, and an earlier run stays."""
    data = {"train": {"tsv": write("bad.tsv", b"\xff")}, "valid": {"tsv": "nowhere.tsv"}}
    raw = yaml.safe_dump(small() | {"data": data})
    before = RunFolder.create("before")
    before.config.write_text("{}")
    options = ("--run", "before", "--overwrite")
    line = refused(command("train", write("files.yaml", raw), *options))
    assert line.startswith("heed: data.valid: cannot read ")
    assert before.config.exists()


def test_a_folder_instead_of_a_file_is_refused(training: Callable[..., str]) -> None:
    Path("folder.tsv").mkdir()
    assert "folder.tsv: Is a directory" in training(tsv="folder.tsv")


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("more", [-2, -1, 1, 2])
def test_files_that_are_not_aligned_are_refused(
    training: Callable[..., str], side: str, more: int
) -> None:
    lines = [*Path("good.zh").read_text().splitlines(), "一", "二"]
    files = {"source": "good.zh", "target": "good.en"}
    files[side] = write("odd", "".join(f"{line}\n" for line in lines[: 6 + more]))
    said = training(**files)
    for count in (6, 6 + more):
        assert f" has {count} lines" in said
    assert "odd" in said
    assert "aligned" in said


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("a\tb\nc\n", "bad:2: 1 column (c) where two are expected"),
        (
            "a\tb\nc\td\te\n",
            "bad:2: 3 columns (c, d, e) where two are expected; in a recipe, choose two: "
            "'data.train.columns=[0,1]'",
        ),
        (b"a\tb\nc\t\xff\n", "bad:2: not UTF-8 (byte 0xff at place 3)"),
        (b"a\tb\nc\t\0\n", "bad:2: holds a NUL byte"),
        ("", "0 pairs read"),
        ("\n\n\n", "3 pairs read = 0 kept + 3 dropped"),
        (" \t \n\t\n \t\u3000\n", "3 pairs read = 0 kept + 3 dropped"),
        (b"\x1f\x8bno gzip", "broken gzip"),
    ],
)
def test_bad_lines_are_refused(training: Callable[..., str], data: bytes | str, says: str) -> None:
    assert says in training(tsv=write("bad", data))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ('{"source": "a", "target": "b"}\nnot json\n', "bad:2: not JSON"),
        ('{"source": "a"}\n', "bad:1: the key 'target' is missing"),
        ('{"source": "a", "target": 3}\n', "bad:1: the key 'target' is not a text"),
        ("[]\n", "bad:1: not a JSON object"),
        ('{"source": "a", "target": "\\ud800"}\n', "bad:1: holds half a surrogate pair"),
    ],
)
def test_bad_json_lines_are_refused(training: Callable[..., str], data: str, says: str) -> None:
    assert says in training(jsonl=write("bad", data))


def test_pairs_that_are_all_too_long_are_refused(training: Callable[..., str]) -> None:
    long = " ".join("a" * 200)
    said = training("data.longest=20", tsv=write("bad", f"{long}\t{long}\n"))
    assert "0 kept + 1 dropped (1 too long)" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        # Unknown keys, at every depth; the nearest is named.
        (["trainig.epochs=3"], "'trainig'; did you mean 'training'?"),
        (["training.epoch=3"], "'training.epoch'; did you mean 'training.epochs'?"),
        (["model.hiden=3"], "'model.hiden'; did you mean 'model.hidden'?"),
        (["model={kind: transformer, head: 3}"], "'model.head'; did you mean 'model.heads'?"),
        (["data.grammar.pair=3"], "'data.grammar.pair'; did you mean 'data.grammar.pairs'?"),
        (["data.tokens.sise=3"], "'data.tokens.sise'; did you mean 'data.tokens.size'?"),
        (["data.valid.tvs=3"], "'data.valid.tvs'; did you mean 'data.valid.tsv'?"),
        (["decoding.widht=3"], "'decoding.widht'; did you mean 'decoding.width'?"),
        (["decoding.zzz=3"], "'decoding.zzz'; known: coverage_penalty, "),
        # Impossible values.
        (["training.epochs=three"], "training.epochs: input should be a valid integer"),
        (["training.epochs=0"], "training.epochs: "),
        (["training.rate=.nan"], "training.rate: "),
        (["training.rate=.inf"], "training.rate: "),
        (["training.rate=-1"], "training.rate: "),
        (["model.hidden=-1"], "model.hidden: "),
        (["model.hidden=1e99"], "model.hidden: "),
        (["model.hidden=[1, 2]"], "model.hidden: "),
        (["model=5"], "model: "),
        (["model=5", "--attention", "dot"], "model: "),
        (["model=[a, b, c]", "--attention", "dot"], "model: "),
        (["data={1: 2}"], "data"),
        (["data=null"], "data: "),
        (["task=caption"], "task: "),
        (["model.kind=reccurent"], "model"),
        (["model.options.window=[1]"], "model.options.window"),
        (["training.betas=[1]"], "training.betas"),
        (["seed=99999999999"], "seed: "),
        # Unknown mechanisms.
        (["--attention", "aditive"], "did you mean additive"),
        (["--attention", "hard"], "did you mean argmax or sample or gumbel?"),
        (["model.attention=local-p/genral"], "did you mean general"),
        (["--attention", "os.system"], "'os.system'"),
        (["--attention", "__import__('os')"], "__import__"),
        (["--attention", ""], "model: there is an empty part in ''"),
        # Invalid overrides.
        (["training.epochs"], "'training.epochs' is not key=value"),
        (["=3"], "'=3' is not key=value"),
        (["training.epochs.more=3"], "'training.epochs.more': 'epochs' has a value"),
        (["training.epochs=[1"], "the value is not YAML"),
        (["training.epochs=2001-99-99"], "training.epochs=2001-99-99"),
        (["training.epochs=!!python/object/apply:os.system [id]"], "training.epochs="),
        (["training.epochs=&a [*a]"], "training.epochs="),
        (["training.epochs=" + "[" * 5000], "training.epochs="),
        (["training.epochs={[a]: b}"], "training.epochs="),
        (["training.epochs={? {a: b} : c}"], "training.epochs="),
        (["training.epochs=a\x07b"], "training.epochs="),
        # Devices.
        (["--device", "tpu"], "'tpu'; use auto, cpu or cuda"),
        (["--device", "mps"], "use auto, cpu or cuda"),
        (["--device", "cpu:x"], "use auto, cpu or cuda"),
        (["--from", "nowhere/at/all"], "there is no folder nowhere/at/all"),
    ],
    ids=lambda given: str(given)[:50],
)
def test_bad_arguments_are_refused(
    training: Callable[..., str], words: list[str], says: str
) -> None:
    assert says in training(*words)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("task: translate\n  model: x\n", "bad.yaml, line 2: "),
        ("task: translate\ntask: caption\n", "bad.yaml, line 2: 'task' occurs twice"),
        ("model: {a: 1, a: 2}\n", "line 1: 'a' occurs twice"),
        ("a: &x [1]\nb: *x\n", "bad.yaml, line 2: aliases are not allowed"),
        ("a: !!python/object/apply:os.system [id]\n", "bad.yaml, line 1: "),
        ("a: !!python/name:os.system\n", "bad.yaml, line 1: "),
        ("? [a, b]\n: c\n", "bad.yaml"),
        ("? {a: b}\n: c\n", "bad.yaml"),
        ("a: 2001-99-99\n", "bad.yaml"),
        ("- task\n", "is not a recipe"),
        ("", "is not a recipe"),
        ("a: [" * 5000, "bad.yaml"),
        ("a: \0\n", "bad.yaml"),
        ("task: translate\n", "data: field required"),
        ("modle: {}\n", "there is no key 'modle'; did you mean 'model'?"),
        ("a: b\n" * 300_000, "larger than a recipe can be"),
        ("\x1b[31mred: 1\n", "bad.yaml"),
        ('"\\e[31m\\nred": 1\n', "there is no key"),
    ],
    ids=lambda given: given[:20],
)
def test_bad_recipes_are_refused(
    command: Callable[..., Any], place: Path, text: str, says: str
) -> None:
    said = refused(command("train", write("bad.yaml", text), "--run", "run"))
    assert says in said
    assert said[:-1].isprintable(), "an escape reached the terminal"
    assert not Path("run").exists()


def test_a_recipe_that_is_not_text_is_refused(command: Callable[..., Any], place: Path) -> None:
    assert "is not UTF-8" in refused(command("train", write("bad.yaml", b"\xff\xfe")))
    Path("folder.yaml").mkdir()
    assert "folder.yaml" in refused(command("train", "folder.yaml"))


@pytest.mark.parametrize("name", ["gramar", "nowhere/", "x" * 5000, "nowhere.yaml"])
def test_an_unknown_recipe_is_refused(command: Callable[..., Any], place: Path, name: str) -> None:
    said = refused(command("train", name))
    assert name in said
    assert name != "gramar" or "did you mean grammar" in said


def test_a_folder_with_other_files_is_left_alone(command: Callable[..., Any], place: Path) -> None:
    Path("thesis").mkdir()
    write("thesis/chapter.tex", "years of work")
    for flags in ([], ["--overwrite"], ["--resume"]):
        assert "thesis" in refused(command("train", "small.yaml", "--run", "thesis", *flags))
    assert [path.name for path in Path("thesis").iterdir()] == ["chapter.tex"]


def test_an_existing_run_is_not_overwritten(command: Callable[..., Any], place: Path) -> None:
    folder = RunFolder.create("run")
    folder.write_json("config.json", {})
    said = refused(command("train", "small.yaml", "--run", "run"))
    assert "--resume" in said
    assert "--overwrite" in said


@pytest.mark.parametrize("run", ["/proc/run", "small.yaml/run", "small.yaml", "x" * 300])
def test_a_path_that_cannot_be_written_is_refused(
    command: Callable[..., Any], place: Path, run: str
) -> None:
    said = refused(command("train", "small.yaml", "--run", run, "--json"))
    assert run.removesuffix("yaml/run") in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_path_without_permission_is_refused(command: Callable[..., Any], place: Path) -> None:
    place.joinpath("closed").mkdir(mode=0o500)
    assert "closed/run" in refused(command("train", "small.yaml", "--run", "closed/run"))


VERBS = (["evaluate"], ["predict"], ["show"], ["train", "--resume"])


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
@pytest.mark.parametrize("kind", ["nowhere", "empty", "file", "other task", "half", "no weights"])
def test_a_folder_that_is_not_a_run_is_refused(
    command: Callable[..., Any], place: Path, verb: list[str], kind: str
) -> None:
    """Not a run, of another task, or killed at the beginning of its training."""
    if kind == "file":
        write("run", "no folder")
    elif kind != "nowhere":
        Path("run").mkdir()
    if kind == "half":
        write("run/recipe.yaml", yaml.safe_dump(small()))
        write("run/.heed.lock", "1\n")
    if kind == "other task":
        write("run/config.json", json.dumps({"task": "caption"}))
        write("run/recipe.yaml", yaml.safe_dump({"task": "caption"}))
    if kind == "no weights":
        write("run/config.json", json.dumps({"task": "translate"}))
    if Path("run/config.json").exists():
        RunFolder("run").seal()
    before = sorted(Path().rglob("*"))
    name = "no/such/run" if kind == "nowhere" else "run"  # the hub is not asked for it
    said = refused(command(*verb[:1], name, *verb[1:]))
    assert name in said
    assert kind != "other task" or "caption" in said
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize("verb", ["evaluate", "predict", "show"])
def test_an_unknown_device_is_refused(command: Callable[..., Any], place: Path, verb: str) -> None:
    assert "use auto, cpu or cuda" in refused(command(verb, "run", "--device", "tpu"))


@pytest.mark.parametrize("more", [(), ("--walk",), ("--html", "page.html")])
def test_a_text_to_show_that_is_not_utf8_is_refused(
    command: Callable[..., Any], place: Path, more: tuple[str, ...]
) -> None:
    """As Python represents an argument of Latin-1 bytes."""
    line = refused(command("show", "nowhere", "na\udcefve", *more))
    assert "not UTF-8: na\\udcefve" in line
