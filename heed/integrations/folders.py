"""Folders of pretrained models that heed has no model for, looked into through transformers.

    subject = Foreign(Path("models/llama"), torch.device("cpu"))
    (seen,) = subject.passes(["a text"])   every layer and head, and every call

A folder may come from anybody; `opening.py` guards against what it may hold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heed.errors import Refused
from heed.integrations import huggingface
from heed.integrations.opening import clearly, described, model_of, quiet, tokeniser_of
from heed.viewing.atlas import Kind, Take
from heed.viewing.looking import Look
from heed.viewing.pieces import labels
from heed.viewing.taking import layers, summary
from heed.watching.walk import follow, listen
from heed.watching.walked import Asked, Walk
from heed.watching.watch import attentions, watch

LIMIT = 2**32  # bytes of maps that are kept
LONGEST = 200  # symbols that are written at most
UNLIMITED = 10**6  # from so many places on a tokeniser means that there is no limit
MASKED = re.compile(r"\[MASK\]|<mask>")
SPACED = re.compile(r"[▁Ġ]\w")  # a piece with a space before it, as most vocabularies mark it
CROSS = re.compile(r"cross|encoder_attn|enc_?dec", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Read:
    """A text as a model reads it, and the words of its attentions.

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
        """The words of an attention's queries, and those of its keys; None: the same."""
        if not self.target or (kind := _part(path)) == "encoder":
            return self.source, None
        return self.target, self.source if kind == "cross" else self.before


def _part(path: str) -> str:
    """The kind of an encoder-decoder's attention, by its path."""
    if "decoder" not in path.split("."):
        return "encoder"
    return "cross" if CROSS.search(path.rpartition(".")[2]) else "decoder"


@dataclass(frozen=True, slots=True)
class Heard:
    """A text that was read once: what is drawn of it, and the calls of every attention."""

    look: Look
    calls: Mapping[str, Sequence[Asked]]
    read: Read
    chosen: int = -1
    missing: str = "this model has no attention to walk through"

    @property
    def first(self) -> int:
        """The query to begin with: where nothing is written, the last, which has seen all words."""
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
        with quiet():
            self.config, self.head = described(path)
            self.tokeniser = tokeniser_of(path)
            self.model: Any = model_of(path, self.config, self.head, device)
            huggingface.enable(self.model)
            pieces = self.tokeniser.get_vocab()
        self.spaced = any(map(SPACED.match, pieces))

    def passes(self, texts: Sequence[str], given: Sequence[Look] = ()) -> list[Heard]:
        """Records of every attention over texts; an answer in `given` is read, not written."""
        if not texts:
            raise Refused(f"{self.path} is not a run and has no text of its own; give one")
        others = [list(look.readings) for look in given] or [[]] * len(texts)
        return [self._pass(*both) for both in zip(texts, others, strict=True)]

    def _pass(self, text: str, others: Sequence[str]) -> Heard:
        read = self._read(text, others[0] if others else None)
        asked = summary(len(attentions(self.model)))
        with watch(self.model, statistics=asked, limit=LIMIT) as seen, listen(self.model) as heard:
            said = self._call(read)
        answer = read.text or self._answer(said, read)
        records = {path: each[0] for path, each in seen.items() if len(each)}
        kinds: dict[str, Kind] = {
            path: "cross" if read.target and _part(path) == "cross" else "self" for path in records
        }
        found = list(layers(records, read.words, kinds=kinds).values())
        take = Take("", found, written=bool(read.target))
        named = "predicted next symbol" if self.head == "causal" else ""
        facts = [("Text", text)]
        facts += [(named.capitalize() or "Answer", answer)] if answer else []
        readings = [read.text] if read.text else []
        look = Look(
            text,
            answer,
            [take],
            facts=facts,
            remark=read.remark,
            readings=readings,
            named=named,
        )
        calls = {path: some for path, some in heard.items() if some}
        crossing = [n for n, path in enumerate(calls) if read.target and _part(path) == "cross"]
        return Heard(look, calls, read, crossing[-1] if crossing else -1)

    @torch.inference_mode()
    def _call(self, read: Read) -> Any:
        more: dict[str, Any] = {"logits_to_keep": 1} if self.head == "causal" else {}
        with clearly(self.path):
            try:
                return self.model(**read.given, **more)
            except TypeError:  # an older model that gives all logits
                return self.model(**read.given)

    def _read(self, text: str, written: str | None = None) -> Read:
        """A text as numbers, no longer than there are places."""
        mask = self.tokeniser.mask_token
        text = MASKED.sub(str(mask), text) if mask else text
        with clearly(self.path):
            coded = self.tokeniser(text, return_tensors="pt")
        ids: Tensor = coded["input_ids"]
        size = self.model.get_input_embeddings().weight.shape[0]
        if not ids.numel():
            raise Refused("there is nothing to show: the text is blank")
        if int(ids.max()) >= size:
            raise Refused(f"{self.path}: its vocabulary has more symbols than the model's {size:,}")
        places, n = self._places(), ids.shape[1]
        remark = f"only {places:,} of {n:,} symbols are read: the model has no more positions"
        keep = slice(max(0, n - places), None) if self.head == "causal" else slice(0, places)
        ids = ids[:, keep].to(self.device)
        read = Read({"input_ids": ids}, self._words(ids), remark=remark if n > places else "")
        if self.head == "pair":
            return self._written(read, written)
        given: dict[str, Any] = {"input_ids": ids}
        if "token_type_ids" in coded:
            given["token_type_ids"] = coded["token_type_ids"][:, keep].to(self.device)
        given |= {"use_cache": False} if self.head == "causal" else {}
        return Read(given, read.source, remark=read.remark)

    @torch.inference_mode()
    def _written(self, read: Read, written: str | None) -> Read:
        """The text with the answer of an encoder-decoder, written greedily or given, to be read."""
        ids = read.given["input_ids"]
        start = self.model.config.decoder_start_token_id
        if written is None:
            most = min(LONGEST, 2 * ids.shape[1] + 20)
            with clearly(self.path), quiet():
                out = self.model.generate(
                    ids, do_sample=False, num_beams=1, max_new_tokens=most, use_cache=True
                )
        else:
            coded = self.tokeniser(text_target=written, return_tensors="pt")["input_ids"]
            out = torch.cat([torch.tensor([[start]]), coded], 1).to(self.device)
        words = self._words(out)
        text = str(self.tokeniser.decode(out[0], skip_special_tokens=True))
        silent = "" if text.strip() else "the model wrote no text, only special symbols"
        return Read(
            {"input_ids": ids, "decoder_input_ids": out[:, :-1], "use_cache": False},
            read.source,
            words[1:],
            words[:-1],
            text,
            " · ".join(filter(None, (read.remark, silent))),
        )

    def _places(self) -> int:
        """The number of symbols that can be read at once."""
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
        """A label for each number: the piece as it is written, or as the vocabulary has it where
        that is no whole letter."""
        numbers = ids[0].tolist()
        written = [self.tokeniser.decode([n]) for n in numbers]
        names = map(str, self.tokeniser.convert_ids_to_tokens(numbers))
        return labels([self._spelt(*both) for both in zip(names, written, strict=True)])

    def _spelt(self, name: str, written: str) -> str:
        """A piece with the space before it. `name` is as the vocabulary has it."""
        if not written.strip() or "\ufffd" in written:
            return name
        if self.spaced:
            return f" {written.strip()}" if name[0] in "▁Ġ" else written
        return name[2:] if name.startswith("##") else f" {written}"

    def _answer(self, said: Any, read: Read) -> str:
        """The model's answer to a text, in a few words."""
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
