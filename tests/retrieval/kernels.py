"""Run code with each kernel that this machine supports."""

from collections.abc import Iterator

import pytest

from anchorfold.retrieval import kernels


def available_kernels() -> list[str]:
    """Return the names of the kernels of this machine, `numpy` first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(kernels.VARIABLE, raising=False)
        kernels.kernel.cache_clear()
        fastest = kernels.kernel()
    kernels.kernel.cache_clear()
    compiled = () if fastest == "numpy" else kernels.LEVELS[: kernels.LEVELS.index(fastest) + 1]
    return ["numpy", *compiled]


def each_kernel() -> Iterator[str]:
    """Yield the name of each kernel while searches use it."""
    for name in available_kernels():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(kernels.VARIABLE, name)
            kernels.kernel.cache_clear()
            try:
                yield name
            finally:
                kernels.kernel.cache_clear()
