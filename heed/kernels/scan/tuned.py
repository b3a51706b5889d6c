"""The width of a tile of keys and the warps that share it: three forms, whatever the length.

Measured on an H200, forward and backward; README.md beside this has the figures.
"""


def tile(S: int) -> dict[str, int]:
    """The tile of a walk, where one program has a whole row of keys to itself."""
    if S <= 128:
        return {"BLOCK": 128, "num_warps": 4}
    return {"BLOCK": 512 if S <= 512 else 2048, "num_warps": 8}


def mixture_tile(S: int) -> dict[str, int]:
    """The tile of a mixture, where there are many rows."""
    return {"BLOCK": 128 if S <= 128 else 512, "num_warps": 1 if S <= 128 else 4}
