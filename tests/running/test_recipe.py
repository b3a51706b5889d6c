"""Recipes: ready ones are valid, every key is checked, and errors come with a remedy."""

from __future__ import annotations

import re
import shlex
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from heed.errors import Refused, UnknownName
from heed.models import building
from heed.running.recipe import (
    LARGEST,
    as_yaml,
    check,
    differing,
    load,
    names,
    overridden,
    parse,
    resolve,
    with_attention,
)
from heed.running.starting import BROUGHT

RECURRENT = "multi30k-rnn"
TRANSFORMER = "multi30k-transformer"


@pytest.mark.parametrize("name", names())
def test_a_ready_recipe_is_valid_and_can_be_built(name: str) -> None:
    recipe = resolve(load(name))
    assert recipe.about
    assert recipe.needs
    assert recipe.good
    check(recipe)  # raises nothing


def test_the_ready_recipes_are_those_of_the_package() -> None:
    folder = Path(building.__file__).parents[1] / "recipes"
    assert names() == sorted(path.stem for path in folder.iterdir())
    assert {"demo", "grammar", RECURRENT, TRANSFORMER, "zh-en"} <= set(names())


@pytest.mark.parametrize("name", names())
def test_a_written_recipe_is_read_unchanged(name: str) -> None:
    recipe = resolve(load(name))
    raw = parse(as_yaml(recipe))
    assert resolve(raw) == recipe
    assert set(raw["training"]) == set(type(recipe.training).model_fields)  # nothing is left out


def test_a_default_size_that_no_longer_applies_is_not_named() -> None:
    model = ["model.embedding=64", "model.hidden=128", "model.layers=1"]
    for changes, told in (
        (model, None),
        (model[:2], "small"),  # which sets the layers
        ([*model, "model.size=tiny"], "tiny"),  # given by the user
    ):
        raw = load("demo")
        raw["model"] = {"kind": "recurrent"}
        recipe = resolve(raw, changes)
        assert parse(as_yaml(recipe))["model"].get("size") == told
        assert resolve(parse(as_yaml(recipe))) == recipe


def test_unusual_strings_survive_being_written() -> None:
    changes = [
        "about='yes: #no [\"爱\"]'",
        "needs='null'",
        "good='1e3'",
        "training.betas=[0.8,0.9]",
    ]
    recipe = resolve(load("demo"), changes)
    assert (recipe.about, recipe.needs, recipe.good) == ('yes: #no ["爱"]', "null", "1e3")
    assert recipe.training.betas == (0.8, 0.9)
    assert resolve(parse(as_yaml(recipe))) == recipe


@pytest.mark.parametrize(
    ("name", "key", "near"),
    [
        ("demo", "sed", "seed"),
        ("demo", "trainning.epochs", "training"),
        ("demo", "training.epoch", "epochs"),
        ("demo", "decoding.widht", "width"),
        ("demo", "data.gramar", "grammar"),
        ("demo", "data.grammar.pair", "pairs"),
        ("demo", "data.tokens.knd", "kind"),
        ("demo", "model.hiden", "hidden"),
        (RECURRENT, "data.train.sauce", "source"),
        (RECURRENT, "data.valid.allignments", "alignments"),
        (TRANSFORMER, "model.encoder_layer", "encoder_layers"),
        (TRANSFORMER, "model.feed_dropuot", "feed_dropout"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(name: str, key: str, near: str) -> None:
    above = "".join(key.rpartition(".")[:2])
    wrong, meant = (key, f"{above}{near}") if near != "training" else ("trainning", near)
    with pytest.raises(Refused, match=f"^there is no key '{wrong}'; did you mean '{meant}'\\?$"):
        resolve(load(name), [f"{key}=1"])


def test_an_error_in_a_list_is_reported_with_its_place() -> None:
    for name in ("bert-reviews", "shakespeare-gpt"):
        for wrong, says in (
            ("txt: b", "txt'; did you mean 'data.train.1.text'"),
            ("text: b, column: a", ""),
        ):
            with pytest.raises(Refused, match=rf"data\.train\.1\.{says or 'column: '}"):
                resolve(load(name), [f"data.train=[a.txt, {{{wrong}}}]"])
    recipe = resolve(load("bert-mini"), ["data.train=[a.txt, b.jsonl]"])
    assert resolve(parse(as_yaml(recipe))) == recipe


def test_a_key_of_another_model_is_reported_with_those_of_this_one() -> None:
    with pytest.raises(Refused) as told:
        resolve(load(TRANSFORMER), ["model.cell=gru"])
    assert str(told.value).startswith("there is no key 'model.cell'; known: activation, ")
    assert "bidirectional" not in str(told.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("training.rate=fast", "training.rate: input should be a valid number"),
        ("training.rate=-1", "training.rate: input should be greater than 0; got -1"),
        ("decoding.width=0", "decoding.width: input should be greater than or equal to 1; got 0"),
        ("model.kind=rnn", "model: "),
        ("model.attention=additiv", "did you mean additive"),
        ("model=null", "model: "),
        ("data.grammar=null", "data: give the training pairs as data.train, or draw them"),
        ("training.steps=null", "training: give the length of the training: epochs or steps"),
        ("task=clasify", "task: no task is called 'clasify'; did you mean classify?"),
        ("data.train.tsv=a.tsv", "data: give the training pairs as data.train, or draw"),
    ],
)
def test_a_bad_value_is_refused_with_its_key(change: str, says: str) -> None:
    with pytest.raises(Refused) as told:
        resolve(load("demo"), [change], where="file.yaml")
    line = str(told.value)
    assert line.startswith("file.yaml: ")
    assert says in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("name", "changes", "says", "cures"),
    [
        (
            RECURRENT,
            ["data.train.tsv=tr.tsv"],
            "data.train: tsv, source and target are given; give one of: tsv; jsonl; source and",
            ["data.train.tsv=null", "data.train.source=null data.train.target=null"],
        ),
        (
            "zh-en",
            ["data.valid.source=a", "data.valid.target=b"],
            "data.valid: tsv, source and target are given",
            ["data.valid.tsv=null", "data.valid.source=null data.valid.target=null"],
        ),
        (
            "sst2",
            ["data.test.csv=a.csv"],
            "data.test: tsv and csv are given; give one of: tsv; csv; jsonl",
            ["data.test.tsv=null", "data.test.csv=null"],
        ),
        (
            "sst2",
            ["data.held_out.valid=0.1"],
            "data: data.valid is given, so nothing is held out for it",
            ["data.valid=null", "data.held_out.valid=0"],
        ),
        (
            "classify",
            ["data.valid=a.tsv", "data.test=b.tsv"],
            "data: data.valid and data.test are given, so nothing is held out for them",
            ["data.valid=null data.test=null", "data.held_out=null"],
        ),
        (
            "translate",
            ["data.test=b.tsv", "data.held_out.test=0.2"],
            "data: data.test is given, so nothing is held out for it",
            ["data.test=null", "data.held_out.test=0"],
        ),
        (
            "classify",
            ["data.train.csv=a.csv"],
            "data.train: tsv and csv are given",
            ["data.train.tsv=null", "data.train.csv=null"],
        ),
    ],
)
def test_files_beside_a_copied_recipe_are_refused_with_a_remedy_that_works(
    name: str, changes: list[str], says: str, cures: list[str]
) -> None:
    with pytest.raises(Refused) as told:
        resolve(load(name), changes)
    assert str(told.value).startswith(says)
    assert re.search(rf"[ (]{' or '.join(cures)}\)?$", str(told.value).replace(", or ", " or "))
    for cure in cures:
        resolve(load(name), [*changes, *shlex.split(cure)])


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ("null", None),
        ("", None),
        ("word", "word"),
        ("'3'", "3"),
        ('"a b"', "a b"),
        ("b=c", "b=c"),
        ("[1, two, null]", [1, "two", None]),
        ("{a: {b: 1}}", {"a": {"b": 1}}),
        ("local-p/general", "local-p/general"),
        ("爱", "爱"),
    ],
)
def test_an_override_is_read_as_yaml(given: str, value: Any) -> None:
    found = overridden({}, [f"x={given}"])
    assert found == {"x": value}
    assert type(found["x"]) is type(value)


def test_overrides_are_applied_and_leave_the_original_unchanged() -> None:
    raw = {"a": {"b": 1, "c": 2}, "i": None}
    found = overridden(raw, ["a.b=5", "a.d.e.f=6", "g.h=7", "a.b=8", "i.j=9"])
    assert found == {"a": {"b": 8, "c": 2, "d": {"e": {"f": 6}}}, "g": {"h": 7}, "i": {"j": 9}}
    assert raw == {"a": {"b": 1, "c": 2}, "i": None}


def test_a_key_is_set_before_the_keys_below_it_in_any_order() -> None:
    changes = ["a.b=5", "a={c: 1}", "a.d.e=6", "a.d={f: 7}"]
    for given in permutations(changes):
        assert overridden({}, given) == {"a": {"c": 1, "b": 5, "d": {"f": 7, "e": 6}}}


@pytest.mark.parametrize(
    ("name", "own", "keys"),
    [
        ("sst2", ["data.valid=null", "data.test=null"], "{valid: 0.1, test: 0.1}"),
        ("zh-en", ["data.valid=null", "data.test=null"], "{valid: 0.1, test: 0.1}"),
        ("bert-mini", [], "{share: 0.1}"),
    ],
)
def test_a_number_holds_out_that_share(name: str, own: list[str], keys: str) -> None:
    recipe = resolve(load(name), [*own, "data.held_out=0.1"])
    assert recipe == resolve(load(name), [*own, f"data.held_out={keys}"])
    assert recipe != resolve(load(name), [*own, "data.held_out=0.2"])
    for wrong in ("some", "true", "[0.1]"):
        with pytest.raises(Refused) as told:
            resolve(load(name), [*own, f"data.held_out={wrong}"])
        assert f"data.held_out: give a share, such as 0.1, or {keys}; got" in str(told.value)


def test_a_language_model_holds_out_one_share() -> None:
    with pytest.raises(Refused, match=r"^data\.held_out: give one share, .*: data\.held_out=0\.1$"):
        resolve(load("shakespeare-gpt"), ["data.held_out={valid: 0.1}"])


@pytest.mark.parametrize(
    ("name", "path", "key"),
    [
        ("sst2", "reviews.csv", "csv"),
        ("sst2", "reviews.tsv", "tsv"),
        ("sst2", "Reviews.TXT", "tsv"),
        ("sst2", "reviews.jsonl.gz", "jsonl"),
        ("sst2", "reviews.ndjson", "jsonl"),
        ("sst2", "reviews.csv.gz", "csv"),
        ("zh-en", "pairs.txt", "tsv"),
        ("zh-en", "mine/pairs.tsv.gz", "tsv"),
        ("zh-en", "pairs.jsonl", "jsonl"),
    ],
)
def test_a_file_is_named_by_its_path_alone(name: str, path: str, key: str) -> None:
    recipe = resolve(load(name), [f"data.train={path}"])
    assert recipe.data.train == resolve(load(name), [f"data.train={{{key}: {path}}}"]).data.train
    assert resolve(parse(as_yaml(recipe))) == recipe


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("sst2", "a.xlsx", "the ending does not show the format; give data.train.tsv=FILE, "),
        ("sst2", "csv", "or data.train.jsonl=FILE; got 'csv'"),
        ("zh-en", "a.csv", "csv files are not read here; give data.train.tsv=FILE or data.train."),
        ("zh-en", "a.xlsx", "format; give data.train.tsv=FILE or data.train.jsonl=FILE; got"),
        ("sst2", "[a.csv, b.csv]", "this is not one file; give data.train.tsv=FILE"),
        ("sst2", "null", "this is not one file; give data.train.tsv=FILE"),
    ],
)
def test_a_path_that_does_not_show_its_format_is_refused_with_the_keys(
    name: str, value: str, says: str
) -> None:
    with pytest.raises(Refused) as told:
        resolve(load(name), [f"data.train={value}"])
    assert says in str(told.value)


@pytest.mark.parametrize(
    ("name", "changes", "same"),
    [
        (
            "classify",
            ["data.train=a.csv", "data.train.text=review", "data.train.label=stars"],
            "data.train={csv: a.csv, text: review, label: stars}",
        ),
        (
            "sst2",
            ["data.train=a.txt", "data.train.text=2", "data.train.label=1"],
            "data.train={tsv: a.txt, text: 2, label: 1}",
        ),
        ("translate", ["data.train=a.tsv", "data.train.columns=[2,1]"], None),
        ("translate", ["data.train=a.jsonl", "data.train.keys=[zh,en]"], None),
        (
            "bert-mini",
            ["data.train=a.tsv", "data.train.column=1"],
            "data.train={text: a.tsv, column: 1}",
        ),
        ("shakespeare-gpt", ["data.train=a.jsonl", "data.train.key=abstract"], None),
    ],
)
def test_a_path_alone_may_have_keys_below_it_in_any_order(
    name: str, changes: list[str], same: str | None
) -> None:
    """Or a message that proposes such keys could not be followed where only a path is given."""
    found = [resolve(load(name), given) for given in permutations(changes)]
    assert all(each == found[0] for each in found)
    assert resolve(parse(as_yaml(found[0]))) == found[0]
    if same is not None:
        assert found[0] == resolve(load(name), [same])


def test_only_paths_have_keys_below_them() -> None:
    with pytest.raises(Refused, match=r"'attention' has a value, not further keys$"):
        resolve(load("demo"), ["model.attention=general", "model.attention.x=1"])
    with pytest.raises(Refused, match=r"^data\.train: tsv and csv are given; .*train\.tsv=null"):
        resolve(load("classify"), ["data.train=a.tsv", "data.train.csv=b.csv"])


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ([], (0.1, 0.1)),
        (["data.test=b.csv"], (0.1, 0)),
        (["data.valid=b.csv"], (0, 0.1)),
        (["data.test=b.csv", "data.held_out=0.2"], (0.2, 0)),
        (["data.held_out.test=0"], (0.1, 0)),
        (["data.held_out.test=0.3", "data.held_out=0.2"], (0.2, 0.3)),
        (["data.test=b.csv", "data.held_out.valid=0.3"], (0.3, 0)),
        (["data.test=b.csv", "data.valid=c.csv", "data.held_out=null"], (0, 0)),
    ],
)
def test_a_number_is_the_share_of_each_part_without_a_file(
    changes: list[str], held: tuple[float, float]
) -> None:
    recipe = resolve(load("classify"), changes)
    assert (recipe.data.held_out.valid, recipe.data.held_out.test) == held
    assert resolve(parse(as_yaml(recipe))) == recipe


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("epochs", "'epochs' is not key=value"),
        ("=3", "'=3' is not key=value"),
        ("a" * 5000, f"'{'a' * 80}' is not key=value"),
        ("seed.x=3", "'seed' has a value, not further keys"),
        ("a=[1", "the value is not YAML; quote it"),
        ("a={b: 1, b: 2}", "the value is not YAML"),
        ("a=!!python/object/apply:os.getcwd []", "the value is not YAML"),
        ("a=" + "[" * 5000, "the value is not YAML"),
        ("a=!!bool maybe", "the value is not YAML"),
        ("a=!!timestamp soon", "the value is not YAML"),
        ("a=0x" + "f" * 5000, "the value is not YAML"),
        ("a" + ".a" * 5000 + "=1", "keys of a recipe are not nested so deeply"),
    ],
)
def test_an_invalid_override_is_refused(change: str, says: str) -> None:
    with pytest.raises(Refused) as told:
        overridden({"seed": 1}, [change])
    assert says in str(told.value)
    assert len(str(told.value)) < 200


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml, line 3: 'a' occurs twice"),
        ("a:\n  b: 1\n  b: 2\n", "f.yaml, line 3: 'b' occurs twice"),
        ("a: &x [1]\nb: *x\n", "f.yaml, line 2: aliases are not allowed"),
        ("a: !!python/object/apply:os.getcwd []\n", "f.yaml, line 1: could not determine"),
        ("? [1, 2]\n: 3\n", "f.yaml, line 1: a key must be a word"),
        ("a: 1\n b: 2\n", "f.yaml, line 2: "),
        ("- a\n- b\n", "f.yaml is not a recipe"),
        ("", "f.yaml is not a recipe"),
        ("1: 2\n", "f.yaml is not a recipe"),
        ("a: \0\n", "f.yaml: "),
        ("a: 2020-99-99\n", "f.yaml, line 1: a value cannot be read: 2020-99-99"),
        ("a: !!bool maybe\n", "f.yaml, line 1: a value cannot be read: maybe"),
        ("b: 1\na: [!!timestamp soon]\n", "f.yaml, line 2: a value cannot be read: soon"),
        ("a: 0b" + "1" * 90, "f.yaml, line 1: a number has more than 64 bits"),
        ("a: " + "{b: " * 3000, "f.yaml: "),
    ],
)
def test_a_text_that_is_not_a_recipe_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(Refused) as told:
        parse(text, "f.yaml")
    assert str(told.value).startswith(says)
    assert "\n" not in str(told.value)


def test_a_path_that_cannot_be_is_told() -> None:
    with pytest.raises(Refused, match=r"cannot read the recipe .*null byte"):
        load("a\0.yaml")


def test_a_misspelt_kind_gets_the_nearest() -> None:
    raw = {**load("sst2")}
    raw["model"] = {**raw["model"], "encoder": {"kind": "lstn"}}
    with pytest.raises(
        Refused, match=r"^model\.encoder: no kind is called 'lstn'; did you mean lstm"
    ):
        resolve(raw)


def test_files_are_read_and_unreadable_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("task: translate\nabout: 爱\n", "utf-8")
    assert load(str(path)) == {"task": "translate", "about": "爱"}
    path.write_bytes(b"about: \xff\n")
    with pytest.raises(Refused, match="is not UTF-8 text"):
        load(str(path))
    path.write_text("# " + "x" * LARGEST)
    with pytest.raises(Refused, match="larger than a recipe can be"):
        load(str(path))
    with pytest.raises(Refused, match=r"cannot read the recipe .*No such file"):
        load(str(tmp_path / "none.yaml"))
    with pytest.raises(Refused, match=r"there is no run and no recipe .*/none$"):
        load(str(tmp_path / "none"))
    with pytest.raises(UnknownName, match="did you mean grammar"):
        load("gramar")
    data = tmp_path / "my reviews.csv"
    data.write_text("label,text\n")
    with pytest.raises(
        Refused, match=r"is data, not a recipe; .* classify 'data\.train=/.*\.csv'$"
    ):
        load(str(data))


@pytest.mark.parametrize("name", ["local-p/general", "none"])
def test_another_attention_for_a_recurrent_model(name: str) -> None:
    raw = {**load(RECURRENT)}
    raw["model"] = {**raw["model"], "attention": "local-p/general", "options": {"window": 3}}
    changed = with_attention(raw, name)
    recipe = resolve(changed)
    assert recipe.model.mechanism == name
    assert ("options" in changed["model"]) == (name != "none")  # with none, there are no options
    assert raw["model"]["options"] == {"window": 3}
    assert {**changed, "model": None} == {**raw, "model": None}


def test_another_attention_for_a_transformer_is_the_cross_attention() -> None:
    raw = load(TRANSFORMER)
    changed = resolve(with_attention(raw, "additive")).model
    assert changed.cross_attention == "additive"
    assert changed.model_copy(update={"cross_attention": "scaled-dot"}) == resolve(raw).model


def test_without_a_name_the_attention_stays() -> None:
    raw = load("demo")
    assert with_attention(raw, None) == raw
    with pytest.raises(Refused, match=r"^model: "):
        resolve(with_attention({**raw, "model": 3}, "dot"))


def test_a_run_is_not_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(Refused, match=r"is a run; to resume it: .* --resume"):
        load(str(tmp_path))


def test_keys_in_which_recipes_differ() -> None:
    one = resolve(load("sst2"))
    words = ["training.steps=7", "data.train={csv: my.csv}", "about=mine", "good=much"]
    two = resolve(load("sst2"), words)
    found = differing(one, two)
    assert found["training.steps"] == (one.training.steps, 7)
    assert found["data.train.csv"] == (None, "my.csv")
    assert {key.rpartition(".")[0] for key in found} == {"training", "data.train"}


def test_other_paths_to_the_same_files_are_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEED_DATA", str(tmp_path / "data"))
    (tmp_path / "here").symlink_to("data/sst2")
    raw = load("sst2")
    one = resolve(raw)
    for folder, file in [
        (str(tmp_path / "data/sst2"), "train.tsv"),
        ("./data/sst2", "../sst2/train.tsv"),
        ("sst2", str(tmp_path / "here/train.tsv")),
        ("./here", "train.tsv"),
    ]:
        words = [f"data.folder={folder}", f"data.train.tsv={file}"]
        assert differing(one, resolve(raw, words)) == {}, words
        assert differing(resolve(raw, words), one) == {}, words
    other = resolve(raw, ["data.folder=./data", "data.tokens.least=3"])
    assert set(differing(one, other)) == {"data.folder", "data.tokens.least"}
    assert differing(one, resolve(raw, ["data.train.text=2"])) == {"data.train.text": (None, 2)}
    assert "data.train.tsv" in differing(one, resolve(raw, ['data.train.tsv="a\\0b"']))


def test_sizes_taken_from_weights_are_no_difference() -> None:
    """A recipe without sizes resumes a run that was started from a pretrained folder."""
    one = resolve(load("sst2-bert"))
    own = resolve(load("sst2-bert"), ["model.encoder.symbols=77", "model.encoder.feed=9"])
    assert differing(one, own, BROUGHT) == {}
    assert set(differing(own, one, BROUGHT)) == {"model.encoder.symbols", "model.encoder.feed"}
    other = resolve(load("sst2-bert"), ["model.encoder.dropout=0.7"])
    assert set(differing(one, other, BROUGHT)) == {"model.encoder.dropout"}


def test_null_options_equal_no_options() -> None:
    one, two = (
        resolve(load("grammar"), ["model.attention=local-p/general", f"model.options={told}"])
        for told in ("{}", "{window: 3}")
    )
    assert "model.options" in differing(one, two, BROUGHT)


@pytest.mark.parametrize(
    ("name", "files", "cure"),
    [
        ("trec", "tsv", "data.held_out.valid=0.1"),
        ("zh-en", "tsv", "data.held_out.valid=0.05"),
        ("bert-mini", "text", "data.held_out.share=0.05"),
        ("shakespeare-gpt", "text", "data.held_out=0.1"),
    ],
)
def test_nothing_is_held_out_if_validation_files_are_given(
    name: str, files: str, cure: str
) -> None:
    """null clears any key of a copied recipe, and so it does here."""
    own = [f"data.{part}={{{files}: {part}.txt}}" for part in ("train", "valid", "test")]
    held = resolve(load(name), [*own, "data.held_out=null"]).data.held_out
    assert not getattr(held, "share", held)
    alone = [own[0], "data.valid=null", "data.test=null"]
    with pytest.raises(Refused, match=f"data.valid is missing: .* hold some out: {cure}$"):
        resolve(load(name), [*alone, "data.held_out=null"])
    resolve(load(name), [*alone, cure])
