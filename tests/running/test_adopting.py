"""Pretrained folders with every verb give the same results as `transformers`."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import heed
from heed.answers.hidden import HiddenObjective
from heed.data.permutation import sees
from heed.errors import Refused
from heed.events import finish
from heed.running.converting import convert
from heed.running.evaluate import evaluate
from heed.running.opening import open_run
from heed.running.predict import predict
from heed.running.showing import show
from heed.storage import tensors
from heed.training.settings import Training
from heed.viewing.pieces import label
from tests.running import labelling as labels
from tests.running.folders import network, reconfigure, save
from tests.running.small import Server, write_recipe
from tests.running.test_language_model import LINES, TEXT, small
from tests.running.test_pretrain import batch_of
from tests.running.test_pretrain import small as hiding

CPU = torch.device("cpu")
# Special symbols where heed has others, so that exchanged numbers would show.
BERT = ["the", "[SEP]", "cat", "[PAD]", "##s", "[CLS]", "[MASK]", "爱", "a", ".", "[UNK]", "sat"]
XLNET = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>"]
TEXTS = ["the cats sat .", "a cat", "爱 the a . sat the cat"]


def gpt2(folder: Path, more: int = 0) -> Path:
    """Byte-level BPE in which number 0 is a character, as in GPT-2's own."""
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet, show_progress=False)
    words.train_from_iterator([TEXT], trainer)
    words.add_special_tokens(["<|endoftext|>"])
    assert words.id_to_token(0) == "!"
    size = words.get_vocab_size()
    their = network("GPT2LMHeadModel", vocab_size=size + more, n_positions=16, n_embd=16, n_head=2)
    transformers.GPT2TokenizerFast(tokenizer_object=words).save_pretrained(folder)
    return save(their, folder, words=False)


def xlnet(folder: Path, name: str, **changes: Any) -> Path:
    words = Tokenizer(models.Unigram())
    words.pre_tokenizer, words.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=60, unk_token="<unk>", special_tokens=XLNET, show_progress=False
    )
    words.train_from_iterator(LINES, trainer)
    words.post_processor = processors.TemplateProcessing(
        single="$A:0 <sep>:0 <cls>:2", special_tokens=[("<cls>", 3), ("<sep>", 4)]
    )
    their = network(name, vocab_size=words.get_vocab_size() + 2, **changes)
    transformers.XLNetTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    return save(their, folder, words=False)


def bert(folder: Path, name: str, **changes: Any) -> Path:
    save(network(name, **changes), folder, words=False)
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in BERT), "utf-8")
    return folder


def their(name: str, folder: Path) -> tuple[Any, Any]:
    words = transformers.AutoTokenizer.from_pretrained(folder)
    return words, getattr(transformers, name).from_pretrained(folder).eval()


def answered(folder: Path, lines: list[str], tmp_path: Path, **options: Any) -> list[Any]:
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in lines))
    return list(predict(folder, str(tmp_path / "lines.txt"), device="cpu", **options))


@pytest.mark.parametrize("layout", ["theirs", "ours"])
def test_gpt2_continues_texts_as_theirs(layout: str, tmp_path: Path) -> None:
    folder = gpt2(tmp_path / "theirs")
    words, model = their("GPT2LMHeadModel", folder)
    if layout == "ours":
        finish(convert(str(folder), tmp_path / "ours"))
        folder = tmp_path / "ours"
    prompts = ["the cat", "", "a dog came, to"]
    found = answered(folder, prompts, tmp_path, method="greedy", longest=5)
    for prompt, answer in zip(prompts, found, strict=True):
        ids = torch.tensor([words(prompt).input_ids or [words.eos_token_id]])
        rules = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": words.eos_token_id}
        written = model.generate(ids, attention_mask=torch.ones_like(ids), **rules)[0]
        expected = words.decode(written[ids.shape[1] :], skip_special_tokens=True)
        assert [each.written for each in answer.found] == [expected]
    assert any(answer.found[0].written for answer in found)


def test_gpt2_scores_texts_as_theirs(tmp_path: Path) -> None:
    words, model = their("GPT2LMHeadModel", gpt2(tmp_path / "gpt2"))
    text = "the cat! sat!!\n"  # "!" is number 0
    (tmp_path / "text.txt").write_text(text)
    scores = finish(evaluate(tmp_path / "gpt2", [tmp_path / "text.txt"], device="cpu")).scores
    ids = torch.tensor([words(text).input_ids])
    assert scores.symbols == ids.shape[1] - 1
    assert scores.unknown == 0
    assert scores.loss == pytest.approx(float(model(ids, labels=ids).loss.detach()), rel=1e-5)
    (shown,) = show(tmp_path / "gpt2", ["the cat"], device="cpu")
    assert len(shown.panels) == 2 * 2


def test_a_bidirectional_xlnet_fills_masks_as_theirs(tmp_path: Path) -> None:
    folder = xlnet(tmp_path / "xlnet", "XLNetLMHeadModel")
    words, model = their("XLNetLMHeadModel", folder)
    lines = ["the <mask> sat", "<mask> dog [MASK] .", "the cat", ""]
    found = answered(folder, lines, tmp_path, best=3)
    for line, answer in zip(lines[:2], found, strict=False):
        kind: Any = open_run(folder, CPU).worker.kind
        ((before,),) = kind.whole([line])
        ids = torch.from_numpy(kind.pieces.order)[before][None]
        ids = torch.cat([ids, torch.tensor([[4, 3]])], 1)  # <sep> and <cls>
        hidden = ids == words.mask_token_id
        asks = torch.nn.functional.one_hot(hidden[0].nonzero()[:, 0], ids.shape[1])[None].float()
        hides = hidden[:, None].float().expand(-1, ids.shape[1], -1)  # no query sees a mask
        with torch.no_grad():
            logits = model(ids, perm_mask=hides, target_mapping=asks).logits[0]
        logits[:, : len(XLNET)], logits[:, len(words) :] = -torch.inf, -torch.inf
        shares, best = logits.softmax(-1).topk(3)
        given = [share for named in answer.found[0].words for _, share in named]
        assert given == pytest.approx(shares.flatten().tolist(), rel=1e-4)
        expected = [words.convert_ids_to_tokens(row) for row in best]
        told = [[word for word, _ in named] for named in answer.found[0].words]
        assert told == [list(map(label, (w.replace("▁", " ") for w in row))) for row in expected]
    assert [answer.line() for answer in found[2:]] == ["the cat", ""]
    (shown,) = show(folder, ["the <mask>"], device="cpu")
    assert shown.panels[0].rows[-2:] == ("<sep>", "<cls>")
    (tmp_path / "text.txt").write_text("".join(f"{line}\n" for line in LINES * 9))
    scores = finish(evaluate(folder, [tmp_path / "text.txt"], device="cpu")).scores
    assert scores.words > 20  # hidden words of the same text
    windows = finish(evaluate(folder, [tmp_path / "text.txt"], device="cpu", overlap=0)).scores
    assert windows.symbols > scores.words


def test_a_unidirectional_xlnet_writes(tmp_path: Path) -> None:
    folder = xlnet(tmp_path / "xlnet", "XLNetLMHeadModel", attn_type="uni")
    assert open_run(folder, CPU).task.name == "language-model"
    found = answered(folder, ["the cat sat"], tmp_path)
    assert len(found[0].found) == 1


def test_xlnet_continues_prompts_as_theirs_if_asked(tmp_path: Path) -> None:
    folder = xlnet(tmp_path / "xlnet", "XLNetLMHeadModel")
    words, model = their("XLNetLMHeadModel", folder)
    found = answered(folder, ["the cat sat", ""], tmp_path, method="greedy", longest=1)
    # The next symbol in theirs: a target position after the prompt, which no query sees.
    ids = torch.tensor([[*words("the cat sat", add_special_tokens=False).input_ids, 0]])
    T = ids.shape[1]
    hides, asks = torch.zeros(1, T, T), torch.zeros(1, 1, T)
    hides[:, :, -1], asks[0, 0, -1] = 1, 1
    hides[:, :-1, -2] = 1  # symbols read one by one are not visible to the prompt before them
    with torch.no_grad():
        logits = model(ids, perm_mask=hides, target_mapping=asks).logits[0, 0, : len(words)]
    logits[[0, 1, 3, 4, 5, 6]] = -torch.inf
    best = words.decode([*ids[0, :-1].tolist(), int(logits.argmax())])
    assert "the cat sat" + found[0].found[0].written == best
    assert len(found) == 2
    reconfigure(folder, attn_type="uni")
    (shown,) = show(folder, ["the cat"], device="cpu")
    assert len(shown.panels) == 2 * 3  # the stream that predicts, and no other


@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertForPreTraining"])
def test_bert_fills_masks_as_theirs(name: str, tmp_path: Path) -> None:
    folder = bert(tmp_path / "bert", name)
    words, model = their(name, folder)
    lines = ["the [MASK] sat .", "[MASK] cats a [MASK]", "the cat", ""]
    found = answered(folder, lines, tmp_path, best=3)
    specials = [BERT.index(word) for word in BERT if word.startswith("[")]
    for line, answer in zip(lines[:3], found, strict=False):
        coded = words(line, return_tensors="pt")
        with torch.no_grad():
            said = model(**coded)
        logits = (said.logits if name == "BertForMaskedLM" else said.prediction_logits)[0]
        logits[:, specials], logits[:, len(BERT) :] = -torch.inf, -torch.inf
        shares, ids = logits[coded.input_ids[0] == words.mask_token_id].softmax(-1).topk(3)
        expected = [words.convert_ids_to_tokens(row) for row in ids]
        assert [[word for word, _ in named] for named in answer.found[0].words] == expected
        given = [share for named in answer.found[0].words for _, share in named]
        assert given == pytest.approx(shares.flatten().tolist(), rel=1e-4)
    assert found[3].line() == ""
    (shown,) = show(folder, ["the [MASK]"], device="cpu")
    assert shown.panels[0].rows[0] == "[CLS]"


def test_the_next_sentence_head_agrees_with_theirs(tmp_path: Path) -> None:
    folder = bert(tmp_path / "bert", "BertForPreTraining")
    words, model = their("BertForPreTraining", folder)
    (found,) = answered(folder, ["the cat sat\ta cat ."], tmp_path)
    with torch.no_grad():
        said = model(**words("the cat sat", "a cat .", return_tensors="pt"))
    expected = float(said.seq_relationship_logits.softmax(-1)[0, 0])
    assert found.found[0].follows == pytest.approx(expected, rel=1e-4)


def test_bert_is_evaluated_by_hidden_words(tmp_path: Path) -> None:
    folder = bert(tmp_path / "bert", "BertForMaskedLM")
    (tmp_path / "text.txt").write_text("".join(f"{text}\n" for text in TEXTS * 20))
    scores = finish(evaluate(folder, [tmp_path / "text.txt"], device="cpu")).scores
    assert scores.words > 20
    assert 0 < scores.words_entropy <= math.log(len(BERT))
    assert scores.unigram_loss is None  # nobody knows the text that it was trained on
    assert math.isfinite(scores.loss)
    assert scores.follows_accuracy is None


@pytest.mark.parametrize("family", ["Bert", "XLNet"])
def test_texts_are_labelled_as_theirs(family: str, tmp_path: Path) -> None:
    name, folder = f"{family}ForSequenceClassification", tmp_path / "folder"
    labels = {"id2label": {0: "bad", 1: "good", 2: "so-so"}}
    labels["label2id"] = {name: i for i, name in labels["id2label"].items()}
    made = bert if family == "Bert" else xlnet
    words, model = their(name, made(folder, name, **labels))
    texts = [*TEXTS, f"the {words.cls_token} cat"]
    found = answered(folder, [*texts, ""], tmp_path)
    for text, answer in zip(texts, found, strict=False):
        coded = words(text, return_tensors="pt")
        types = None
        if family == "XLNet":  # the last symbol, which summarises, has a third type (Yang 2019)
            types = torch.zeros_like(coded.input_ids)
            types[:, -1] = 2
        with torch.no_grad():
            said = model(coded.input_ids, token_type_ids=types)
        shares = said.logits[0].softmax(-1)
        expected = {labels["id2label"][i]: float(share) for i, share in enumerate(shares)}
        assert answer.as_data()["label"] == max(expected, key=lambda label: expected[label])
        ((judged,),) = open_run(folder, CPU).worker.answers([(text,)])
        assert judged.shares == pytest.approx(expected, rel=1e-4)
    (tmp_path / "rows.tsv").write_text("".join(f"bad\t{text}\n" for text in TEXTS))
    scores = finish(evaluate(folder, [tmp_path / "rows.tsv"], device="cpu")).scores
    assert (scores.texts, list(scores.labels)) == (3, ["bad", "good", "so-so"])
    assert show(folder, ["the cat"], device="cpu")[0].source == "the cat"


def test_labels_without_names(tmp_path: Path) -> None:
    bert(tmp_path / "bert", "BertForSequenceClassification")
    assert list(open_run(tmp_path / "bert", CPU).config.labels) == ["LABEL_0", "LABEL_1"]


def test_unsupported_requests_are_refused_in_one_line(server: Server, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("the cat\n")
    save(network("BertModel"), tmp_path / "body")
    said = server.run("predict", tmp_path / "body", lines).refused()
    assert "head 'none', which no command" in said
    save(network("BertForMaskedLM"), tmp_path / "bare", words=False)
    assert "no tokeniser" in server.run("predict", tmp_path / "bare", lines).refused()
    bert(tmp_path / "one", "BertForSequenceClassification", num_labels=1)
    assert "one label" in server.run("show", tmp_path / "one", "the cat").refused()
    gone = bert(tmp_path / "gone", "BertForMaskedLM")
    (gone / "vocab.txt").write_text("".join(f"{w}\n" for w in BERT if w != "[MASK]") * 1)
    reconfigure(gone, vocab_size=20)
    (gone / "tokenizer_config.json").write_text(json.dumps({"mask_token": "the"}))
    assert open_run(gone, CPU).worker.form.symbols.mask  # a piece of another name
    long = bert(tmp_path / "long", "BertForSequenceClassification")
    reconfigure(long, id2label={"0": "a" * 1001, "1": "b"}, label2id=None)
    said = server.run("predict", long, lines).refused()
    assert "that no command supports: labels.0" in said
    assert len(said) < 400
    short = bert(tmp_path / "short", "BertForMaskedLM", max_position_embeddings=4)
    assert "no command supports: longest" in server.run("predict", short, lines).refused()
    gpt2(tmp_path / "gpt2")
    said = server.run("evaluate", tmp_path / "gpt2")
    assert "gpt2 keeps no test text; give a file" in said.refused()
    bare = bert(tmp_path / "bare", "BertForMaskedLM")
    for folder, more in ((tmp_path / "gpt2", ()), (bare, ()), (bare, ("--walk",))):
        said = server.run("show", folder, *more)
        assert said.refused().endswith(f"{folder.name} keeps no examples; give a text\n")
    small_head = json.loads((tmp_path / "gpt2/config.json").read_text())["vocab_size"] - 1
    reconfigure(tmp_path / "gpt2", vocab_size=small_head)
    assert "shape" in server.run("predict", tmp_path / "gpt2", lines).refused()


def test_a_gpt2_is_fine_tuned_with_its_own_vocabulary(server: Server, tmp_path: Path) -> None:
    folder, run = gpt2(tmp_path / "gpt2", more=2), tmp_path / "run"
    sizes = {"layers": 2, "width": 16, "heads": 2, "feed": 64, "longest": 16, "dropout": 0.0}
    model = {"kind": "gpt2", "size": "nano", "attention_dropout": 0.0, **sizes}
    text = "wow! the cat sat!\n" * 40
    recipe = small(tmp_path, model, steps=10, rate=1e-9, validate_every=10, save_every=10)
    (tmp_path / "input.txt").write_text(text)
    done = server.run("train", recipe, "--from", folder, "--run", run)
    assert done.code == 0, done.err
    assert "new:" not in done.out + done.err  # every weight was loaded
    assert json.loads((run / "config.json").read_text())["symbols"] == 270 + 1
    words, theirs = their("GPT2LMHeadModel", folder)
    # At such a rate nothing is learnt: the reported training loss is theirs, with "!" counted.
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    told = [row["train/loss"] for row in metrics if "train/loss" in row]
    ids = torch.tensor(words(text).input_ids)
    assert int((ids == 0).sum()) >= 80
    rows = ids[: (len(ids) - 1) // 16 * 16 + 1].unfold(0, 17, 16)
    with torch.no_grad():
        logits = theirs(rows[:, :-1]).logits.mT
    each = torch.nn.functional.cross_entropy(logits, rows[:, 1:], reduction="none").mean(1)
    assert each.min() - 0.1 < told[-1] < each.max() + 0.1
    done = server.run("predict", run, tmp_path / "input.txt", "--longest", "3")
    assert done.code == 0, done.err
    # A recipe with another size is refused, and the sizes are named.
    other = small(tmp_path, {**model, "width": 32, "feed": 128}, steps=10)
    (tmp_path / "input.txt").write_text(text)
    said = server.run("train", other, "--from", folder, "--run", tmp_path / "other").err
    assert "width=32 (there 16), model.feed=128 (there 64); to match: model.width=16" in said
    shutil.rmtree(run)
    assert heed.load(folder).tokeniser is not None


SIZES = {"layers": 2, "width": 12, "heads": 3, "feed": 14}


def further(folder: Path, family: str, **changes: Any) -> Path:
    """A recipe that continues the pretraining of a folder at a rate too low to change it."""
    objective = {"kind": "masked"} if family == "bert" else {"kind": "permutation"}
    model = {"kind": family, **SIZES, **({"longest": 16} if family == "bert" else {})}
    data = {"longest": 16}
    still = {"steps": 2, "rate": 1e-9, "validate_every": 2, "save_every": 2}
    recipe = hiding(folder, model, objective, data=data, **still, **changes)
    some = [
        "the cats sat . \n a cat .",
        "a cat sat \n the cat . \n the cats",
        "cats . \n a the cat",
    ]
    for name in ("train.txt", "valid.txt"):
        (folder / name).write_text("\n\n".join(some * 8).replace(" \n ", "\n") + "\n")
    return recipe


@torch.no_grad()
@pytest.mark.parametrize("family", ["bert", "xlnet"])
def test_pretraining_continues_with_the_folders_own_vocabulary(
    family: str, server: Server, tmp_path: Path
) -> None:
    """Before any step the loss is that of the folder's model on the same rows."""
    name = {"bert": "BertForPreTraining", "xlnet": "XLNetLMHeadModel"}[family]
    folder = (bert if family == "bert" else xlnet)(tmp_path / "folder", name)
    done = server.run("train", further(tmp_path, family), "--from", folder, "--run", tmp_path / "r")
    assert done.code == 0, done.err
    assert "new:" not in done.out + done.err  # every weight was loaded
    words, theirs = their(name, folder)
    model, batch = batch_of(tmp_path / "r")
    opened = open_run(tmp_path / "r", CPU)
    there = torch.from_numpy(opened.worker.kind.pieces.order)  # of each number of a row
    objective = HiddenObjective(Training(steps=1), opened.worker.form.numbers)
    ours = float(objective(model, batch).total) / objective.count(batch)
    tokens, lengths = batch.tokens, batch.lengths["text"]
    labels = torch.where(tokens["labels"] == 0, -100, there[tokens["labels"]])
    told: dict[str, Any] = {
        "input_ids": there[tokens["text"]],
        "attention_mask": (torch.arange(tokens["text"].shape[1]) < lengths[:, None]).float(),
    }
    if family == "bert":
        placed = torch.full_like(tokens["text"], -100)
        for b, k in tokens["labels"].nonzero():
            placed[b, tokens["places"][b, k]] = labels[b, k]
        follows = {"next_sentence_label": tokens["follows"][:, 0] - 1}
        said = theirs(**told, token_type_ids=tokens["segments"], labels=placed, **follows)
    else:
        seen = torch.from_numpy(sees(tokens["order"].numpy(), tokens["predicted"].numpy()))
        asked, T = tokens["places"], tokens["text"].shape[1]
        mapping = torch.nn.functional.one_hot(asked.clamp(min=0), T) * (asked >= 0)[..., None]
        hides = {"perm_mask": (~seen).float(), "target_mapping": mapping.float()}
        said = theirs(**told, **hides, labels=labels)
    assert ours == pytest.approx(float(said.loss), rel=1e-5)
    # The text is cut as in the folder, and the run keeps the folder's model.
    (sides,) = opened.worker.kind.whole(["the cats sat ."])
    row = opened.worker.form.framed(sides).ids
    assert there[row].tolist() == words("the cats sat .").input_ids
    lines = ["the [MASK] sat .", "[MASK] cat"]
    one, other = (answered(path, lines, tmp_path, best=3) for path in (folder, tmp_path / "r"))
    assert [each.line() for each in one] == [each.line() for each in other]
    done = server.run("convert", tmp_path / "r", tmp_path / "back")
    assert done.code == 0, done.err
    _, again = their(name, tmp_path / "back")
    for key, weight in theirs.state_dict().items():
        torch.testing.assert_close(again.state_dict()[key], weight, rtol=0, atol=1e-6)


def test_a_continued_pretraining_resumes_and_can_be_started_from(
    server: Server, tmp_path: Path
) -> None:
    folder, run = bert(tmp_path / "folder", "BertForMaskedLM"), tmp_path / "run"
    recipe = further(tmp_path, "bert")
    done = server.run("train", recipe, "--from", folder, "--run", run)
    assert done.code == 0, done.err
    shutil.rmtree(run / "checkpoints")
    done = server.run("train", recipe, "--run", run, "--resume")
    assert done.code == 0, done.err
    done = server.run("train", recipe, "--from", folder, "--run", run, "--resume")
    assert done.code == 0, done.err
    assert f"{run} is resumed with its own weights: {folder} is not read again" in done.err
    done = server.run("train", recipe, "--from", run, "--run", tmp_path / "next")
    assert done.code == 0, done.err
    assert "new:" not in done.out + done.err
    recipe = labels.recipe(labels.files(tmp_path / "labels"), steps=1, validate_every=1)
    recipe["model"] = {"encoder": {"kind": "bert", **SIZES, "longest": 16}, "pool": "first"}
    recipe["data"]["longest"] = 16
    path = write_recipe(tmp_path, recipe)
    done = server.run("train", path, "--from", run, "--run", tmp_path / "fine")
    assert done.code == 0, done.err
    before, after = (
        heed_weights(x)["encoder.words.table.weight"] for x in (run, tmp_path / "fine")
    )
    torch.testing.assert_close(after, before, rtol=0, atol=0.05)


def heed_weights(run: Path) -> dict[str, torch.Tensor]:
    return tensors.read(run / "model.safetensors")


def test_folders_that_cannot_be_pretrained_further_are_refused_with_the_reason(
    server: Server, tmp_path: Path
) -> None:
    folder = bert(tmp_path / "folder", "BertForMaskedLM", vocab_size=len(BERT))
    (folder / "vocab.txt").write_text("".join(f"{w}\n" for w in BERT).replace("[MASK]", "mask"))
    recipe = further(tmp_path, "bert")
    said = server.run("train", recipe, "--from", folder, "--run", tmp_path / "r").err
    assert "its vocabulary does not name its piece for [MASK]" in said
    bare = save(network("BertForMaskedLM"), tmp_path / "bare", words=False)
    said = server.run("train", recipe, "--from", bare, "--run", tmp_path / "r").err
    assert "bare has no tokeniser with a mask" in said


def test_a_broken_folder_is_refused_as_by_load(tmp_path: Path) -> None:
    folder = bert(tmp_path / "bert", "BertForMaskedLM")
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(Refused) as by_load:
        heed.load(folder)
    with pytest.raises(Refused) as by_verb:
        open_run(folder, CPU)
    assert str(by_load.value) == str(by_verb.value)
