"""What heed adds to PyTorch's own fused attention: at most max(3 %, 5 µs) for a plain call.

    python benchmarks/overhead.py [--json]

Both sides run in turns in one process, so that a busy machine slows them alike; each figure is the
best of many short rounds, since other load can only add to a time. Nothing is reported while the
two disagree on a result.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

import heed

CASES = [  # B H T D
    (1, 1, 8, 16),
    (8, 4, 32, 32),
    (16, 8, 64, 64),
    (4, 8, 256, 64),
    (1, 8, 1024, 64),
]


def seconds(call: Callable[[], object], repeats: int) -> float:
    """The time of one call, over a round of repeats."""
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / repeats


def compare(shape: tuple[int, int, int, int], causal: bool, device: str) -> dict[str, object]:
    """One case: ours and theirs in turns."""
    q, k, v = (torch.randn(shape, device=device) for _ in range(3))
    visible = heed.causal() if causal else None

    def theirs() -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=causal)

    def ours() -> torch.Tensor:
        return heed.attend(q, k, v, visible=visible).context

    if not torch.equal(ours(), theirs()):
        sys.exit(f"{shape}: the results differ, so no time is reported")
    repeats = max(1, int(0.004 / seconds(theirs, 3)))
    rounds = [(seconds(ours, repeats), seconds(theirs, repeats)) for _ in range(60)]
    our_time, their_time = (min(x) for x in zip(*rounds, strict=True))
    added = our_time - their_time
    return {
        "B H T D": " ".join(map(str, shape)),
        "causal": causal,
        "device": device,
        "ours_us": our_time * 1e6,
        "theirs_us": their_time * 1e6,
        "ratio": our_time / their_time,
        "added_us": added * 1e6,
        "within": added <= max(0.03 * their_time, 5e-6),
    }


def main() -> None:
    """Measure every case and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.inference_mode():
        rows = [compare(shape, causal, device) for shape in CASES for causal in (False, True)]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'B H T D':>14}  causal   ours µs  SDPA µs   ratio  added µs  within max(3 %, 5 µs)")
    for row in rows:
        print(
            f"{row['B H T D']:>14}  {'yes' if row['causal'] else 'no':>6}  {row['ours_us']:8.1f} "
            f"{row['theirs_us']:8.1f}  {row['ratio']:6.3f}  {row['added_us']:8.2f}  "
            f"{'yes' if row['within'] else 'NO'}"
        )


if __name__ == "__main__":
    main()
