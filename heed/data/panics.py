"""The panics of the tokenizers library, which are no Exception.

    with hushed():
        tokenizer = tried(lambda: Tokenizer.from_str(text), "tokenizer.json: not a tokeniser")

Rust writes of one to stderr, in three lines or in fifty, before Python hears of it. Since threads
share one stderr, `hushed` is for a single call, such as reading a file from an unknown source.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from shutil import copyfileobj
from threading import RLock
from typing import Any, TypeVar

from heed.errors import Refused

T = TypeVar("T")

STDERR = 2
_lock = RLock()  # there is one stderr for all threads

if hasattr(os, "register_at_fork"):  # a child begins with its parent's stderr, and may ask, too
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


def check_merges(model: Mapping[str, Any]) -> None:
    """Raise a ValueError if a merge would cut its second piece within a letter.

    The library takes off the prefix of pieces that continue a word, as many bytes as it has
    letters; its own error would name what is left, which is no text, and abort the program.
    """
    letters = len(model.get("continuing_subword_prefix") or "")
    for merge in model.get("merges") or () if letters else ():
        _, second = merge.split(" ") if isinstance(merge, str) else merge
        second.encode()[letters:].decode()


def tried(make: Callable[[], T], says: str) -> T:
    """Ask the library; its failure becomes a refusal with the line given."""
    try:
        return make()
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException:  # a panic
        raise Refused(says) from None


@contextmanager
def hushed() -> Iterator[None]:
    """Hold back what is written to stderr until a call is over, and drop it if the call fails.

    What other threads write meanwhile is printed afterwards, or dropped with it.
    """
    with _lock:
        try:
            real = os.dup(STDERR)
        except OSError:  # it is closed: nobody hears
            yield
            return
        aside = _aside()
        os.dup2(aside, STDERR)
        try:
            yield
            if os.lseek(aside, 0, os.SEEK_END):
                _pass_on(aside, real)
        finally:
            os.dup2(real, STDERR)
            os.close(real)
            os.close(aside)


def _pass_on(aside: int, real: int) -> None:
    os.lseek(aside, 0, os.SEEK_SET)
    with (
        suppress(OSError),  # nobody hears any more
        open(aside, "rb", closefd=False) as kept,
        open(real, "wb", closefd=False) as stderr,
    ):
        copyfileobj(kept, stderr)


def _aside() -> int:
    """A file without a name, or nothing where there are none."""
    with suppress(AttributeError, OSError):  # Linux alone has them, and not in every container
        return os.memfd_create("stderr")
    return os.open(os.devnull, os.O_RDWR)
