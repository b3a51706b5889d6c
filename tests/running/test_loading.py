"""`heed.load`: pretrained folders, and names at the hub, become models ready for use."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

import heed
from heed.errors import HeedError, Refused
from heed.running.opening import open_run
from heed.running.starting import opened
from tests.running.folders import (
    CONFIGS,
    cut,
    headed,
    hollow,
    network,
    page,
    pointer,
    reconfigure,
    save,
)


def test_a_bert_folder_gives_the_numbers_of_transformers(tmp_path: Path) -> None:
    their = network("BertForSequenceClassification", num_labels=3)
    their.config.id2label = {0: "bad", 1: "so-so", 2: "good"}
    loaded = heed.load(save(their, tmp_path))
    assert (loaded.kind, loaded.head) == ("bert", "classify")
    assert loaded.labels == ("bad", "so-so", "good")
    assert loaded.tokeniser is not None
    assert str(loaded).startswith("Loaded(kind='bert', head='classify', ")
    assert f"Vocabulary({loaded.tokeniser.size} pieces, roles={{" in str(loaded)
    assert len(str(loaded)) < 300  # not every piece
    assert not loaded.model.training
    first, second = loaded.tokeniser.encode(["the cats 🙂.", "爱"], ["a", "the cat"])
    symbols = torch.tensor([first, second + [0] * (len(first) - len(second))])
    lengths = torch.tensor([len(first), len(second)])
    mask = torch.arange(len(first)) < lengths[:, None]
    with torch.no_grad():
        expected = their(symbols, attention_mask=mask.long()).logits
        assert_close(loaded.model(symbols, lengths).logits, expected)


def test_a_gpt2_folder_in_shards_gives_the_numbers_of_transformers(tmp_path: Path) -> None:
    their = network("GPT2LMHeadModel")
    folder = save(their, tmp_path, shards=3, words=False)
    assert len(list(folder.glob("model-*.safetensors"))) >= 3
    loaded = heed.load(folder)
    assert loaded.tokeniser is None
    symbols = torch.randint(23, (2, 11))
    with torch.no_grad():
        assert_close(loaded.model(symbols).logits, their(symbols).logits)


def assert_close(found: Tensor, expected: Tensor) -> None:
    """Within 1e-5 of the largest magnitude."""
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("named", [None, "BertTokenizer", "PreTrainedTokenizerFast"])
def test_texts_are_cut_as_auto_tokenizer_cuts_them(named: str | None, tmp_path: Path) -> None:
    """A tokenizer.json without lower case, which BERT's class does not heed."""
    folder = save(network("BertModel"), tmp_path)
    tokeniser = heed.load(folder).tokeniser
    assert tokeniser is not None
    tokeniser.tokenizer.normalizer = None
    (folder / "tokenizer.json").write_text(tokeniser.tokenizer.to_str(), "utf-8")
    (folder / "tokenizer_config.json").unlink(missing_ok=True)
    reconfigure(folder, tokenizer_class=named)
    texts = ["The CATS 🙂.", "爱 The", "the cats"]
    found = heed.load(folder).tokeniser
    assert found is not None
    expected = AutoTokenizer.from_pretrained(folder)(texts)["input_ids"]
    assert found.encode(texts) == expected
    assert (expected[0][1] == expected[2][1]) == (named != "PreTrainedTokenizerFast")


def test_the_body_alone_and_half_precision(tmp_path: Path) -> None:
    their = network("BertForPreTraining").half()
    body = heed.load(save(their, tmp_path), head="none")
    assert body.head == "none"
    assert all(name.startswith("cls.") for name in body.unused)
    weights = body.model.state_dict()
    expected = their.bert.pooler.dense.weight.float()
    assert torch.equal(weights["pool.dense.weight"], expected)


def untied(name: str, folder: Path, shards: int = 1) -> Any:
    """A model whose output is not tied to its table, although its config says so."""
    their = network(name, tie_word_embeddings=False)
    save(their, folder, shards=shards, words=False)
    reconfigure(folder, tie_word_embeddings=True)
    return their


@pytest.mark.parametrize("way", ["whole", "shards", "pickled"])
@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "XLNetLMHeadModel"])
def test_an_untied_output_is_read_whatever_the_config_says(
    name: str, way: str, tmp_path: Path
) -> None:
    their = untied(name, tmp_path, shards=3 if way == "shards" else 1)
    if way == "pickled":
        (tmp_path / "model.safetensors").unlink()
        torch.save(their.state_dict(), tmp_path / "pytorch_model.bin")
    loaded = heed.load(tmp_path, pickled=way == "pickled")
    assert not loaded.settings.tied
    symbols = torch.randint(22, (2, 11))
    with torch.no_grad():
        if name == "GPT2LMHeadModel":
            assert_close(loaded.model(symbols).logits, their(symbols).logits)
        else:
            states = loaded.model.streams(symbols).states
            assert_close(loaded.model.unformed(states).form(), their(symbols).logits)
    body = heed.load(tmp_path, head="none", pickled=way == "pickled")
    assert {"lm_head.weight", "lm_loss.weight"} & set(body.unused)


def test_a_copy_in_the_file_leaves_the_output_tied(tmp_path: Path) -> None:
    their = network("GPT2LMHeadModel")
    their.lm_head.weight = torch.nn.Parameter(their.transformer.wte.weight.clone())
    save(their, tmp_path, words=False)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert "lm_head.weight" in file.keys()  # noqa: SIM118
    loaded = heed.load(tmp_path)
    assert loaded.settings.tied
    assert loaded.unused == ()


def test_loading_draws_no_random_numbers(tmp_path: Path) -> None:
    folder = save(network("GPT2Model"), tmp_path, words=False)
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    heed.load(folder)
    assert torch.equal(torch.rand(3), expected)


def untie(folder: Path) -> None:
    """The last number of the output differs from the table: all must be compared."""
    with torch.device("meta"):
        their = network("BertForMaskedLM", vocab_size=2**21)
    entries, end = {}, 0
    for name, x in their.state_dict().items():
        start, end = end, end + x.nbytes
        entries[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [start, end]}
    output = "cls.predictions.decoder.weight"
    last = entries[output]["data_offsets"][1]
    header = json.dumps(entries).encode()
    path = folder / "model.safetensors"
    headed(path, header, end)
    with path.open("r+b") as file:
        file.seek(8 + len(header) + last - 1)
        file.write(b"\x3f")
    reconfigure(folder, vocab_size=2**21)


# Faults of folders, and their error messages.
WRONG: dict[str, tuple[Any, str]] = {
    "pointer": (lambda f: pointer(f / "model.safetensors"), "Git LFS pointer"),
    "page": (lambda f: page(f / "model.safetensors"), "web page"),
    "page as config": (lambda f: page(f / "config.json"), "web page"),
    "cut": (lambda f: cut(f / "model.safetensors"), "bytes of numbers"),
    "cut config": (lambda f: cut(f / "config.json"), "not valid JSON"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no model.safetensors"),
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "huge config": (lambda f: (f / "config.json").write_bytes(b" " * (2**20 + 1)), "larger than"),
    "heavy config": (
        lambda f: (f / "config.json").write_text("[" + "[]," * 300_000 + "0]"),
        "not a table",
    ),
    "huge header": (lambda f: headed(f / "model.safetensors", b" " * 2**24, 1), "a header of"),
    "heavy header": (
        lambda f: headed(f / "model.safetensors", b"[" + b"[]," * 300_000 + b"0]"),
        "not a table",
    ),
    "no sense": (lambda f: headed(f / "model.safetensors", b'{"a": {}}'), "an invalid description"),
    "1e12 wide": (lambda f: reconfigure(f, hidden_size=10**12), "hidden_size: 1000000000000"),
    "1e12 symbols": (lambda f: reconfigure(f, vocab_size=10**12), "vocab_size: 1000000000000"),
    "1e12 layers": (lambda f: reconfigure(f, num_hidden_layers=1e12), "num_hidden_layers"),
    "as large as can be": (
        lambda f: reconfigure(
            f, hidden_size=16384, num_hidden_layers=200, vocab_size=2**22, num_attention_heads=1
        ),
        "has the shape",
    ),
    "a tensor of 1e12": (
        lambda f: headed(
            f / "model.safetensors",
            json.dumps(
                {"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}
            ).encode(),
            4 * 10**12,
        ),
        "lack 'bert.embeddings",
    ),
    "one more layer": (lambda f: reconfigure(f, num_hidden_layers=3), "lack 'bert.encoder.layer.2"),
    "one layer less": (lambda f: reconfigure(f, num_hidden_layers=1), "hold 'bert.encoder.layer.1"),
    "wrong width": (lambda f: reconfigure(f, intermediate_size=15), "has the shape"),
    "unknown type": (lambda f: reconfigure(f, model_type="brt"), "did you mean bert"),
    "unknown class": (lambda f: reconfigure(f, architectures=["BertForMaskLM"]), "BertForMaskedLM"),
    "a long type": (lambda f: reconfigure(f, model_type="b" * 900_000), "no model_type"),
    "a long key": (lambda f: reconfigure(f, hidden_act="b" * 900_000), "hidden_act"),
    "a long class": (lambda f: reconfigure(f, architectures=["B" * 900_000]), "no architecture"),
    "a class to import": (
        lambda f: reconfigure(f, architectures=["os.system"], auto_map={"AutoModel": "evil.Evil"}),
        "no architecture is called 'os.system'",
    ),
    "a link out": (
        lambda f: ((f / "vocab.txt").unlink(), (f / "vocab.txt").symlink_to("/etc/passwd")),
        "is a link out",
    ),
    "too many words": (
        lambda f: (f / "vocab.txt").write_text("\n".join("abcdefghijklmnopqrstuvw")),
        "23 pieces, more than the model's 20",
    ),
    "words that are none": (lambda f: (f / "vocab.txt").write_bytes(b"\xff\xfe" * 5), "not UTF-8"),
    "a broken tokeniser": (lambda f: (f / "tokenizer.json").write_text("{}"), "not a tokeniser"),
    "a heavy tokeniser": (
        lambda f: (f / "tokenizer.json").write_text('{"a": [' + "[]," * 300_000 + "0]}"),
        "far more entries",
    ),
    "a tokeniser of other rules": (
        lambda f: reconfigure(f, tokenizer_class="BertJapaneseTokenizer"),
        "texts are cut by BertJapaneseTokenizer, whose rules heed does not have",
    ),
    "a huge tokeniser": (
        lambda f: (f / "tokenizer.json").write_bytes(b" " * 2**21),
        "larger than",
    ),
    "an output of its own": (untie, "'cls.predictions.decoder.weight' differs from"),
    "a piece with a huge number": (
        lambda f: (f / "tokenizer.json").write_text(
            json.dumps({"model": {"type": "WordPiece", "vocab": {"a": 10**9}}, "added_tokens": []})
        ),
        "numbers of the pieces",
    ),
}


# The sizes of a network that takes 200 MB.
WIDE = {"hidden_size": 768, "intermediate_size": 16384, "num_attention_heads": 12}


def outline(**changes: Any) -> dict[str, Tensor]:
    """The names and shapes of a model of theirs, without numbers."""
    with torch.device("meta"):
        their = BertForMaskedLM(BertConfig(**CONFIGS["Bert"] | changes))
    return {name: x for name, x in their.state_dict().items() if "decoder" not in name}


def tied_layer(folder: Path) -> None:
    """A layer that shares the numbers of another, as heed's own files say it."""
    reconfigure(folder, **WIDE)
    named = outline(**WIDE)
    ties = {x: x.replace("layer.1", "layer.0") for x in named if "layer.1." in x}
    kept = {name: x for name, x in named.items() if name not in ties}
    hollow(folder / "model.safetensors", kept, {"format": "pt", "tied": json.dumps(ties)})


def odd_shard(folder: Path) -> None:
    """The metadata of the fourth of five shards has something that only the library refuses."""
    (folder / "model.safetensors").unlink()
    reconfigure(folder, **WIDE)
    named = outline(**WIDE)
    places = {name: f"model-{5 * i // len(named)}.safetensors" for i, name in enumerate(named)}
    for file in set(places.values()):
        part = {name: x for name, x in named.items() if places[name] == file}
        hollow(folder / file, part, {"format": 5 if file == "model-3.safetensors" else "pt"})
    index = json.dumps({"weight_map": places})
    (folder / "model.safetensors.index.json").write_text(index)


def framed(folder: Path) -> None:
    """Special symbols, some millions, around each text."""
    piece, text = ({kind: {"id": name, "type_id": 0}} for kind, name in PARTS.items())
    special = {"id": "a", "ids": [1] * 1000, "tokens": ["a"] * 1000}
    frame = {
        "type": "TemplateProcessing",
        "single": [piece] * 2000 + [text],
        "pair": [],
        "special_tokens": {"a": special},
    }
    model = {"type": "WordLevel", "vocab": {"<unk>": 0, "a": 1}, "unk_token": "<unk>"}
    rules = {"model": model, "post_processor": frame}
    (folder / "tokenizer.json").write_text(json.dumps(rules))


PARTS = {"SpecialToken": "a", "Sequence": "A"}
WRONG |= {
    "a frame of millions": (framed, "many times longer"),
    "a layer tied to another": (tied_layer, "the weights lack 'bert.encoder.layer.1."),
    "a long remark": (
        lambda f: hollow(f / "model.safetensors", outline(), "b" * 900_000),
        "is not a safetensors file",
    ),
    "odd shard": (odd_shard, "is not a safetensors file"),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(network("BertForMaskedLM"), tmp_path_factory.mktemp("good"))


def broken(good: Path, folder: Path, wrong: str) -> str:
    """A copy of a good folder with one fault; returns the expected message."""
    folder.mkdir()
    for path in good.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    change, says = WRONG[wrong]
    change(folder)
    return str(says)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_fault_is_reported_in_one_line(good: Path, tmp_path: Path, wrong: str) -> None:
    folder = tmp_path / "folder"
    says = broken(good, folder, wrong)
    with pytest.raises(HeedError) as refused:
        heed.load(folder, pickled=True)
    line = str(refused.value)
    assert says in line
    assert str(folder) in line
    assert "\n" not in line
    assert len(line) <= 501


MEASURED = """
import sys
import heed
from heed.errors import HeedError

def memory(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))

good, *folders = sys.argv[1:]
heed.load(good)  # all that is imported for it is
for folder in folders:
    before = memory("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")  # the highest so far is forgotten
    try:
        heed.load(folder, pickled=True)
    except HeedError:
        print(folder, memory("VmHWM") - before)
    else:
        raise SystemExit(folder)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read where Linux shows it")
def test_a_refused_folder_takes_little_memory(good: Path, tmp_path: Path) -> None:
    folders = []
    for i, wrong in enumerate(WRONG):
        broken(good, tmp_path / str(i), wrong)
        folders.append(str(tmp_path / str(i)))
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(good), *folders], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr + done.stdout
    lines = done.stdout.splitlines()
    assert len(lines) == len(WRONG)
    grown = {wrong: float(line.split()[1]) for wrong, line in zip(WRONG, lines, strict=True)}
    assert max(grown.values()) < 50, grown


BOUNDED = """
import resource
import sys
import heed
from heed.errors import Refused

limit = int(sys.argv[2]) * 2**30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    heed.load(sys.argv[1])
except Refused as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded as Linux bounds it")
@pytest.mark.parametrize(
    ("limit", "says"),
    [(40, r"takes? 64\.\d GiB of memory"), (8, "model.safetensors cannot be opened")],
)
def test_a_model_larger_than_the_memory_is_refused_in_one_line(
    good: Path, tmp_path: Path, limit: int, says: str
) -> None:
    """16 GiB of numbers that take no disk space, and four times as much memory."""
    sizes = {"vocab_size": 2**22, "hidden_size": 4096, "num_attention_heads": 64}
    (tmp_path / "config.json").write_bytes((good / "config.json").read_bytes())
    reconfigure(tmp_path, **sizes)
    hollow(tmp_path / "model.safetensors", outline(**sizes))
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, str(tmp_path), str(limit)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rf"{tmp_path}.*{says}.*\n", done.stdout), done.stdout


class Hub:
    """Replaces huggingface_hub: a cache, and a network connection or none."""

    def __init__(self, cached: Path | None = None, online: Path | Exception | None = None) -> None:
        self.cached, self.online, self.asked = cached, online, []

    def model_info(self, name: str, **options: Any) -> None:
        assert 0 < options["timeout"] <= 10, "nobody waits for a net that does not answer"
        if isinstance(self.online, Exception):
            raise self.online

    def snapshot_download(self, name: str, **options: Any) -> str:
        self.asked.append((name, options))
        found = self.cached if options.get("local_files_only") else self.online
        if isinstance(found, Exception):
            raise found
        if found is None:
            raise FileNotFoundError("nothing there")
        return str(found)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(**parts: Any) -> Hub:
        made = Hub(**parts)
        for verb in ("snapshot_download", "model_info"):
            monkeypatch.setattr(f"huggingface_hub.{verb}", getattr(made, verb))
        return made

    return put


def test_a_cached_model_is_not_downloaded(good: Path, hub: Any) -> None:
    made = hub(cached=good)
    assert heed.load("someone/bert", revision="abc").kind == "bert"
    ((name, options),) = made.asked
    assert (name, options["revision"]) == ("someone/bert", "abc")
    assert options["local_files_only"]


def test_a_model_that_is_not_cached_is_downloaded_without_code(
    good: Path, tmp_path: Path, hub: Any
) -> None:
    half = tmp_path / "half"
    half.mkdir()
    (half / "config.json").write_bytes((good / "config.json").read_bytes())
    for cached in (None, half):
        made = hub(cached=cached, online=good)
        assert heed.load("bert-base").head == "masked"
        name, options = made.asked[-1]
        assert (name, options["revision"]) == ("bert-base", None)
        patterns = options["allow_patterns"]
        assert all(each.endswith((".json", ".safetensors", ".txt", ".model")) for each in patterns)


def test_no_connection_and_unknown_names_are_reported(hub: Any) -> None:
    hub(online=ConnectionError("no route"))
    with pytest.raises(Refused, match=r"no folder gpt3.*cannot be reached \(no route\)"):
        heed.load("gpt3")
    for name in ("../x", "/nowhere", "a/b/c", "~/x", "a b", "./x", "x/..", "x\n"):
        with pytest.raises(Refused, match="no folder"):
            heed.load(name)


def test_a_mistyped_path_is_not_looked_up_at_the_hub(
    tmp_path: Path, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs/grammar").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    made = hub(online=AssertionError("the hub was asked"))
    said = r"no folder runs/gramar \(did you mean runs/grammar\?\); the hub was not asked"
    with pytest.raises(Refused, match=said):
        open_run(Path("runs/gramar"), torch.device("cpu"))
    assert all(options["local_files_only"] for _, options in made.asked)


def test_verbs_accept_a_name_at_the_hub(
    good: Path, hub: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub(cached=good)
    run = open_run(Path("someone/bert"), torch.device("cpu"))
    assert (run.task.name, run.folder.path) == ("pretrain", good)
    start = opened(Path("someone/bert"))
    assert (start.path, start.settings.kind) == (Path("someone/bert"), "bert")
    (tmp_path / "someone/bert").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused, match=r"someone/bert is not a run"):  # a folder is preferred
        open_run(Path("someone/bert"), torch.device("cpu"))


def test_a_file_is_refused_as_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(Refused, match="give the folder"):
        heed.load(tmp_path / "model.safetensors")


def test_pickled_weights_are_read_if_asked_for(tmp_path: Path) -> None:
    their = network("GPT2Model")
    folder = save(their, tmp_path, words=False)
    (folder / "model.safetensors").unlink()
    torch.save(their.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(Refused, match="pickled=True"):
        heed.load(folder)
    weights = heed.load(folder, pickled=True).model.state_dict()
    assert torch.equal(weights["words.table.weight"], their.wte.weight)
