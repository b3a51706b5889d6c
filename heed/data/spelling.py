"""How the pieces of Hugging Face's vocabularies stand in a text, with the spaces around them.

    WordPiece           stir  ##ring      " stir"  "ring"
    byte-level BPE      Ġcaf  Ã©          " caf"   "é"
    sentencepiece       ▁stir ring        " stir"  "ring"
    BPE by its ends     stir  ring</w>    "stir"   "ring "

heed's own tokenisers spell their pieces in the same way.
"""

from collections.abc import Callable

from tokenizers import Tokenizer, decoders, models

from heed.data.vocabulary import SPACE

BYTE_SPACE = "Ġ"
"""The space in the alphabet of bytes, in which every byte is one printable character."""


def spelling(tokenizer: Tokenizer) -> Callable[[str], str]:
    """The function from a piece to its text."""
    model = tokenizer.model
    if isinstance(model, models.WordLevel):
        return lambda piece: " " + piece.replace(SPACE, "")
    if prefix := getattr(model, "continuing_subword_prefix", None):
        return lambda piece: piece.removeprefix(prefix) if piece.startswith(prefix) else f" {piece}"
    if suffix := getattr(model, "end_of_word_suffix", None):
        return lambda piece: f"{piece.removesuffix(suffix)} " if piece.endswith(suffix) else piece
    # The alphabet of bytes has no "▁", but other vocabularies may have the letter "Ġ".
    if tokenizer.token_to_id(BYTE_SPACE) is not None and tokenizer.token_to_id(SPACE) is None:
        bytes_ = decoders.ByteLevel()
        return lambda piece: str(bytes_.decode([piece]))
    return lambda piece: piece.replace(SPACE, " ")
