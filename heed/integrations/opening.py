"""A stranger's folder, opened by transformers with care.

Its model is one of those that transformers itself brings: no code of the folder is ever run,
nothing is fetched, weights are safetensors, and what the configuration describes is compared with
them before anything is allocated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from heed.errors import HeedError, Refused

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
"""The heads of models: transformers' table of their names, and the class that opens a folder."""

LARGEST = 2**24  # the most bytes of a file of JSON
DEEPEST = 1000  # the most layers
WIDEST = 2**27  # the largest of all other numbers
POINTER = b"version https://git-lfs"


def described(path: Path) -> tuple[Any, str]:
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
    with clearly(path):
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    return config, head


def _names(found: Any) -> tuple[str, ...]:
    return (found,) if isinstance(found, str) else tuple(found or ())


def _plain(path: Path, raw: Mapping[str, Any]) -> None:
    """Refuse what would lead out of the folder, or to sizes that nothing has."""
    roots = [path.resolve()]
    if path.resolve().parent.name == "snapshots":  # a cache of huggingface_hub
        roots.append(path.resolve().parent.parent / "blobs")
    for file in path.iterdir():
        if file.is_symlink() and not any(file.resolve().is_relative_to(root) for root in roots):
            raise Refused(f"{file} leads outside its folder")
    if (path / "adapter_config.json").exists():
        raise Refused(f"{path} has an adapter_config.json: merge the adapter into its model first")
    if raw.get("quantization_config"):
        raise Refused(f"{path} holds quantised weights, which heed cannot open")
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
        raise Refused(f"{path / name} is not a table")
    return raw


def tokeniser_of(path: Path) -> Any:
    """The tokeniser of a folder."""
    from transformers import AutoTokenizer

    with clearly(path):
        return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)


def model_of(path: Path, config: Any, head: str, device: torch.device) -> Any:
    """The network of a folder; its weights are checked to be there before any is allocated."""
    import transformers

    opener = getattr(transformers, HEADS[head][1])
    with clearly(path):
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
    """The size of each tensor in the folder's safetensors files."""
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
            raise Refused(f"{file} is not a safetensors file, or is incomplete: {error}") from error


@contextmanager
def clearly(path: Path) -> Iterator[None]:
    """Turn any error of transformers about a folder into a refusal of one line."""
    try:
        yield
    except (HeedError, MemoryError):
        raise
    except Exception as error:  # a stranger's folder can lead anywhere inside transformers
        said = " ".join(str(error).split())
        raise Refused(f"{path}: transformers cannot use it: {said[:300]}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the progress bars and warnings of transformers."""
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
        if bars:
            logging.enable_progress_bar()
