"""Lists of what can be trained, derived from the code."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

import heed
from heed.models.building import MODELS
from heed.models.classifier import ClassifierSettings
from heed.models.recurrent_settings import RecurrentSettings
from heed.running import listing
from heed.running.recipe import load
from heed.tasks import TASKS, task_of


def test_every_recipe_is_listed_with_its_description() -> None:
    found = {each["name"]: each for each in listing.recipes()}
    files = Path(heed.__file__).parent / "recipes"
    assert set(found) == {path.stem for path in files.glob("*.yaml")}
    for name, each in found.items():
        raw = load(name)
        assert list(each) == ["name", "task", "about", "needs", "good"]
        assert {key: raw[key] for key in each if key != "name"} == {
            key: value for key, value in each.items() if key != "name"
        }


def test_every_model_is_listed_with_its_sizes_and_keys() -> None:
    found = {each["name"]: each for each in listing.models()}
    assert set(found) == set(MODELS)
    recurrent = found["recurrent"]
    assert recurrent["sizes"]["base"] == {"embedding": 256, "hidden": 512, "layers": 1}
    assert found["transformer"]["sizes"]["base"]["heads"] == 8  # Vaswani 2017 table 3
    assert set(recurrent["keys"]) == set(RecurrentSettings.model_fields)
    assert all(each["keys"][0] == "kind" for each in found.values())
    assert all(each["about"] and not each["about"].endswith(".") for each in found.values())


def test_the_listed_encoders_of_a_classifier_are_those_of_its_settings() -> None:
    found = {each["name"]: each["kinds"] for each in listing.models()}
    assert list(found["classifier"]) == ["encoder"]
    assert found["tagger"] == found["classifier"]
    encoders = found["classifier"]["encoder"]
    assert {"lstm", "gru", "cnn", "bert", "xlnet"} <= set(encoders)
    for kind, keys in encoders.items():
        encoder = ClassifierSettings.model_validate({"encoder": {"kind": kind}}).encoder
        assert (keys[0], set(keys)) == ("kind", set(type(encoder).model_fields))
    with pytest.raises(ValidationError) as told:
        ClassifierSettings.model_validate({"encoder": {"kind": "?"}})
    (error,) = told.value.errors()
    assert set(re.findall(r"'(\w+)'", error["ctx"]["expected_tags"])) == set(encoders)
    assert not any(kinds for name, kinds in found.items() if name not in ("classifier", "tagger"))


def test_the_listed_models_are_those_that_recipes_accept() -> None:
    taken: set[Any] = set()
    for task in TASKS:
        said = task_of(task).recipe.model_fields["model"].annotation
        taken |= set(get_args(said) or [said])
    assert taken == {known.settings for known in MODELS.values()}


def test_listing_works_without_docstrings() -> None:
    """`python -OO` leaves them out."""
    code = "from heed.running import listing; print(listing.tasks(), listing.models())"
    done = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "'classify'" in done.stdout


def test_every_task_is_listed() -> None:
    found = listing.tasks()
    assert [each["name"] for each in found] == list(TASKS)
    assert found[0]["about"].startswith("from pairs of sentences to ")
    assert all(each["about"] and not each["about"].endswith(".") for each in found)


def test_a_task_imports_no_other() -> None:
    """Nor does what comes before the task is known, or every command would wait for all."""
    tasks = tuple(TASKS.values())
    code = (
        "import sys, heed.running.train\n"
        f"loaded = lambda: [x for x in {tasks} if f'heed.tasks.{{x}}' in sys.modules]\n"
        "print(loaded())\n"
        "heed.running.train.task_of('classify')\n"
        "print(loaded())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[]", "['classify']"], done.stderr
