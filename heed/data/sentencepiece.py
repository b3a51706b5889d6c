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
from typing import Any, NamedTuple

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
    """The pieces of a model file, and how its texts are normalised.

    unknown   the number of the piece for unknown text
    charsmap  a compiled table of what is normalised to what; may be empty
    """

    pieces: list[Piece]
    unknown: int
    charsmap: bytes


def parse(data: bytes, where: str) -> SentencePieces:
    """The content of a unigram model; anything else is refused."""
    pieces: list[Piece] = []
    trained: dict[int, Any] = {}
    charsmap = b""
    try:
        for number, value in _fields(data):
            if number == 1:
                pieces.append(_piece(value))
            elif number == 2:
                trained = dict(_fields(value))
            elif number == 3:
                charsmap = b"" + dict(_fields(value)).get(2, b"")
        growth(charsmap)
        kind, unknown = trained.get(3, UNIGRAM), trained.get(40, 0)
        known = 0 <= unknown < len(pieces)
    except (TypeError, ValueError, IndexError, struct.error):
        raise Refused(f"{where} is not a sentencepiece model, or is incomplete") from None
    if kind != UNIGRAM:
        raise Refused(f"{where}: only sentencepiece models of the kind unigram can be read")
    if not known:
        raise Refused(f"{where}: the unknown piece is not among its {len(pieces):,}")
    if len({piece.text for piece in pieces}) < len(pieces):
        raise Refused(f"{where}: a piece occurs twice")
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


def _piece(data: Any) -> Piece:
    fields = dict(_fields(data))
    (score,) = struct.unpack("<f", fields.get(2, b"\0\0\0\0"))
    if not math.isfinite(score):
        raise ValueError
    return Piece(str(fields.get(1, b""), "utf-8"), score, fields.get(3, NORMAL))


def _fields(data: Any) -> Iterator[tuple[int, Any]]:
    """Number and value of each field: a number or bytes.

    A length that leads beyond the end is a ValueError; a number in place of bytes, a TypeError.
    """
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
