"""Folders of pretrained models that heed has no model for, looked into through transformers.

    subject = Foreign(Path("models/llama"), torch.device("cpu"))
    subject.looks(["a text"])         every layer and head, from fused attention
    subject.hear("a text")            every call, to be walked through

A folder may be anybody's. Its model is one of those that transformers itself brings: no code of the
folder is ever run, nothing is fetched, weights are safetensors, and what the configuration
describes is compared with them before anything is allocated.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heed.attention.walked import Asked, Walk
from heed.attention.walking import follow, listen
from heed.attention.watching import attentions, watch
from heed.errors import HeedError, Refused
from heed.integrations import huggingface
from heed.viewing.atlas import Kind, Take
from heed.viewing.looking import Look
from heed.viewing.taking import layers, summary
from heed.viewing.words import Said

HEADS = {
    "causal": ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "AutoModelForCausalLM"),
    "pair": ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "AutoModelForSeq2SeqLM"),
    "masked": ("MODEL_FOR_MASKED_LM_MAPPING_NAMES", "AutoModelForMaskedLM"),
    "label": (
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
        "AutoModelForSequenceClassification",
    ),
    "none": ("MODEL_MAPPING_NAMES", "AutoModel"),
}
"""What can be asked: transformers' table of names, and what opens a folder by it."""

LARGEST = 2**24  # bytes of a file of JSON
DEEPEST = 1000  # layers
WIDEST = 2**27  # of any other number
LIMIT = 2**32  # bytes of maps that are kept
LONGEST = 200  # symbols that are written at most
POINTER = b"version https://git-lfs"
UNLIMITED = 10**6  # places from which a tokeniser means that there is no limit
MASKED = re.compile(r"\[MASK\]|<mask>")
CROSS = re.compile(r"cross|encoder_attn|enc_?dec", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Read:
    """A text as a model is given it, and the words of its attentions.

    given   what the model is called with
    source  the words that an encoder, or the only stack, reads
    target  the words that were written, and those before each of them; empty without a decoder
    """

    given: Mapping[str, Any]
    source: Sequence[str]
    target: Sequence[str] = ()
    before: Sequence[str] = ()
    text: str = ""
    remark: str = ""

    def words(self, path: str) -> tuple[Sequence[str], Sequence[str] | None]:
        """Those that ask an attention, and those that are asked."""
        if not self.target or (kind := _part(path)) == "encoder":
            return self.source, None
        return self.target, self.source if kind == "cross" else self.before


def _part(path: str) -> str:
    """Which attention of an encoder-decoder it is, by its path."""
    if "decoder" not in path.split("."):
        return "encoder"
    return "cross" if CROSS.search(path.rpartition(".")[2]) else "decoder"


@dataclass(frozen=True, slots=True)
class Heard:
    """Every attention while a text is read."""

    calls: Mapping[str, Sequence[Asked]]
    read: Read
    chosen: int = -1

    @property
    def first(self) -> int:
        """Where nothing is written, the last word asks: it has seen all that there is to see."""
        return 0 if self.read.target else -1

    def words(self, path: str) -> Sequence[str]:
        return self.read.words(path)[0]

    def asked(self, path: str) -> Sequence[str]:
        queries, keys = self.read.words(path)
        return queries if keys is None else keys

    def walk(self, path: str, position: int, head: int) -> Walk:
        return follow(self.calls[path], position=position, head=head)


class Foreign:
    """A folder that transformers can open."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self.path, self.name, self.device = path, path.resolve().name, device
        with _quiet():
            self.config, self.head = _described(path)
            self.tokeniser = _tokeniser(path)
            self.model: Any = _model(path, self.config, self.head, device)
            huggingface.enable(self.model)

    def looks(self, texts: Sequence[str], given: Sequence[Look] = ()) -> list[Look]:
        """What every attention saw of texts. Of an answer that is given, it reads the words."""
        if not texts:
            raise Refused(f"{self.path} is no run and has no text of its own; give one")
        others = [list(look.readings) for look in given] or [[]] * len(texts)
        return [self._look(*both) for both in zip(texts, others, strict=True)]

    def hear(self, text: str) -> Heard:
        """Every call while a text is read."""
        read = self._read(text)
        with listen(self.model) as heard:
            self._call(read)
        calls = {path: some for path, some in heard.items() if some}
        crossing = [n for n, path in enumerate(calls) if read.target and _part(path) == "cross"]
        return Heard(calls, read, crossing[-1] if crossing else -1)

    def _look(self, text: str, others: Sequence[str]) -> Look:
        read = self._read(text, others[0] if others else None)
        asked = summary(len(attentions(self.model)))
        with watch(self.model, statistics=asked, limit=LIMIT) as seen:
            said = self._call(read)
        answer = read.text or self._answer(said, read)
        records = {path: each[0] for path, each in seen.items() if len(each)}
        kinds: dict[str, Kind] = {
            path: "cross" if read.target and _part(path) == "cross" else "self" for path in records
        }
        take = Take("", layers(records, read.words, kinds=kinds), written=bool(read.target))
        named = "likeliest next" if self.head == "causal" else ""
        facts = [("Text", text)]
        facts += [(named.capitalize() or "Answer", answer)] if answer else []
        readings = [read.text] if read.text else []
        return Look(
            text,
            answer,
            [take],
            lambda note: Said(facts, note=note),
            remark=read.remark,
            readings=readings,
            named=named,
        )

    @torch.inference_mode()
    def _call(self, read: Read) -> Any:
        more: dict[str, Any] = {"logits_to_keep": 1} if self.head == "causal" else {}
        with _clearly(self.path):
            try:
                return self.model(**read.given, **more)
            except TypeError:  # an older model that gives all logits
                return self.model(**read.given)

    def _read(self, text: str, written: str | None = None) -> Read:
        """A text as numbers, no longer than there are places."""
        mask = self.tokeniser.mask_token
        text = MASKED.sub(str(mask), text) if mask else text
        with _clearly(self.path):
            coded = self.tokeniser(text, return_tensors="pt")
        ids: Tensor = coded["input_ids"]
        size = self.model.get_input_embeddings().weight.shape[0]
        if not ids.numel():
            raise Refused("there is nothing to look at: the text is blank")
        if int(ids.max()) >= size:
            raise Refused(f"{self.path}: its vocabulary has more symbols than the model's {size:,}")
        places, n = self._places(), ids.shape[1]
        remark = f"only {places:,} of {n:,} symbols are read: there are no more places"
        keep = slice(max(0, n - places), None) if self.head == "causal" else slice(0, places)
        ids = ids[:, keep].to(self.device)
        read = Read({"input_ids": ids}, self._words(ids), remark=remark if n > places else "")
        if self.head == "pair":
            return self._written(read, written)
        given: dict[str, Any] = {"input_ids": ids}
        for name in ("token_type_ids",):
            if name in coded:
                given[name] = coded[name][:, keep].to(self.device)
        given |= {"use_cache": False} if self.head == "causal" else {}
        return Read(given, read.source, remark=read.remark)

    @torch.inference_mode()
    def _written(self, read: Read, written: str | None) -> Read:
        """The answer of an encoder-decoder, written greedily or given: it is read once more."""
        ids = read.given["input_ids"]
        start = self.model.config.decoder_start_token_id
        if written is None:
            most = min(LONGEST, 2 * ids.shape[1] + 20)
            with _clearly(self.path), _quiet():
                out = self.model.generate(
                    ids, do_sample=False, num_beams=1, max_new_tokens=most, use_cache=True
                )
        else:
            coded = self.tokeniser(text_target=written, return_tensors="pt")["input_ids"]
            out = torch.cat([torch.tensor([[start]]), coded], 1).to(self.device)
        words = self._words(out)
        text = str(self.tokeniser.decode(out[0], skip_special_tokens=True))
        silent = "" if text.strip() else "it wrote no text, only marks such as that of the end"
        return Read(
            {"input_ids": ids, "decoder_input_ids": out[:, :-1], "use_cache": False},
            read.source,
            words[1:],
            words[:-1],
            text,
            " · ".join(filter(None, (read.remark, silent))),
        )

    def _places(self) -> int:
        """How many symbols can be read at once."""
        config = self.model.config
        names = ("max_position_embeddings", "n_positions", "max_source_positions")
        told = [getattr(config, name, None) for name in names]
        found = [n for n in told if isinstance(n, int) and n > 0]
        limit = self.tokeniser.model_max_length
        found += [limit] if limit and limit < UNLIMITED else []
        if "roberta" in config.model_type:  # whose places begin after that of the padding
            found = [min(found) - int(config.pad_token_id or 0) - 1] if found else found
        return max(1, min(found, default=UNLIMITED))

    def _words(self, ids: Tensor) -> list[str]:
        """A word for each number: as it is written, or as the vocabulary has it where that is no
        whole letter."""
        numbers = ids[0].tolist()
        written = [self.tokeniser.decode([n]) for n in numbers]
        names = self.tokeniser.convert_ids_to_tokens(numbers)
        return [
            word if word.strip() and "\ufffd" not in word else str(name)
            for word, name in zip(written, names, strict=True)
        ]

    def _answer(self, said: Any, read: Read) -> str:
        """What the model makes of a text, in a few words."""
        if self.head == "causal":
            return str(self.tokeniser.decode(said.logits[0, -1].argmax().tolist()))
        if self.head == "label":
            number = int(said.logits[0].argmax())
            share = float(said.logits[0].float().softmax(-1)[number])
            names = getattr(self.model.config, "id2label", None) or {}
            return f"{names.get(number, number)} ({share:.2f})"
        if self.head == "masked":
            ids = read.given["input_ids"][0].clone()
            hidden = ids == self.tokeniser.mask_token_id
            ids[hidden] = said.logits[0][hidden].argmax(-1)
            return str(self.tokeniser.decode(ids, skip_special_tokens=True))
        return ""


def _described(path: Path) -> tuple[Any, str]:
    """The configuration of a folder, one of transformers' own, and what its head can be asked."""
    raw = _json(path, "config.json")
    kind = raw.get("model_type")
    try:
        from transformers import AutoConfig
        from transformers.models.auto import configuration_auto, modeling_auto
    except ImportError:
        raise Refused(
            f"{path} is a model of type '{str(kind)[:100]}', which heed opens through "
            "transformers: pip install 'heed-attention[hf]'"
        ) from None
    known = configuration_auto.CONFIG_MAPPING_NAMES
    if not isinstance(kind, str) or kind not in known:
        raise Refused(f"{path}: transformers has no model of type '{str(kind)[:100]}' of its own")
    _plain(path, raw)
    named = raw.get("architectures") or [None]
    name = named[0] if isinstance(named, list) else None
    tables = {head: getattr(modeling_auto, table).get(kind) for head, (table, _) in HEADS.items()}
    head = next((head for head, found in tables.items() if name and name in _names(found)), "none")
    if not tables[head]:
        raise Refused(f"{path}: transformers has no network of type '{kind}' that reads text")
    with _clearly(path):
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False), (
            head
        )


def _names(found: Any) -> tuple[str, ...]:
    return (found,) if isinstance(found, str) else tuple(found or ())


def _plain(path: Path, raw: Mapping[str, Any]) -> None:
    """Refuse what would lead out of the folder, or to sizes that nothing has."""
    roots = [path.resolve()]
    if path.resolve().parent.name == "snapshots":  # a cache of huggingface_hub
        roots.append(path.resolve().parent.parent / "blobs")
    for file in path.iterdir():
        if file.is_symlink() and not any(file.resolve().is_relative_to(root) for root in roots):
            raise Refused(f"{file} leads out of its folder")
    for name in ("adapter_config.json",):
        if (path / name).exists():
            raise Refused(f"{path} has an {name}: merge the adapter into its model first")
    if raw.get("quantization_config"):
        raise Refused(f"{path} holds quantised weights, which are not opened")
    for key, number in _numbers(raw):
        most = DEEPEST if "layer" in key else WIDEST
        if not -WIDEST <= number <= most:
            raise Refused(f"{path / 'config.json'}: {key[:100]} is {number:,}; {most:,} may be")


def _numbers(raw: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, int]]:
    for key, value in raw.items():
        if type(value) is int:
            yield f"{at}{key}", value
        elif isinstance(value, dict):
            yield from _numbers(value, f"{at}{key}.")


def _json(path: Path, name: str) -> dict[str, Any]:
    try:
        with (path / name).open("rb") as file:
            raw = json.loads(file.read(LARGEST))
    except (OSError, ValueError, RecursionError) as error:
        raise Refused(f"{path / name} cannot be read as JSON") from error
    if not isinstance(raw, dict):
        raise Refused(f"{path / name} is no table")
    return raw


def _tokeniser(path: Path) -> Any:
    from transformers import AutoTokenizer

    with _clearly(path):
        return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)


def _model(path: Path, config: Any, head: str, device: torch.device) -> Any:
    """The network, its weights seen to be there before any is allocated."""
    import transformers

    opener = getattr(transformers, HEADS[head][1])
    with _clearly(path):
        with torch.device("meta"):
            outline = opener.from_config(
                config, trust_remote_code=False, attn_implementation="eager"
            )
        wanted = sum(x.numel() for x in {id(x): x for x in outline.parameters()}.values())
        there = sum(_held(path))
        if wanted > there + there // 50:
            raise Refused(
                f"{path}: config.json describes {wanted:,} weights, and its safetensors files hold "
                f"{there:,}"
            )
        model, told = opener.from_pretrained(
            path,
            config=config,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            attn_implementation="eager",
            dtype=torch.float32 if device.type == "cpu" else "auto",
            output_loading_info=True,
        )
    if lacking := sorted(told["missing_keys"]):
        raise Refused(f"{path} lacks weights of its model, such as '{str(lacking[0])[:200]}'")
    return model.eval().to(device)


def _held(path: Path) -> Iterator[int]:
    """How many numbers each tensor of the folder's safetensors files has."""
    from safetensors import SafetensorError, safe_open

    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise Refused(f"{path} has no weights as safetensors")
    for file in files:
        with file.open("rb") as raw:
            if raw.read(len(POINTER)) == POINTER:
                raise Refused(f"{file} is a Git LFS pointer, not the file: run git lfs pull")
        try:
            with safe_open(file, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118 (it is no mapping)
                    yield math.prod(opened.get_slice(name).get_shape())
        except (SafetensorError, OSError) as error:
            raise Refused(f"{file} is no safetensors file, or was cut off: {error}") from error


@contextmanager
def _clearly(path: Path) -> Iterator[None]:
    """Whatever transformers makes of a folder that is not as it expects, in one line."""
    try:
        yield
    except HeedError:
        raise
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:  # a stranger's folder can lead anywhere inside transformers
        said = " ".join(str(error).split())
        raise Refused(f"{path}: transformers cannot use it: {said[:300]}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bars and warnings of transformers."""
    try:
        from transformers.utils import logging
    except ImportError:
        yield
        return
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        restore: Callable[[], None] = logging.enable_progress_bar if bars else lambda: None
        restore()
