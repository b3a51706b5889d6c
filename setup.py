"""Build heed/kernels/libheed.so: plain C for the CPU, without the headers of torch or Python.

Every kernels/NAME/native.c is compiled once for each kind of processor, and heed.kernels.native
picks the best that the machine has when it loads. The library is optional: where there is no C
compiler heed installs without it, and PyTorch serves instead. While working on a C file:

    python setup.py build_ext --inplace
"""

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

KERNELS = Path("heed/kernels")
FLAGS = ["-std=gnu11", "-O3", "-g0", "-fPIC", "-fvisibility=hidden", "-fwrapv"]
FLAGS += [
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-Wall",
    "-Wextra",
    "-Werror=vla",
]
LEVELS = {"baseline": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    LEVELS["avx2"] = ["-mavx2", "-mfma", "-mf16c"]
    LEVELS["avx512"] = [*LEVELS["avx2"], "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl"]


class BuildNative(build_ext):
    """The same sources for several kinds of processor, in one library without a Python module."""

    def get_ext_filename(self, fullname: str) -> str:
        return f"{fullname.replace('.', '/')}.so"

    def build_extension(self, ext: Extension) -> None:
        first, *others = ext.sources  # the first is what they share, and is there once
        units = [(first, "baseline"), *product(others, LEVELS)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(self._compiled, units))
        self.compiler.link_shared_object(objects, self.get_ext_fullpath(ext.name), libraries=["m"])

    def _compiled(self, unit: tuple[str, str]) -> str:
        source, level = unit
        folder = str(Path(self.build_temp) / level)
        (compiled,) = self.compiler.object_filenames([source], output_dir=folder)
        if not self.force and not newer_group([source, *headers], compiled):
            return compiled
        (compiled,) = self.compiler.compile(
            [source],
            output_dir=folder,
            macros=[("HEED_LEVEL", level), ("HEED_LEVELS", str(len(LEVELS)))],
            include_dirs=["heed"],
            extra_postargs=FLAGS + LEVELS[level],
        )
        return compiled


class AnyPython(bdist_wheel):
    """The library does not care which Python loads it."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


sources = [str(KERNELS / "native.c"), *sorted(map(str, KERNELS.glob("*/native.c")))]
headers = sorted(map(str, KERNELS.rglob("*.h")))
setup(
    ext_modules=[Extension("heed.kernels.libheed", sources, depends=headers, optional=True)],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": AnyPython},
)
