"""Additive energies alone on a GPU, and the gradients of q, k and w from those of the energies.

Forward is the first half of the fused kernel, whose scratch is copied into the result; a few
queries have a kernel of their own, which reads each key once. Backward sums the gradients of the
energies, `slopes`, over keys and over queries, by one kernel compiled in two forms: with
c = 1 / (1 + e^{2q} e^{2k}) - 1/2, tanh = -2c and its derivative is 4 (1/4 - c²).

    dq_td = 4 w_d Σ_s slope_ts (1/4 - c²)      dw_d = -2 Σ_ts slope_ts c

Unlike before a softmax, no constant may be dropped: in float32 every form gives tanh itself.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from heed.kernels.additive import tuned
from heed.kernels.additive.device import ROWS, SHARED, bend, curve, power, tanh
from heed.kernels.additive.forward import Energies
from heed.kernels.additive.native import check_shapes
from heed.kernels.additive.plan import Plan
from heed.kernels.additive.scene import Scene, power_of_2
from heed.kernels.launching import at, launch
from heed.kernels.strides import dense

QUIET = tl.constexpr(0.5)
"""Below this |q| + |k| all of a block's c are so small that 1/2 must not be taken off them."""

BLOCK: int = ROWS.value
"""Rows of the other side that share a form of tanh."""

QUERY_SHARE, KEY_SHARE = 256, 512
"""Numbers of a gradient for each warp: with 128 registers to a thread none is spilled. (By what
ptxas says of sm_90, not by time.)"""

FEW = 16
"""Up to this many queries, most of a tile of 64 would be empty."""


def energies(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    """w·tanh(q + k), float32.    B H T D, B G S D, H D -> B H T S"""
    check_shapes(q, k, w)
    (B, H, T, D), S = q.shape, k.shape[2]
    whole = q.new_empty(B, H, T, S, dtype=torch.float32)
    if not whole.numel() or not D:
        return whole.zero_()
    q, k = dense(q), dense(k)
    scene = Scene(q, k, k, w, Plan(), 0.0, None)
    return _by_row(scene, whole) if T <= FEW else _by_tile(scene, q, k, whole)


def _by_tile(scene: Scene, q: Tensor, k: Tensor, whole: Tensor) -> Tensor:
    """The energies, a stretch of queries at a time, without its padding."""
    _, H, T, S = whole.shape
    made = Energies(scene, q)
    assert made.energies is not None
    scratch = made.energies.shown()[: made.sliced * made.size].view(made.sliced, made.size)
    for part in made:
        batch, start = slice(part.b0, part.b0 + part.rows), part.block0 * BLOCK
        queries = slice(start, min(T, start + part.blocks * BLOCK))
        shape = (part.rows, H, part.blocks * BLOCK, scene.blocks_s * BLOCK)
        found = scratch[:, : shape[0] * shape[1] * shape[2] * shape[3]].view(made.sliced, *shape)
        found = found[..., : queries.stop - start, :S]
        whole[batch, :, queries] = found[0] if made.sliced == 1 else found.sum(0)
    return whole


@triton.jit(
    do_not_specialize=["T", "S", "H", "G", "q_b", "q_h", "q_t", "k_b", "k_g", "k_s"],
)
def few_kernel(
    q, k, w, energies,
    T, S, H, G, q_b, q_h, q_t, k_b, k_g, k_s,
    D: tl.constexpr, WIDTH: tl.constexpr, BS: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """Energies of all queries of a head with BS keys, each read once."""
    blocks = tl.cdiv(S, BS)
    row, s = tl.program_id(0) // blocks, tl.program_id(0) % blocks * BS + tl.arange(0, BS)
    b, h, d = (row // H).to(tl.int64), row % H, tl.arange(0, WIDTH)
    vector = tl.load(w + h * D + d, mask=d < D, other=0.0).to(tl.float32)
    offered = k + b * k_b + (h // (H // G)).to(tl.int64) * k_g
    offered = offered + s.to(tl.int64)[:, None] * k_s + d[None, :]
    key = tl.load(offered, mask=(s < S)[:, None] & (d < D)[None, :], other=0.0).to(tl.float32)
    asked = q + b * q_b + h.to(tl.int64) * q_h + d
    out = energies + row.to(tl.int64) * T * S + s
    for _ in range(0, T):
        query = tl.load(asked, mask=d < D, other=0.0).to(tl.float32)
        energy = tl.sum(bend(query[None, :] + key, PRECISE) * vector[None, :], 1)
        tl.store(out, energy, mask=s < S)
        asked += q_t
        out += S


def _by_row(scene: Scene, whole: Tensor) -> Tensor:
    """The energies of a few queries."""
    S, D = scene.S, scene.shape[3]
    keys, warps = tuned.row(scene.width)
    launch(
        few_kernel,
        (scene.rows * triton.cdiv(S, keys), 1),
        (scene.q, scene.k, scene.w, at(whole)),
        (*scene.lengths, *scene.q_steps, *scene.k_steps),
        (D, scene.width, keys, scene.precise),
        warps,
    )
    return whole


class Side(NamedTuple):
    """Queries or keys, prepared for the sums over them."""

    rows: Tensor  # N rows each of B heads, D padded to a multiple of four  B N D
    grown: Tensor  # e^{2x}, two neighbours side by side, as one number  B N/2 D int64
    largest: Tensor  # the largest magnitude of each block; NaN if one is  B blocks

    @staticmethod
    def of(x: Tensor) -> "Side":
        """One side from B H N D, padded with zeros to whole blocks."""
        x = x.flatten(0, 1).float()
        rows = pad(x, (0, -x.shape[2] % 4, 0, -x.shape[1] % BLOCK)).contiguous()
        B, N, D = rows.shape
        edge = SHARED.value
        pairs = (rows.clamp(-edge, edge) * 2).exp_().view(B, N // 2, 2, D)
        tops = rows.view(B, N // BLOCK, BLOCK * D).abs().amax(-1)
        return Side(rows, torch.stack(pairs.unbind(2), -1).view(torch.int64)[..., 0], tops)


@triton.jit(do_not_specialize=["N", "M", "PX", "PY", "slope_x", "slope_y", "H", "n", "heads_x"])
def sum_kernel(
    x, y, grown, tops_x, tops_y, slopes, w, out, leans,
    N, M, PX, PY, slope_x, slope_y, H, n, heads_x,
    D: tl.constexpr, WIDTH: tl.constexpr, BD: tl.constexpr, BX: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The gradient of BX rows of one side, BD wide, summed over all rows of the other.

    D      width of x, y and out, padded to a multiple of four; WIDTH of it exist
    N M    queries and keys; with KEYS, x is the keys
    n      heads that share a key
    PX PY  padded rows of either side; slope_x and slope_y are the strides of slopes
    leans  each tile's share of the score vector's gradient; without KEYS only
    """
    mine_many, other_many = N, M
    if KEYS:
        mine_many, other_many = M, N
    cuts: tl.constexpr = (D + BD - 1) // BD
    tiles = tl.cdiv(mine_many, BX)
    tile, which = tl.program_id(0) // cuts % tiles, tl.program_id(0) // cuts // tiles
    b, g, x0 = which // heads_x, which % heads_x, tile * BX
    row, d = x0 + tl.arange(0, BX), tl.program_id(0) % cuts * BD + tl.arange(0, BD)
    mine = x + (which.to(tl.int64) * PX + x0) * D
    place = tl.arange(0, BX)[:, None] * D + d[None, :]
    inside = (row < mine_many)[:, None] & (d < D)[None, :]
    tall = power(tl.load(mine + place, mask=inside, other=0.0))
    high = tl.load(tops_x + which.to(tl.int64) * (PX // ROWS) + x0 // ROWS)
    whole = tl.zeros([BX, BD], tl.float32)
    whole_lean = tl.zeros([BX, BD], tl.float32)
    for i in range(0, n if KEYS else 1):
        h, other = g, (b * (H // n) + g // n).to(tl.int64)
        if KEYS:
            h = g * n + i
            other = (b * H + h).to(tl.int64)
        steep = slopes + (b * H + h).to(tl.int64) * N * M + row.to(tl.int64) * slope_x
        scores = 4.0 * tl.load(w + h * WIDTH + d, mask=d < WIDTH, other=0.0)
        for y0 in range(0, other_many, ROWS):
            most = high + tl.load(tops_y + other * (PY // ROWS) + y0 // ROWS)
            end = tl.minimum(y0 + ROWS, other_many)
            here = steep + tl.cast(y0, tl.int64) * slope_y
            rise = tl.zeros([BX, BD], tl.float32)
            lean = tl.zeros([BX, BD], tl.float32)
            if (most >= QUIET) & (most <= SHARED):
                pair = grown + (other * (PY // 2) + y0 // 2) * D + d
                for j in range(y0, end, 2):
                    one = tl.load(here, mask=row < mine_many, other=0.0)
                    two = tl.load(here + slope_y, mask=(row < mine_many) & (j + 1 < end), other=0.0)
                    c1, c2 = curve(tall, tl.load(pair, mask=d < D, other=0))
                    rise += one[:, None] * (0.25 - c1 * c1)
                    rise += two[:, None] * (0.25 - c2 * c2)
                    if not KEYS:
                        lean += one[:, None] * c1
                        lean += two[:, None] * c2
                    pair += D
                    here += slope_y
                    here += slope_y
            else:
                again = tl.load(mine + place, mask=inside, other=0.0)
                theirs = y + (other * PY + y0) * D + d
                for _ in range(y0, end):
                    one = tl.load(here, mask=row < mine_many, other=0.0)
                    both = again + tl.load(theirs, mask=d < D, other=0.0)[None, :]
                    c1 = -0.5 * tanh(both)
                    rise += one[:, None] * (0.25 - c1 * c1)
                    if not KEYS:
                        lean += one[:, None] * c1
                    theirs += D
                    here += slope_y
            whole += rise * scores[None, :]
            whole_lean += lean
    tl.store(out + (which.to(tl.int64) * mine_many + x0) * D + place, whole, mask=inside)
    if not KEYS:
        at = (which.to(tl.int64) * tiles + tile) * D + d
        tl.store(leans + at, -2.0 * tl.sum(whole_lean, 0), mask=d < D)


def backward(grad: Tensor, q: Tensor, k: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and w, each summed by one program in one order."""
    check_shapes(q, k, w)
    if not grad.numel() or not q.shape[3]:
        nothing = [torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, w)]
        return nothing[0], nothing[1], nothing[2]
    asked, offered = Side.of(q), Side.of(k)
    slopes, scores = grad.float().contiguous(), w.float().contiguous()
    S, H = k.shape[2], q.shape[1]
    dq, leans = _sum(asked, offered, q, k, slopes, scores, (S, 1), keys=False)
    dk, _ = _sum(offered, asked, k, q, slopes, scores, (1, S), keys=True)
    assert leans is not None
    dw = leans.view(q.shape[0], H, -1, leans.shape[2]).sum((0, 2))
    return _cut(dq, q), _cut(dk, k), _cut(dw, w)


def _cut(x: Tensor, like: Tensor) -> Tensor:
    """A gradient without its padding, in the dtype of its tensor."""
    return x[..., : like.shape[-1]].to(like.dtype).contiguous()


def _sum(
    mine: Side,
    theirs: Side,
    x: Tensor,
    y: Tensor,
    slopes: Tensor,
    scores: Tensor,
    steps: tuple[int, int],
    *,
    keys: bool,
) -> tuple[Tensor, Tensor | None]:
    """The gradient of x; from queries also what each tile adds to that of the score vector."""
    B, heads, length, D = x.shape
    _, H, T, S = slopes.shape
    many = H // (heads if keys else y.shape[1])
    wide, tall = min(BLOCK, max(16, power_of_2(D))), BLOCK if length > 16 else 16
    tiles, padded = triton.cdiv(length, tall), mine.rows.shape[2]
    out = x.new_empty(B, heads, length, padded, dtype=torch.float32)
    leans = None if keys else x.new_empty(B * H, tiles, padded, dtype=torch.float32)
    launch(
        sum_kernel,
        (tiles * triton.cdiv(D, wide) * B * heads, 1),
        (
            *(at(mine.rows), at(theirs.rows), at(theirs.grown), at(mine.largest)),
            *(at(theirs.largest), at(slopes), at(scores), at(out)),
            None if leans is None else at(leans),
        ),
        (T, S, mine.rows.shape[1], theirs.rows.shape[1], *steps, H, many, heads),
        (padded, D, wide, tall, keys),
        max(4, wide * tall // (KEY_SHARE if keys else QUERY_SHARE)),
        128,
    )
    return out, leans
