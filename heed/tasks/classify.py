"""Classify: from labelled texts to a model that says what a text is.

    a stirring , funny and finally transporting film  ->  positive

Data     Labelled texts from files (`data/labelled.py`). Where there is one file only, a share of it
         is held out, chosen by the texts alone. Tokenisers are trained on the training texts, or
         come with the weights that training starts from.
Model    `models/classifier.py`: a BiLSTM, filters, BERT or XLNet, and a static attention or another
         pool.
Judged   Accuracy, macro-F1, precision and recall of each label, what is taken for what.
A good run  The recipe `sst2` gets 82 % of the test right in two minutes; docs/results.md.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError, model_validator
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import heed
from heed.answers.form import Example
from heed.answers.label import Label, LabelTraining
from heed.answers.worker import Worker
from heed.data.file_format import format_of
from heed.data.kinds import text
from heed.data.kinds.text import Text
from heed.data.labelled import (
    NAMES,
    LabelledFiles,
    TextReport,
    choice,
    fits_a_line,
    label_set,
    read_labelled,
)
from heed.data.labelled import Column as FileColumn
from heed.data.letters import GRAMS, Letters
from heed.data.letters import MOST as MOST_LETTERS
from heed.data.tables import read_texts
from heed.data.text import is_json_lines
from heed.data.tokenise import SPECIALS, UNK
from heed.data.vocabularies import Vocabulary
from heed.errors import Refused
from heed.events import Note, Work
from heed.models import classifier
from heed.models.classifier import ClassifierSettings
from heed.models.reader_settings import GATHERED
from heed.models.text_settings import with_symbols
from heed.models.xlnet_reader import GATHERS
from heed.storage.run_folder import RunFolder
from heed.tasks.task import (
    BERT_FRAME,
    Codec,
    Config,
    Exported,
    FileData,
    Frame,
    Name,
    Prepared,
    Recipe,
    Start,
    Task,
    Tokens,
    check_vocabulary,
    fitted_pieces,
    headline,
)

TRAINING = ("data.train.text", "data.train.label")
"""The keys of the columns of the training file."""
NAMED = 40  # characters of a column's name, at most
KNOWN = "spelled.known"  # the buffer of a network that reads letter n-grams
FRAMES = {
    "bert": BERT_FRAME,
    "xlnet": Frame("$A:0 {eos}:0 {bos}:2", "$A:0 {eos}:0 $B:1 {eos}:1 {bos}:2"),
}
"""The templates in which texts are passed to each pretrained model."""


class Data(FileData):
    """Settings of where the texts come from."""

    train: LabelledFiles
    valid: LabelledFiles | None = None
    test: LabelledFiles | None = None
    names: dict[str, str] = Field(
        default_factory=dict, max_length=1000, description="What labels of the files are called."
    )
    tokens: Tokens = Tokens()
    longest: int = Field(256, ge=4, le=100_000, description="Longer texts (in symbols) are cut.")

    @model_validator(mode="after")
    def _names(self) -> Data:
        if len(set(self.names.values())) != len(self.names):
            raise ValueError("data.names has one name for two labels")
        odd = next((name for name in self.names.values() if not fits_a_line(name)), None)
        if odd is not None:
            raise ValueError(f"data.names: {odd!r} has a tab, a line's end or the like")
        return self


class ClassifyRecipe(Recipe):
    """One training run: task, data, model, training."""

    task: Literal["classify"]
    data: Data
    model: ClassifierSettings
    training: LabelTraining

    @model_validator(mode="after")
    def _spelled(self) -> ClassifyRecipe:
        if self.model.letters is not None and self.data.tokens.kind != "word":
            raise ValueError(
                f"model.letters needs whole words, but data.tokens.kind={self.data.tokens.kind} "
                "makes pieces; set it to word, or leave letters out"
            )
        return self


class ClassifyConfig(Config):
    """config.json of a run that labels texts."""

    task: Literal["classify"]
    model: ClassifierSettings
    symbols: int = Field(ge=4, le=2_000_000)
    labels: list[Name] = Field(min_length=2, max_length=10_000)
    names: dict[Name, Name] = Field(
        default_factory=dict, max_length=10_000, description="Names of the labels in data files."
    )
    longest: int = Field(ge=2, le=1_000_000, description="Symbols of a text that are read.")
    grams: int = Field(0, ge=0, le=GRAMS, description="Letter n-grams that the words share.")
    text: FileColumn | None = Field(None, description="The column of the text in data files.")
    label: FileColumn | None = Field(None, description="The column of the label.")

    def build(self) -> nn.Module:
        """The network, its weights drawn at random."""
        letters = (self.grams, MOST_LETTERS)
        return classifier.build(
            self.model, symbols=self.symbols, labels=len(self.labels), letters=letters
        )


class AdoptedConfig(Config):
    """The fields needed from the config of a pretrained model that labels texts."""

    task: Literal["classify"] = "classify"
    labels: list[Name] = Field(min_length=2, max_length=65536)
    names: dict[str, str] = Field(default_factory=dict)
    text: None = None  # a pretrained folder has no data files
    label: None = None


class TextLabel(Label):
    """The label of a text, for a network that may also read the letters of words.

    letters  the letter n-grams of words, where it does
    gathers  the number of the symbol at a text's end that stands for the whole text and has a
             token type of its own; None: the model is given no types
    """

    def __init__(
        self, names: Sequence[str], letters: Letters | None = None, gathers: int | None = None
    ) -> None:
        super().__init__(names)
        self.letters, self.gathers = letters, gathers

    def more(self, worker: Worker, items: Sequence[Any], rows: Sequence[Any]) -> dict[str, Any]:
        """Types of symbols, and the letters of words; of unknown words, as their text has them."""
        found: dict[str, Any] = {}
        if self.gathers is None and self.letters is None:
            return found
        table = pad_sequence([torch.tensor(row[0]) for row in rows], batch_first=True)
        if self.gathers is not None:
            lengths = torch.tensor([len(row[0]) for row in rows])
            last = torch.arange(table.shape[1]) == lengths[:, None] - 1
            found["types"] = (GATHERS * (last & table.eq(self.gathers))).to(worker.device)
        if self.letters is not None:
            found["letters"] = self._letters(self.letters, worker, table, items).to(worker.device)
        return found

    def _letters(
        self, letters: Letters, worker: Worker, table: Tensor, items: Sequence[Any]
    ) -> Tensor:
        """B S -> B S K"""
        found = letters.known[table]
        for row, ids, (item,) in zip(found, table.tolist(), items, strict=True):
            unknown = [place for place, i in enumerate(ids) if i == UNK]
            if unknown:
                spelt = worker.kind.spelt(ids, item)
                words = [spelt[place].strip() for place in unknown]
                row[unknown] = letters.rows(words).to(row.dtype)
        return found


class Classify(Task[ClassifyRecipe, ClassifyConfig]):
    """The task of classification, for running."""

    name = "classify"
    about = headline(sys.modules[__name__])
    recipe, config, form = ClassifyRecipe, ClassifyConfig, Label
    examples_are = "texts"
    looks = "One text: the attention weights of each mechanism"
    options = ("text",)
    scoring = ("out", *NAMES)
    adopts = (("bert", "classify"), ("xlnet", "classify"))

    def draft(self, recipe: ClassifyRecipe) -> None:
        """Build the network; neither the vocabulary nor the labels matter."""
        classifier.build(recipe.model, symbols=len(SPECIALS), labels=2)

    def exchanged(self, model: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Another pool: mean, max, last, first, or a static attention, whose `static/` may be left
        out. With BERT and XLNet, any other name is the attention between their words."""
        return classifier.exchanged(model, name)

    def report(self) -> TextReport:
        """A count of texts."""
        return TextReport()

    def examples(
        self, data: Data, part: str, root: Path, report: Any, codec: Codec | None = None
    ) -> Iterator[Example]:
        """The texts of one part; with a codec, other labels than its own are refused."""
        files, only = self.files(data, part, root)
        labels = None if codec is None else codec.form.names
        known = None if labels is None else _known(data.names, labels)
        key = f"data.{part if getattr(data, part) else 'train'}"
        named: dict[str, Any] = {"labels": known, "options": (f"{key}.text", f"{key}.label")}
        for row in read_labelled(files, only=only, report=report, **named):
            yield Example((row.text,), data.names.get(row.label, row.label))
        if not report.kept:
            data.held_out.lacks(part, report)

    def fit(
        self, recipe: ClassifyRecipe, folder: RunFolder, root: Path, start: Start | None
    ) -> Work[Codec]:
        """The labels of the training texts, and a tokeniser."""
        data, first = recipe.data, TextReport()
        files = data.train.under(root / data.folder)
        found = (each.answer for each in self.examples(data, "train", root, first))
        labels = label_set(found, lambda: choice(files, TRAINING))
        _check_names(data.names, labels)
        if first.alone:
            yield Note(
                f"{data.train}:1: the first line is read as a text with the label '{first.alone}', "
                f"which no other text has; if it is a header, name its columns: {_columns(first)}"
            )
        again = (each.inputs[0] for each in self.examples(data, "train", root, TextReport()))
        pieces = yield from fitted_pieces(data.tokens, again, folder.tokenizer, start)
        limits = [data.longest, *filter(None, [recipe.model.reads])]
        return _codec(pieces, labels, recipe.model, min(limits))

    def report_lines(self, part: str, report: Any, codec: Codec, cut: int) -> Iterator[str]:
        """Report the number of texts and labels."""
        long = codec.inputs["text"].longest
        said = f"; {cut:,} longer than {long} symbols were cut" if cut else ""
        if part == "train":
            yield f"training texts: {report}; {len(codec.form.names)} labels{said}"
        else:
            yield f"{part} texts: {report}"

    def describe(self, recipe: ClassifyRecipe, prepared: Prepared) -> ClassifyConfig:
        """config.json."""
        kind, form = prepared.codec.inputs["text"], prepared.codec.form
        return ClassifyConfig(
            heed=heed.__version__,
            task=recipe.task,
            model=recipe.model,
            symbols=kind.size,
            labels=list(form.names),
            names=recipe.data.names,
            longest=kind.longest or recipe.data.longest,
            grams=0 if form.letters is None else form.letters.size,
            text=recipe.data.train.text,
            label=recipe.data.train.label,
        )

    def codec(self, folder: RunFolder, config: ClassifyConfig) -> Codec:
        """The tokeniser, the labels, and the letter n-grams of words."""
        pieces = text.load(folder.plain(folder.tokenizer), config.symbols)
        check_vocabulary(folder, pieces.size, config.symbols)
        if len(set(config.labels)) != len(config.labels):
            raise Refused(f"{folder.config}: one of its labels occurs twice")
        if not set(config.names.values()) <= set(config.labels):
            raise Refused(f"{folder.config}: names has a name that is not among the labels")
        found = _codec(pieces, config.labels, config.model, config.longest)
        if config.grams != (0 if found.form.letters is None else found.form.letters.size):
            raise Refused(f"{folder.config}: its grams do not fit the words of tokenizer.json")
        return found

    def ready(self, model: nn.Module, codec: Codec) -> None:
        """Copy the letter n-grams of the words into the model."""
        if codec.form.letters is not None:
            for own in _words_known(model).values():
                own.copy_(codec.form.letters.known)

    def adopted(self, model: nn.Module, start: Start) -> Mapping[str, Tensor]:
        """All weights of the start, XLNet's streams under the encoder's name; those of letters only
        if the n-grams have the same numbers."""
        own = _words_known(model)
        there = {
            f"encoder.{name}" if name.startswith("streams.") else name: x
            for name, x in start.weights.items()
        }
        strange = [x for x in own if x in there and not _same(there[x], own[x])]
        letters = tuple(name.removesuffix("known") for name in strange)
        return {name: x for name, x in there.items() if not name.startswith(letters)}

    def worker(
        self, model: nn.Module, codec: Codec, config: ClassifyConfig, device: torch.device
    ) -> Worker:
        """The trained model; refused if its letters are of other words."""
        letters = codec.form.letters
        if letters and not all(_same(x, letters.known) for x in _words_known(model).values()):
            raise Refused("the letters in the weights do not fit the words of tokenizer.json")
        return super().worker(model, codec, config, device)

    def adopt(self, found: Any, words: Vocabulary, path: Path) -> tuple[Config, Codec]:
        """The config and the codec of a BERT or an XLNet."""
        model = found.settings
        if model.labels < 2:
            raise Refused(f"{path} has a head with one label: it is a regression, not a classifier")
        labels = found.labels or tuple(f"LABEL_{i}" for i in range(model.labels))
        if len(labels) != model.labels or len(set(labels)) < len(labels) or "" in labels:
            raise Refused(f"{path}: config.json does not name {model.labels} different labels")
        bert = found.kind == "bert"
        limits = (words.longest, model.longest if bert else None)
        longest = min((limit for limit in limits if limit is not None), default=None)
        kind = Text(words, longest=longest, gathers=GATHERED[found.kind])
        config = AdoptedConfig(
            heed=heed.__version__, model=model, labels=list(labels), names=dict(found.names)
        )
        form = TextLabel(labels, gathers=None if bert else words.roles.get("cls"))
        return config, Codec({"text": kind}, form)

    def exported(self, config: ClassifyConfig) -> Exported | None:
        """A BERT that pools its first symbol, or an XLNet that pools its last; their weights have
        the same names."""
        told = config.model
        encoder: Any = told.encoder
        if told.gathers is None or told.pool != told.gathers:
            return None
        head = {"head": "classify", "labels": len(config.labels), "head_dropout": told.dropout}
        head |= {"summary": "last"} if encoder.kind == "xlnet" else {}
        settings = with_symbols(encoder, config.symbols).model_copy(update=head)
        return Exported(settings, FRAMES[encoder.kind], config.longest)

    def given(
        self, config: Any, codec: Codec, paths: Sequence[Path], options: Mapping[str, Any]
    ) -> Work[list[Any]]:
        """The labelled texts of a file; options: text and label, its columns."""
        report, names = TextReport(), config.names
        known = {label: label for label in config.labels} | names
        files = files_from(
            paths, config, {name: options[name] for name in NAMES if name in options}
        )
        found = read_labelled(files, labels=known, report=report)
        rows = [Example((row.text,), names.get(row.label, row.label)) for row in found]
        yield Note(str(report))
        return rows

    def lines(self, file: str, options: Mapping[str, Any]) -> Iterator[str]:
        """The lines of a text, or the texts in a column of a table; option: text, the column."""
        kind = format_of(file, ("tsv", "csv", "jsonl"))
        if "text" in options:
            named = options["text"]
            return read_texts(file, named if kind == "jsonl" else _column(named))
        if kind is not None and Path(file).exists():
            what, which = "a table", "COLUMN, by name or by number from 0"
            if kind == "jsonl":
                what, which = "JSON lines", "KEY"
            raise Refused(
                f"{file} has the ending of {what}; say where the text is: --text {which}; to read "
                f"each line as a text: heed predict RUN - < {shlex.quote(file)}"
            )
        return super().lines(file, options)


TASK = Classify()


def _codec(pieces: Any, labels: Sequence[str], model: ClassifierSettings, longest: int) -> Codec:
    """The codec for a model, with the letters of words where it reads them."""
    kind = Text(pieces, longest=longest, gathers=model.gathers)
    letters = None if model.letters is None else letters_of(pieces, *model.letters)
    return Codec({"text": kind}, TextLabel(labels, letters))


def letters_of(pieces: Any, shortest: int, longest: int) -> Letters:
    """The runs of letters in words; refused where symbols are pieces of words."""
    kind = getattr(pieces, "kind", "of a pretrained model")
    if kind != "word":
        raise Refused(f"letters need whole words, but the tokens are {kind}; leave them out")
    words = [word.strip() for word in pieces.spelt(range(pieces.size))]
    return Letters(["" for _ in SPECIALS] + words[len(SPECIALS) :], shortest, longest)


def _words_known(model: nn.Module) -> dict[str, Tensor]:
    """The buffers with the letter n-grams of a model's words."""
    return {name: x for name, x in model.named_buffers() if name.endswith(KNOWN)}


def _same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())


def _check_names(names: Mapping[str, str], labels: Sequence[str]) -> None:
    """Refuse names that were meant for labels of other texts."""
    odd = [f"'{label}' ({name})" for label, name in names.items() if name not in labels]
    if odd:
        raise Refused(
            f"data.names: no training text has the label {odd[0]}{' and others' * (len(odd) > 1)}"
            f"; there are {', '.join(labels[:10])}{' and more' * (len(labels) > 10)}: "
            "data.names={} takes them as they stand"
        )


def _known(names: Mapping[str, str], labels: Sequence[str]) -> dict[str, str]:
    """Labels as files may have them, by code or already by name, and what they are called."""
    return {name: name for name in labels} | {
        label: name for label, name in names.items() if name in labels
    }


def _columns(report: TextReport) -> str:
    """The keys that make names of columns of the first line; a long cell is none, but a text."""
    cells = (report.first, report.alone)
    named = cells if max(map(len, cells)) <= NAMED else ("COLUMN", "COLUMN")
    pairs = zip(TRAINING, named, strict=True)
    return " ".join(shlex.quote(f"{key}={name}") for key, name in pairs)


def _column(named: str) -> int | str:
    """A column by its number, of a few digits, or by its name."""
    return int(named) if named.isdecimal() and len(named) < 10 else named


def files_from(paths: Sequence[Path], config: Any, named: Mapping[str, str] = {}) -> LabelledFiles:
    """Labelled texts as the command line names them: one file, with the run's columns.

    named  the columns of this file that differ, by number or name
    """
    if len(paths) != 1:
        raise Refused(f"give one file of labelled texts; got {len(paths)} files")
    told: dict[str, Any] = {"text": config.text, "label": config.label}
    if is_json_lines(paths[0]):
        kind = "jsonl"
        told = {key: column for key, column in told.items() if isinstance(column, str)}
        told |= named
    else:
        kind = "csv" if paths[0].name.removesuffix(".gz").endswith(".csv") else "tsv"
        told |= {key: _column(name) for key, name in named.items()}
    try:
        return LabelledFiles(**{kind: paths[0]}, **told)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise Refused(f"--text and --label: {message}") from None
