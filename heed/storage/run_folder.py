"""The folder of a run: everything that one training leaves behind, and nothing else is needed.

    config.json  model.safetensors  tokenizer.json      what Hugging Face users expect
    recipe.yaml                                         all settings, resolved
    frequencies.json                                    of pre-training: how often each symbol is
    metrics.jsonl  events.*                             scores over time (see journal.py)
    samples/  examples/                                 what it said and where it looked; the inputs
    checkpoints/step-N/                                 to resume from (see checkpoint.py)
    cache/                                              the data, tokenised
    manifest.json                                       size and SHA-256 of what heed reads again

Files are replaced at once or not at all. Only what lies in the folder is read: a link that leads
out of it is refused, so that a run from a stranger can be opened.

The manifest is written before config.json, which makes the folder a run, and it is checked whenever
a run is opened. It leaves out the diary (metrics, events, samples), which grows at every moment,
and the checkpoints, which have manifests of their own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from torch import Tensor

from heed.errors import Refused
from heed.storage import atomic, checkpoint, durable, manifest, tensors
from heed.storage.durable import LIMIT, Damaged
from heed.storage.manifest import MANIFEST

__all__ = ["Damaged", "RunFolder"]

LOCK = ".heed.lock"
FILES = {
    "config": "config.json",
    "recipe": "recipe.yaml",
    "tokenizer": "tokenizer.json",
    "target_tokenizer": "target_tokenizer.json",
    "frequencies": "frequencies.json",
    "scores": "scores.json",
    "model": "model.safetensors",
    "metrics": "metrics.jsonl",
    "examples": "examples",
    "samples": "samples",
    "checkpoints": "checkpoints",
    "cache": "cache",
}
# What a start removes, the config first: whatever a kill then leaves behind is no run.
WRITTEN = (*FILES.values(), MANIFEST, "events.*")
SEALED = re.compile(
    r"((config|tokenizer|target_tokenizer|frequencies|scores)\.json|recipe\.yaml"
    r"|model\.safetensors|examples/[^/]+\.jsonl|cache/[^/]+\.(json|tokens|offsets))"
)
"""The files that the manifest covers: all that heed reads again."""
CACHE = f"{FILES['cache']}/"
CURE = "; put it back as it was, or train the run again: --overwrite"


class RunFolder:
    """A run's folder: the path of each thing, atomic writing, careful reading.

    `RunFolder.create(path)` is for a new run, `RunFolder.open(path)` for an existing one.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.former: Path | None = None  # where the run is now that `create` has replaced
        self._made: list[Path] | None = None  # the folders that `create` made, inner first

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, overwrite: bool = False) -> RunFolder:
        """Make the folder of a new run; one that holds a run, or anything else, is refused.

        overwrite  rename a folder that holds a run to NAME.1, or the first number that is free

        A start that was killed before it wrote its config.json left no run, and can be repeated.
        """
        run = cls(path)
        try:
            str(run.path).encode()
        except UnicodeEncodeError:  # which TensorBoard and JSON cannot write down
            raise Refused(f"{run.path} is not UTF-8; name a new folder") from None
        run._made = durable.make_folder(run.path)
        ours = (run.path / LOCK).exists() or (run.config.exists() and run.recipe.exists())
        if os.listdir(run.path) and not ours:
            raise Refused(f"{run.path} holds other files and is not a run; name a new folder")
        if not overwrite:
            run.vacant()
        with run.lock():
            if not overwrite:
                run.vacant()
            if run._holds_run():
                run.former = run._rename()
            else:
                run._clear()  # what a start has left that was killed
        if run.former is not None:
            run._made = durable.make_folder(run.path)
        return run

    def _rename(self) -> Path:
        """Rename the folder to NAME.1, or the first number that is free; the new path."""
        if self.path.name in ("", ".."):
            raise Refused(f"{self.path} cannot be renamed from within; give the folder by its name")
        names = (self.path.with_name(f"{self.path.name}.{n}") for n in count(1))
        place = next(path for path in names if not os.path.lexists(path))
        try:
            os.rename(self.path, place)
        except OSError as error:
            raise Refused(f"{self.path} cannot be renamed to {place}: {error.strerror}") from error
        atomic.sync(place.parent)
        return place

    def _holds_run(self) -> bool:
        return any(path.exists() for path in (self.config, self.model, self.checkpoints))

    def withdraw(self) -> None:
        """Undo `create`, for a run that never began, while its lock is held: remove what the run
        has written, and the folders that were made for it unless they hold anything else."""
        if self._made is None:
            return
        self._clear()
        with suppress(OSError):
            if self._made and os.listdir(self.path) == [LOCK]:
                os.unlink(self.path / LOCK)
                for folder in self._made:
                    os.rmdir(folder)

    def vacant(self) -> None:
        """Refuse a folder that holds a run already."""
        if self._holds_run():
            raise Refused(
                f"{self.path} already holds a run; resume it: --resume, or start again: --overwrite"
            )

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, cache: bool = False) -> RunFolder:
        """Open the folder of an existing run; anything else is refused, and a damaged one.

        cache  for training: check the tokenised data too
        """
        run = cls(path)
        if not run.path.is_dir():
            raise Refused(f"there is no run {run.path}: no such folder")
        if not run.config.exists():
            raise Refused(f"{run.path} is not a run: it has no {run.config.name}")
        run.verify(cache=cache)
        return run

    def seal(self) -> None:
        """Write the manifest of what is there, before config.json makes the folder a run."""
        self._note({name: [durable.digest_of(self.inside(name))] for name in self._there()})

    def verify(self, *, cache: bool = False) -> None:
        """Refuse a run of which a file is not as the training wrote it, is missing, or was added.

        cache  also the tokenised data, which only a training reads
        """
        if not self._sealed():
            raise Damaged(f"{self.path} is not a whole run: it has no {MANIFEST}{CURE}")
        try:
            for name in sorted({*self._listed(), *self._there()}):
                if cache or not name.startswith(CACHE):
                    self._verify(name)
        except Damaged as error:
            raise Damaged(f"{error}{CURE}") from None

    def _verify(self, name: str) -> None:
        """Check a file; a training may replace it, and the manifest, in the middle of this."""
        states = self._listed().get(name, ())
        try:
            manifest.check(self.inside(name), states)
        except Damaged:
            if self._listed().get(name, ()) == states:
                raise
            self._verify(name)

    def _sealed(self) -> bool:
        return os.path.lexists(self.path / MANIFEST)

    def _listed(self) -> manifest.Files:
        return manifest.read(self.path, SEALED.fullmatch)

    def _there(self) -> Iterator[str]:
        """The names of the files that belong into the manifest."""
        for folder in (self.path, self.examples, self.cache):
            names = os.listdir(self.inside(folder)) if folder.is_dir() else []
            paths = ((folder / name).relative_to(self.path).as_posix() for name in names)
            yield from filter(SEALED.fullmatch, paths)

    def _note(self, files: manifest.Files) -> None:
        atomic.replace(self.inside(MANIFEST), [manifest.dump(files, self.path)])

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @property
    def config(self) -> Path:
        """The description of the model, as JSON."""
        return self.path / FILES["config"]

    @property
    def recipe(self) -> Path:
        """All settings of the training, resolved, as YAML."""
        return self.path / FILES["recipe"]

    @property
    def tokenizer(self) -> Path:
        """The tokeniser, in the format of `tokenizers`."""
        return self.path / FILES["tokenizer"]

    @property
    def target_tokenizer(self) -> Path:
        """The tokeniser of the target, where it has one of its own."""
        return self.path / FILES["target_tokenizer"]

    @property
    def frequencies(self) -> Path:
        """The counts of the symbols in the training text, as JSON, where a task judges by them."""
        return self.path / FILES["frequencies"]

    @property
    def scores(self) -> Path:
        """The scores of the finished model, as JSON."""
        return self.path / FILES["scores"]

    @property
    def model(self) -> Path:
        """The weights to use."""
        return self.path / FILES["model"]

    @property
    def metrics(self) -> Path:
        """Scores over time, JSON lines."""
        return self.path / FILES["metrics"]

    @property
    def examples(self) -> Path:
        """A folder: inputs to show and to judge when none are given."""
        return self.path / FILES["examples"]

    @property
    def samples(self) -> Path:
        """A folder: what the model said at each validation."""
        return self.path / FILES["samples"]

    @property
    def checkpoints(self) -> Path:
        """A folder: the checkpoints to resume from."""
        return self.path / FILES["checkpoints"]

    @property
    def cache(self) -> Path:
        """A folder: the data, tokenised."""
        return self.path / FILES["cache"]

    def inside(self, name: str | Path) -> Path:
        """The path of a name in the folder; what lies or leads outside is refused."""
        path = Path(name) if Path(name).is_relative_to(self.path) else self.path / name
        try:
            resolved = path.resolve()
        except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a NUL
            raise Refused(f"{path} is not a usable name: {error}") from error
        if not resolved.is_relative_to(self.path.resolve()):
            raise Refused(f"{path} leads outside the run's folder {self.path}")
        return path

    def plain(self, name: str | Path) -> Path:
        """The path of a plain file in the folder, for code that opens files without `durable`, and
        would follow a link or wait for a pipe: both are refused, as is a folder."""
        path = self.inside(name)
        durable.open_plain(path).close()
        return path

    def write_bytes(self, name: str | Path, data: bytes) -> Path:
        """Write a file atomically, and make the folder for it."""
        path = self.inside(name)
        durable.make_folder(path.parent)
        self._replace(path, [data])
        return path

    def _replace(self, path: Path, parts: Iterable[bytes | memoryview]) -> None:
        """Replace a file atomically, together with its entry in the manifest of a run.

        Until the new file is in place, the manifest has both its states, so that a kill at any
        moment leaves a run that can be opened.
        """
        name = path.relative_to(self.path).as_posix()
        if not (SEALED.fullmatch(name) and self._sealed()):
            atomic.replace(path, parts)
            return
        draft = atomic.aside(path)
        try:
            digest = durable.write(draft, parts)
            files = self._listed()
            self._note({**files, name: [*files.get(name, [None]), digest]})
            os.replace(draft, path)
        except BaseException:
            atomic.discard(draft)
            raise
        atomic.sync(path.parent)
        self._note({**files, name: [digest]})

    def write_text(self, name: str | Path, text: str) -> Path:
        """Write a file of text as UTF-8, atomically."""
        return self.write_bytes(name, text.encode())

    def write_json(self, name: str | Path, value: Any) -> Path:
        """Write a JSON file atomically."""
        return self.write_bytes(name, durable.dump_json(value, self.inside(name)))

    def write_sample(self, step: int, text: str, picture: str = "") -> None:
        """Write what the model said at a validation, and the SVG of where it looked, if any."""
        self.write_text(self.samples / f"step-{step:07d}.txt", text)
        if picture:
            self.write_text(self.samples / f"step-{step:07d}.svg", picture)

    def read_bytes(self, name: str | Path, limit: int = LIMIT) -> bytes:
        """Read all of a file of at most `limit` bytes."""
        return durable.read_bytes(self.inside(name), limit)

    def read_text(self, name: str | Path, limit: int = LIMIT) -> str:
        """Read a file of UTF-8 text of at most `limit` bytes."""
        try:
            return self.read_bytes(name, limit).decode()
        except UnicodeDecodeError as error:
            raise Damaged(f"{self.inside(name)} is not UTF-8: {error}") from error

    def read_json(self, name: str | Path, limit: int = LIMIT) -> Any:
        """The value in a JSON file of at most `limit` bytes."""
        return durable.read_json(self.inside(name), limit)

    def save_model(self, named: Mapping[str, Tensor]) -> Path:
        """Write model.safetensors atomically; tied tensors are written once."""
        self._replace(self.inside(self.model), tensors.parts(named))
        return self.model

    def load_model(self) -> dict[str, Tensor]:
        """The tensors of model.safetensors, in main memory."""
        return tensors.read(self.inside(self.model))

    def newest(self, say: Callable[[str], None]) -> Path | None:
        """The newest good checkpoint; each damaged one on the way is passed over with a line."""
        return checkpoint.newest(self.inside(self.checkpoints), say)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for writing, and tidy up what a killed run left half-written.

        The system releases the lock when the process ends, in whatever way.
        """
        import fcntl  # not on Windows, where runs can still be read

        file = os.open(self.inside(LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.pread(file, 32, 0).decode(errors="replace").strip()
                who = f"process {holder}" if holder.isdigit() else "another process"
                raise Refused(f"{self.path} is being written by {who}; wait or stop it") from error
            if not self._locks(file):
                raise Refused(f"{self.path} was removed or renamed by another process; try again")
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
            self._sweep()
            yield
        finally:
            os.close(file)

    def _locks(self, file: int) -> bool:
        """Whether an open lock is still that of the folder, and was not removed or renamed."""
        try:
            return os.path.samestat(os.fstat(file), os.lstat(self.inside(LOCK)))
        except OSError:
            return False

    def _sweep(self) -> None:
        durable.sweep(self.path)
        durable.sweep(self.inside(self.samples))
        checkpoint.sweep(self.inside(self.checkpoints))

    def _clear(self) -> None:
        """Remove what a run writes, and nothing else."""
        for path in self._written():
            durable.remove(path)

    def _written(self) -> list[Path]:
        return [path for pattern in WRITTEN for path in self.path.glob(pattern)]
