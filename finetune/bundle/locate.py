"""Locating bundles: which folders a user means by the name of a bundle or of a run.

In: a path. Out: folders of bundles. Kept: nothing. Torch need not be imported to find out that there is none.
"""

from pathlib import Path

from finetune.bundle.manifest import MANIFEST
from zymogen.files.suggestions import did_you_mean


def bundles_in(path: Path) -> list[Path]:
    """The folder itself if it is a bundle, else the bundles of a run, or of all of its members; empty for any other."""
    places = (MANIFEST, f"bundle/{MANIFEST}", f"*/bundle/{MANIFEST}")
    found = (sorted(each.parent for each in path.glob(place)) for place in places)
    return next(filter(None, found), [])


def bundles_at(path: Path) -> list[Path]:
    """The same, of which there must be one.

    Raises:
        ValueError: there is none.
    """
    found = bundles_in(path)
    if not found:
        raise ValueError(
            f"{path} is no bundle, and has none in bundle/ or */bundle/{did_you_mean(path, files=False)}; name a run "
            "that has come to its end"
        )
    return found
