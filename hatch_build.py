"""Build hook: compile the MaxSim kernels once per instruction set and link them into one library.

The library is loaded with ctypes, so a wheel fits every Python version. Without a C compiler the package is built
without it and searches use NumPy; `ANCHORFOLD_REQUIRE_KERNELS=1` makes that an error.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path("src/anchorfold/retrieval")
LIBRARY = "_maxsim.so"
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math",
         "-ffp-contract=off")  # fmt: skip
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
LEVELS = {"baseline": ("-DDISPATCH",)}
if platform.machine() in ("x86_64", "AMD64"):
    LEVELS |= {"avx2": AVX2, "avx512": AVX512, "avx512vnni": (*AVX512, "-mavx512vnni")}


class KernelBuildHook(BuildHookInterface):
    """Adds the library to wheels; editable installations receive it in the source tree."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library before hatchling collects files."""
        if self.target_name != "wheel":
            return
        package = Path(self.root) / PACKAGE
        try:
            build(package / "maxsim.c", package / LIBRARY)
        except (OSError, subprocess.CalledProcessError) as error:
            if os.environ.get("ANCHORFOLD_REQUIRE_KERNELS"):
                raise
            self.app.display_warning(f"no compiled kernels, searches will use NumPy: {error}")
            return
        build_data["force_include"][str(package / LIBRARY)] = f"anchorfold/retrieval/{LIBRARY}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def build(source: Path, library: Path) -> None:
    """Compile a source file for all instruction sets; one that the compiler does not support is left out."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    with tempfile.TemporaryDirectory() as folder:
        objects = []
        for level, flags in LEVELS.items():
            target = Path(folder) / f"{level}.o"
            command = [*compiler, *FLAGS, *flags, f"-DLEVEL={level}", "-c", str(source), "-o", str(target)]
            completed = subprocess.run(command, capture_output=True, text=True, check=False)
            if completed.returncode == 0:
                objects.append(str(target))
            elif level == "baseline":
                raise subprocess.CalledProcessError(completed.returncode, command, stderr=completed.stderr)
        linked = library.with_suffix(".part")
        command = [*compiler, "-shared", *objects, "-o", str(linked), "-lm", "-lpthread"]
        subprocess.run(command, check=True, capture_output=True)
        linked.replace(library)  # a process may have mapped the old one


if __name__ == "__main__":
    root = Path(__file__).parent / PACKAGE
    build(root / "maxsim.c", root / LIBRARY)
    print(f"built {root / LIBRARY}", file=sys.stderr)
