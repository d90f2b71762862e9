"""Versions of the packages that a result depends on, for run.json, checkpoints and benchmarks."""

from functools import cache
from importlib import metadata

_PACKAGES = ("zymogen", "torch", "accelerate", "deepspeed", "transformers", "safetensors", "numpy", "numba")


@cache  # each save asks, while training waits
def version(package: str) -> str:
    """The installed version of a package; a checkout of this project that is not installed has none itself."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def versions() -> dict[str, str]:
    """The version of each package that the result depends on, by name."""
    return {package: version(package) for package in _PACKAGES}
