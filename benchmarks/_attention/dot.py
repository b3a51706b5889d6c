"""The plain dot product: no slower than PyTorch's own fused attention, whichever back end."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import heed
from _attention.cases import BOTH, FORWARD, Case, Inputs, Row, Work, barely_slower, leaf
from _attention.measuring import Effort

SIZES = {  # B H T D
    "cuda": ((4, 16, 4096, 128),),
    "cpu": ((4, 8, 256, 64), (1, 8, 1024, 64)),
    "tiny": ((1, 2, 9, 16),),
}
BACKENDS = {
    "cuda": {
        "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION,
        "SDPA flash": SDPBackend.FLASH_ATTENTION,
        "SDPA efficient": SDPBackend.EFFICIENT_ATTENTION,
    },
    "cpu": {"SDPA flash": SDPBackend.FLASH_ATTENTION},
}
SDPA = "SDPA"
ADDED = barely_slower(SDPA, 0.03, 5e-6)


def plain(inputs: Inputs, rows: Tensor | None, causal: bool = False) -> Tensor:
    """softmax(q·k / √D) v.    B H T D -> B H T D"""
    q, k, v = inputs.values()
    places = torch.arange(q.shape[2], device=q.device) if rows is None else rows
    q = q if rows is None else q[:, :, rows]
    energy = q @ k.mT * q.shape[-1] ** -0.5
    energy = energy.to(torch.promote_types(energy.dtype, torch.float32))
    if causal:
        ahead = torch.arange(k.shape[2], device=q.device) > places[:, None]
        energy = energy.masked_fill(ahead, -torch.inf)
    return energy.softmax(-1).to(v.dtype) @ v


def cases(device: str, tiny: bool) -> Iterator[Case]:
    """Unmasked and causal."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    for sizes in SIZES["tiny" if tiny else device]:
        for causal in (False, True):
            yield Case(
                " × ".join(map(str, sizes)) + (", causal" if causal else ""),
                partial(_work, sizes, device, dtype, causal),
                dtype,
                compiled=False,
                flexed=1,
                targets={FORWARD: (ADDED,), BOTH: (ADDED,)},
                backward=3.5,  # five products more, after two
            )


def _work(sizes: tuple[int, int, int, int], device: str, dtype: torch.dtype, causal: bool) -> Work:
    B, H, T, D = sizes
    q, k, v = (leaf(*sizes, device=device, dtype=dtype) for _ in range(3))
    visible = heed.causal() if causal else None

    def sdpa() -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=causal)

    def by(backend: SDPBackend) -> Callable[[], Tensor]:
        def call() -> Tensor:
            with sdpa_kernel(backend):
                return sdpa()

        return call

    rivals = {SDPA: sdpa} | {name: by(each) for name, each in BACKENDS[device].items()}
    if device == "cuda":
        rivals["FlexAttention"] = _flex(q, k, v, causal)
    return Work(
        {"q": q, "k": k, "v": v},
        lambda: heed.attend(q, k, v, visible=visible),
        partial(plain, causal=causal),
        rivals,
        Effort(
            products=4 * B * H * T * T * D * (0.5 if causal else 1),
            bytes=4 * q.numel() * q.element_size(),
        ),
    )


def _flex(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Callable[[], Tensor]:
    flex, T = torch.compile(flex_attention, dynamic=False), q.shape[2]
    mask = None
    if causal:
        mask = create_block_mask(lambda b, h, t, s: s <= t, None, None, T, T, device=q.device.type)
    return lambda: flex(q, k, v, block_mask=mask)


def small_calls(device: str) -> Iterator[Row]:
    """What heed adds to calls so short that Python itself counts; as overhead.py measures it."""
    from overhead import CASES, compare

    with torch.inference_mode():
        for shape in CASES:
            for causal in (False, True):
                found = compare(shape, causal, device)
                name = " × ".join(map(str, shape)) + (", causal" if causal else "")
                times = {
                    "heed": float(found["ours_us"]) / 1e6,
                    SDPA: float(found["theirs_us"]) / 1e6,
                }
                row = Row("dot", f"short call {name}", "fp32", FORWARD, "sdpa", times)
                row.targets = [(ADDED.said, ADDED.met(row))]
                yield row
