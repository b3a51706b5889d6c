r"""Language-model: from plain text to a model that goes on writing it.

    First Citizen:\nBefore we proceed any  ->   further, hear me speak.

Data     Text files of any size, as they stand: every space and line break counts; or columns of
         tables and JSON lines, several of them as one corpus (`data/sources.py`). What to judge by
         is files of its own, or the last part of the text. Symbols are characters, or pieces of
         bytes that are learnt from the text (`data/verbatim.py`).
Model    A recurrent network (`models/recurrent_language.py`), a Transformer decoder, GPT-2
         (`models/text_settings.py`), or XLNet from left to right (`models/xlnet_settings.py`): each
         symbol is predicted from those before it, in rows of `context` symbols that are cut
         somewhere else in every epoch (`data/packed_rows.py`). With `memory`, XLNet's rows go on
         from batch to batch, and it remembers what stood before them.
Judged   The loss over the whole of what was held out, in nats per symbol; perplexity; bits per
         character and per byte, which can be compared between vocabularies.
A good run  `shakespeare-gpt` passes 1.47 nats per character; docs/results.md has the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from torch import nn

import heed
from heed.answers.continuation import Continuation, Decoding, Memory
from heed.answers.continuation_scores import LanguageScores, PredictedText
from heed.answers.documents import gathered
from heed.answers.form import Example
from heed.answers.worker import Worker
from heed.data.borrowed import Borrowed, Unchanging, load_unchanging, marks_of
from heed.data.kinds.text import RawText
from heed.data.packed_rows import PackedRows
from heed.data.raw_texts import DocumentReport, Texts, parted
from heed.data.sources import TextFiles, TextSources, each_file, told
from heed.data.tokenise import SPECIALS
from heed.data.verbatim import Kind, Verbatim
from heed.data.vocabularies import Vocabulary
from heed.errors import Refused
from heed.events import Progress, Work
from heed.models import recurrent_language, text_settings, xlnet_settings
from heed.models.recurrent_language import RecurrentLanguageSettings
from heed.models.text_settings import GPT2Settings
from heed.models.xlnet_settings import XLNetSettings
from heed.settings import Settings
from heed.storage.run_folder import RunFolder
from heed.tasks.task import (
    READ,
    Codec,
    Config,
    Evaluated,
    Exported,
    Prepared,
    Recipe,
    Start,
    Task,
    check_vocabulary,
    headline,
)

OPENING = 32  # symbols of an excerpt
TOGETHER = 100  # texts that are scored before the progress is told

Model = Annotated[
    RecurrentLanguageSettings | GPT2Settings | XLNetSettings, Field(discriminator="kind")
]
"""The settings of any model that goes on writing a text."""

BYTES = 256 + len(SPECIALS)


class TextTokens(Settings):
    """Settings of how text is cut into symbols."""

    kind: Kind = "character"
    size: int = Field(4096, ge=5, le=1_000_000, description="Symbols in the vocabulary, at most.")

    @model_validator(mode="after")
    def _room(self) -> TextTokens:
        if self.kind == "byte-bpe" and self.size < BYTES:
            raise ValueError(f"byte-bpe has {BYTES} symbols or more; got size={self.size}")
        return self


class Data(Settings):
    """Settings of the text and the part that is held out. Files are settings, or simply paths:
    text, or *.jsonl; or a list of either, which is read as one corpus."""

    folder: str = Field(".", description="Paths start here; a name is looked up in $HEED_DATA.")
    train: TextSources
    valid: TextSources | None = Field(None, description="None: the last part of the text.")
    test: TextSources | None = None
    held_out: float | None = Field(
        0.1, gt=0, lt=1, description="The share at the end of the text to judge by, without valid."
    )
    tokens: TextTokens = TextTokens()
    context: int = Field(256, ge=1, le=65536, description="Symbols in a row.")
    memory: int = Field(
        0,
        ge=0,
        le=65536,
        description="Symbols before a row that XLNet remembers; rows go on from batch to batch.",
    )

    @field_validator("held_out", mode="before")
    @classmethod
    def _one_share(cls, given: Any) -> Any:
        if isinstance(given, dict):
            raise ValueError("give one share, which the end of the text is: data.held_out=0.1")
        return given

    @model_validator(mode="after")
    def _once(self) -> Data:
        for part in ("train", "valid", "test"):
            found = getattr(self, part)
            sources = found if isinstance(found, tuple) else [found] if found else []
            paths = [path for source in sources for path in source.paths]
            if len(set(paths)) < len(paths):
                raise ValueError(f"{part} names a file twice")
        return self

    @model_validator(mode="after")
    def _judged_by_something(self) -> Data:
        if self.valid is None and self.held_out is None:
            raise ValueError(
                "data.valid is missing: text to validate the model while it trains; or hold some "
                "out: data.held_out=0.1"
            )
        return self


def build(settings: Model, *, symbols: int, context: int) -> nn.Module:
    """The network of the settings, for a vocabulary and for rows of `context` symbols."""
    if isinstance(settings, RecurrentLanguageSettings):
        return recurrent_language.build(settings, symbols=symbols)
    known = fitted(settings, symbols=symbols, context=context)
    if isinstance(known, XLNetSettings):
        return xlnet_settings.build(known)
    return text_settings.build(known)


def fitted(
    settings: GPT2Settings | XLNetSettings, *, symbols: int, context: int
) -> GPT2Settings | XLNetSettings:
    """Settings that know the vocabulary; refused where the text does not fit them.

    XLNet reads from left to right here, whatever its settings say, and has a head that writes.
    """
    xlnet = isinstance(settings, XLNetSettings)
    if settings.head != "language" and not (xlnet and settings.head == "none"):
        raise Refused(f"a language model has the head 'language', not '{settings.head}'")
    if settings.symbols is not None and settings.symbols < symbols:
        raise Refused(
            f"model.symbols={settings.symbols}, but the vocabulary has {symbols}; leave it out"
        )
    rows = max(symbols, settings.symbols or 0)
    if xlnet:
        if settings.options.get("segments") not in (None, False, "optional"):
            raise Refused("one text has no segments to compare: leave model.options.segments out")
        ahead = {"symbols": rows, "head": "language", "direction": "left-to-right"}
        return settings.model_copy(update=ahead)
    if context > settings.longest:
        raise Refused(
            f"data.context={context} symbols exceed the model's positions: "
            f"set model.longest={context}"
        )
    return settings.model_copy(update={"symbols": rows})


def places(settings: Model) -> int | None:
    """The number of symbols that a model can see at once; None: any number."""
    return settings.longest if isinstance(settings, GPT2Settings) else None


class LanguageRecipe(Recipe):
    """One training run: task, data, model, training, decoding."""

    task: Literal["language-model"]
    data: Data
    model: Model
    decoding: Decoding = Decoding()

    @model_validator(mode="after")
    def _remembers(self) -> LanguageRecipe:
        if self.data.memory and self.model.kind != "xlnet":
            raise ValueError(f"data.memory needs an xlnet; the model is {self.model.kind}")
        if self.data.memory and self.training.capture:
            raise ValueError("data.memory changes with each batch: set training.capture=false")
        return self


class LanguageConfig(Config):
    """config.json of a run that generates text."""

    task: Literal["language-model"]
    model: Model
    symbols: int = Field(ge=4, le=2_000_000)
    context: int = Field(ge=1, le=65536)
    memory: int = Field(0, ge=0, le=65536, description="Symbols that are remembered before a row.")
    decoding: Decoding

    def build(self) -> nn.Module:
        """The network, its weights drawn at random."""
        return build(self.model, symbols=self.symbols, context=self.context)


def texts(data: Data, root: Path) -> dict[str, Texts]:
    """The text of each part: train, valid, and test if there is one. Without files to validate by,
    the end of the last training file is held out."""
    folder = root / data.folder
    parts = {part: getattr(data, part) for part in ("train", "valid", "test")}
    files = {part: each_file(some, folder) for part, some in parts.items() if some is not None}
    found = {part: Texts(some) for part, some in files.items()}
    if "valid" not in found:
        assert data.held_out is not None  # or there is text to validate by
        found["train"], found["valid"] = parted(files["train"], data.held_out)
    return found


class LanguageModelling(Task[LanguageRecipe, LanguageConfig]):
    """The task of language modelling, for running."""

    name = "language-model"
    about = headline(sys.modules[__name__])
    recipe, config, form = LanguageRecipe, LanguageConfig, Continuation
    examples_are = "text"
    continues = True
    few, sampled, watched = 2, 1, 8
    scoring = ("out", "overlap")
    adopts = (("gpt2", "language"), ("xlnet", "language"))

    def draft(self, recipe: LanguageRecipe) -> None:
        """Build the network; the vocabulary does not matter."""
        symbols = getattr(recipe.model, "symbols", None) or 8
        build(recipe.model, symbols=symbols, context=recipe.data.context)

    def exchanged(self, model: Mapping[str, Any], name: str) -> dict[str, Any]:
        """The model with another mechanism in every layer."""
        if model.get("kind") == "recurrent-language":
            raise Refused("a recurrent language model has no attention to replace")
        return {**model, "attention": name}

    # Text

    def report(self) -> DocumentReport:
        """A count of documents and characters."""
        return DocumentReport()

    def examples(
        self, data: Data, part: str, root: Path, report: Any, codec: Codec | None = None
    ) -> Iterator[Example]:
        """The text of a part, piece by piece; with a codec, unknown symbols of what is not trained
        on are counted. The answer says whether a document ended before a piece."""
        judged = codec if part != "train" else None
        for n, (text, opens) in enumerate(texts(data, root)[part].pieces(report)):
            if judged is not None:
                (row,) = judged.inputs["text"].whole([text])
                report.unknown += row.count(judged.form.marks.unknown)
            yield Example((text,), opens and n > 0)

    def rows(self, codec: Codec, examples: Sequence[Example]) -> dict[str, list[Any]]:
        """One stream, with the end symbol between documents."""
        columns, end = codec.rows(examples), codec.form.marks.end
        both = zip(columns["text"], examples, strict=True)
        return {**columns, "text": [[end, *row] if each.answer else row for row, each in both]}

    def joined(self, examples: Iterator[Example]) -> Iterator[Example]:
        """Whole documents."""
        return (Example(("".join(pieces),), True) for pieces in gathered(examples))

    def excerpts(self, codec: Codec, examples: Iterable[Example], count: int) -> list[Example]:
        """The openings of documents; of few documents, more of each."""
        kind, found = codec.inputs["text"], list[Example]()
        for (text, *_), *_ in examples:
            more = count - len(found)
            (row,) = kind.whole([text[: 8 * OPENING * more]])
            cuts = (row[i : i + OPENING] for i in range(0, len(row), OPENING))
            found += (Example((kind.pieces.decode(cut),), True) for cut in islice(cuts, more))
            if len(found) == count:
                break
        return found

    def fit(
        self, recipe: LanguageRecipe, folder: RunFolder, root: Path, start: Start | None
    ) -> Work[Codec]:
        """A vocabulary learnt from the training text."""
        data, tokens = recipe.data, recipe.data.tokens
        pieces: Unchanging
        if start is None:
            yield Progress(f"learning {tokens.kind} tokens", 0)
            every = (piece.text for piece in texts(data, root)["train"].pieces())
            pieces = Verbatim.train(tokens.kind, every, tokens.size)
        elif isinstance(start.tokeniser, Vocabulary):
            pieces = Borrowed(start.tokeniser, str(start.path))
        elif isinstance(start.tokeniser, Verbatim | Borrowed):
            pieces = start.tokeniser
        else:
            raise Refused(f"{start.path} has no tokeniser that keeps text unchanged")
        pieces.save(folder.tokenizer)
        return _codec(pieces, recipe.model, data.context, data.memory)

    def noted(self, recipe: LanguageRecipe, prepared: Prepared) -> Iterator[str]:
        """Report the number of symbols."""
        count, size = len(prepared.train.tokens["text"]), prepared.codec.inputs["text"].size
        yield f"training text: {count:,} symbols, of a vocabulary of {size:,}"

    def describe(self, recipe: LanguageRecipe, prepared: Prepared) -> LanguageConfig:
        """config.json."""
        memory = recipe.data.memory
        kept = {"memory": memory} if memory else {}
        return LanguageConfig(
            heed=heed.__version__,
            task=recipe.task,
            model=recipe.model.model_copy(update=kept),
            symbols=prepared.codec.inputs["text"].size,
            context=recipe.data.context,
            memory=memory,
            decoding=recipe.decoding,
        )

    def codec(self, folder: RunFolder, config: LanguageConfig) -> Codec:
        """The tokeniser."""
        pieces = load_unchanging(folder.plain(folder.tokenizer), config.symbols)
        check_vocabulary(folder, pieces.size, config.symbols)
        return _codec(pieces, config.model, config.context, config.memory)

    def batches(
        self, recipe: LanguageRecipe, prepared: Prepared, *, shard: tuple[int, int], fixed: bool
    ) -> PackedRows:
        """Rows of `context` symbols, cut at other places in every epoch."""
        kind = prepared.codec.inputs["text"]
        if not any(len(row) > 1 for each in prepared.valid for row in kind.whole(each.inputs)):
            raise Refused(
                "the validation text has fewer than two symbols, so there is nothing to predict: "
                "hold more out, by data.held_out, or name a longer data.valid"
            )
        return PackedRows(
            prepared.train.tokens["text"],
            length=recipe.data.context,
            rows=prepared.codec.form.lanes(recipe.training),
            seed=recipe.seed,
            onward=recipe.data.memory > 0,
            shard=shard,
            fixed=fixed,
        )

    def suits(self, settings: Any) -> bool:
        """An XLNet that reads both ways was made to fill in words."""
        return getattr(settings, "direction", None) != "both"

    def adopt(self, found: Any, words: Vocabulary, path: Path) -> tuple[Config, Codec]:
        """The config and the codec of a GPT-2 or an XLNet."""
        pieces, model = Borrowed(words, str(path)), found.settings
        config = LanguageConfig(
            heed=heed.__version__,
            task="language-model",
            model=model,
            symbols=model.rows,
            context=places(model) or READ,
            decoding=Decoding(),
        )
        return config, _codec(pieces, model, config.context, config.memory)

    def exported(self, config: LanguageConfig) -> Exported | None:
        """A GPT-2 or an XLNet."""
        if isinstance(config.model, RecurrentLanguageSettings):
            return None
        return Exported(fitted(config.model, symbols=config.symbols, context=config.context))

    # Judging and answering

    def evaluated(
        self,
        worker: Worker,
        examples: Sequence[Example | None],
        config: LanguageConfig,
        options: Mapping[str, Any],
        stage: str,
    ) -> Work[Evaluated]:
        """Read texts and score how well they are predicted; a text of one symbol has no loss."""
        overlap, there = options.get("overlap", 0), [each for each in examples if each is not None]
        found: list[PredictedText] = []
        while some := there[len(found) : len(found) + TOGETHER]:
            found += worker.read(some, overlap=overlap)
            yield Progress(stage, len(found), len(there))
        if not any(each.count for each in found):
            raise Refused("no text has two or more symbols: there is nothing to predict")
        scores = LanguageScores.of(found, context=worker.form.context, overlap=overlap)
        return Evaluated(scores, [f"{each.loss:.6f}" if each.count else "" for each in found])

    def given(
        self,
        config: LanguageConfig,
        codec: Codec,
        paths: Sequence[Path],
        options: Mapping[str, Any],
    ) -> Work[list[Any]]:
        """The documents of files."""
        pieces = Texts(each_file(told(TextFiles)(list(paths)))).pieces()
        yield from ()
        return list(self.joined(Example((text,), opens) for text, opens in pieces))

    def evaluate_options(self) -> Sequence[str]:
        """The option of how windows overlap; nothing is written."""
        return self.scoring

    def of_kept(self, options: Mapping[str, Any]) -> None:
        """Windows may overlap in any text."""


TASK = LanguageModelling()


def _codec(pieces: Unchanging, model: Model, context: int, memory: int) -> Codec:
    """The codec of a model that is trained on rows of `context` symbols."""
    kept = None
    if memory:
        assert isinstance(model, XLNetSettings)
        kept = Memory(memory, model.sizes.layers, model.sizes.width)
    form = Continuation(marks_of(pieces), context=context, places=places(model), memory=kept)
    return Codec({"text": RawText(pieces)}, form)
