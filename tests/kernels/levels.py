"""The instruction sets the C library is built for; those this processor lacks are skipped."""

import pytest

from heed.kernels import native

RUN = 0 if native.missing() else native.LEVELS.index(native.level()) + 1
LEVELS = [
    pytest.param(name, marks=pytest.mark.skipif(i >= RUN, reason=f"this processor is no {name}"))
    for i, name in enumerate(native.LEVELS)
]
