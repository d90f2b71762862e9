"""Places of bundles: which folders a user means by the name of a bundle or of a run.

In: a path. Out: folders of bundles. Kept: nothing. Torch need not be imported to find out that there is none.
"""

from pathlib import Path

from data.missing_file import nearest
from finetune.bundle.manifest import MANIFEST


def has_bundle(path: Path) -> bool:
    """Whether a folder is a bundle, or a run with one or several of them."""
    places = (MANIFEST, f"bundle/{MANIFEST}", f"*/bundle/{MANIFEST}")
    return any(any(path.glob(place)) for place in places)


def bundles_at(path: Path) -> list[Path]:
    """The folder itself if it is a bundle, else the bundles of a run, or of all of its members.

    Raises:
        ValueError: there is none.
    """
    if (path / MANIFEST).is_file():
        return [path]
    found = [path / "bundle"] if (path / "bundle" / MANIFEST).is_file() else []
    found = found or sorted(each.parent for each in path.glob(f"*/bundle/{MANIFEST}"))
    if not found:
        raise ValueError(
            f"{path} is no bundle, and has none in bundle/ or */bundle/{nearest(path, files=False)}; name a run that "
            "has come to its end"
        )
    return found
