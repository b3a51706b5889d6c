"""The same answers as the reference in `heed.attention`, faster."""

from heed.kernels.choose import KERNELS, choose, off

__all__ = ["KERNELS", "choose", "off"]
