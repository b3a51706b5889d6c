"""A vocabulary that needs more than heed's own rules, as `transformers.AutoTokenizer` reads it.

It reads copies of the files that were checked, in a folder of their own, and of their settings only
those that name no file: nothing else is opened, and no code of the folder is run.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer

from heed.data import vocabulary_files
from heed.data.panics import hushed
from heed.data.vocabulary_files import PIECES, ROLES, Given
from heed.errors import Refused

SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")
PLAIN = ("_token", "_tokens", "added_tokens_decoder", "tokenizer_class")
"""The ends of the settings that may be a text, a list or a table."""


def ask(given: Given, named: str, why: str) -> tuple[Tokenizer, dict[str, int]]:
    """The tokeniser of a folder, and the numbers of the pieces that have a role.

    named  the class that cuts its texts, unless tokenizer_config.json names one
    why    what heed has no rules for
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise Refused(
            f"{given.where}: {why}; transformers has: pip install 'heed-attention[hf]', or, if "
            "its tokenizer.json is right as it is, name PreTrainedTokenizerFast as tokenizer_class"
        ) from None
    file = next(name for name in PIECES if name in given.files)
    pieces = vocabulary_files.made(given, file).get_vocab_size()
    with TemporaryDirectory(prefix="heed-") as place, hushed():
        for name in {**given.files, SETTINGS[0]: b""}:
            data = _plain(given, name, named) if name in SETTINGS else given.files[name]
            (Path(place) / name).write_bytes(data)
        try:
            found: Any = AutoTokenizer.from_pretrained(
                place, local_files_only=True, trust_remote_code=False
            )
            made = found.backend_tokenizer
            rules, size = made.to_str(), made.get_vocab_size()
            numbers = {role: getattr(found, f"{role}_token_id") for role in ROLES}
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # also a panic of the library below
            said = " ".join(str(error).split()).replace(place, given.where)[:200]
            raise Refused(f"{given.where}: {why}, nor can transformers read it: {said}") from None
    if size < pieces:  # some classes begin anew without a file of their own
        raise Refused(f"{given.where}: {why}, and transformers does not read {file} by them")
    tokenizer = vocabulary_files.whole(given._replace(files={"tokenizer.json": rules.encode()}))
    return tokenizer, {
        role: i for role, i in numbers.items() if i is not None and i < given.symbols
    }


def _plain(given: Given, name: str, named: str) -> bytes:
    """A file of settings without those that could name a file."""
    told = given.table(name)
    if name == SETTINGS[0] and not told.get("tokenizer_class"):
        told["tokenizer_class"] = named
    kept = {
        key: value
        for key, value in told.items()
        if key.endswith(PLAIN) or isinstance(value, bool | int | float | None)
    }
    return json.dumps(kept).encode()
