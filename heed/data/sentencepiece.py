"""A sentencepiece model file, read without its library: pieces, scores and the normaliser's table.

The file is a protocol buffer: fields one after the other, each a key (number and wire type) and a
value. Four of its fields say how text is cut; the others say how it was trained, and are skipped.

    message ModelProto {
      repeated SentencePiece pieces = 1;      { string piece = 1; float score = 2; Type type = 3; }
      TrainerSpec trainer_spec = 2;           { ModelType model_type = 3; int32 unk_id = 40; }
      NormalizerSpec normalizer_spec = 3;     { bytes precompiled_charsmap = 2; }
    }
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import NamedTuple

from heed.errors import Refused

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
UNIGRAM = 1

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # the wire types


class Piece(NamedTuple):
    """A piece of the vocabulary; its number is its place in the file."""

    text: str
    score: float
    kind: int


class SentencePieces(NamedTuple):
    """What a model file says of how text is cut."""

    pieces: list[Piece]
    unknown: int  # the number of the piece for what is not known
    charsmap: bytes  # a compiled table of what is normalised to what; may be empty


def parse(data: bytes, where: str, limit: int) -> SentencePieces:
    """A unigram model of at most `limit` pieces; anything else is refused."""
    pieces: list[Piece] = []
    unknown, model, charsmap = 0, UNIGRAM, b""
    try:
        for number, value in _fields(data):
            if number == 1:
                pieces.append(_piece(_bytes(value)))
                if len(pieces) > limit:
                    raise Refused(f"{where} has more than the {limit:,} pieces of the model")
            elif number == 2:
                trained = dict(_fields(_bytes(value)))
                model, unknown = _number(trained.get(3, UNIGRAM)), _number(trained.get(40, 0))
            elif number == 3:
                charsmap = bytes(_bytes(dict(_fields(_bytes(value))).get(2, b"")))
    except Refused:
        raise
    except (ValueError, IndexError, struct.error):
        raise Refused(f"{where} is not a sentencepiece model, or is incomplete") from None
    if not pieces:
        raise Refused(f"{where} is not a sentencepiece model: it has no pieces")
    texts = {piece.text: i for i, piece in enumerate(pieces)}
    twice = next((piece.text for i, piece in enumerate(pieces) if texts[piece.text] != i), None)
    if twice is not None:
        raise Refused(f"{where}: the piece {twice!r} occurs twice")
    if model != UNIGRAM:
        raise Refused(f"{where}: only sentencepiece models of the kind unigram can be read")
    try:
        growth(charsmap)
    except ValueError:
        raise Refused(f"{where}: the table of its normaliser is broken") from None
    if not 0 <= unknown < len(pieces):
        raise Refused(f"{where}: the unknown piece is not among its {len(pieces):,}")
    return SentencePieces(pieces, unknown, charsmap)


def growth(charsmap: bytes) -> int:
    """Times that a normaliser's table may lengthen a text at most; ValueError: it is none.

    It is the size of a double array, the array, and the texts that this leads to, each up to a nul.
    """
    if not charsmap:
        return 1
    size = int.from_bytes(charsmap[:4], "little")
    if size % 4 or not 4 <= size <= len(charsmap) - 4:
        raise ValueError
    return max(1, *map(len, charsmap[4 + size :].decode().split("\0")))


def _piece(data: bytes | memoryview) -> Piece:
    fields = dict(_fields(data))
    raw = fields.get(2, b"\0\0\0\0")
    (score,) = struct.unpack("<f", _bytes(raw))
    if not math.isfinite(score):
        raise ValueError
    text = str(_bytes(fields.get(1, b"")), "utf-8")
    return Piece(text, score, _number(fields.get(3, NORMAL)))


def _number(value: int | bytes | memoryview) -> int:
    if not isinstance(value, int):
        raise ValueError  # a text where a number should be
    return value


def _bytes(value: int | bytes | memoryview) -> bytes | memoryview:
    if isinstance(value, int):
        raise ValueError  # a number where a text or a table should be
    return value


def _fields(data: bytes | memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field; a length that leads beyond the end is a ValueError."""
    view, at = memoryview(data), 0
    while at < len(view):
        key, at = _varint(view, at)
        wire = key & 7
        if wire == VARINT:
            value, at = _varint(view, at)
            yield key >> 3, value
            continue
        if wire == BYTES:
            length, at = _varint(view, at)
        elif wire in (FIXED32, FIXED64):
            length = 4 if wire == FIXED32 else 8
        else:
            raise ValueError
        if length > len(view) - at:
            raise ValueError
        yield key >> 3, view[at : at + length]
        at += length


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """Seven bits a byte, the lowest first; ten bytes at most."""
    value = 0
    for i in range(10):
        byte = view[at + i]
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    raise ValueError
