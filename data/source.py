"""What `data.sources` names: files, globs, or the embedded corpus.

In: the strings of a recipe. Out: paths of FASTA files and of a cluster table. Kept: the embedded corpus, on disk.
"""

import glob
from dataclasses import dataclass
from pathlib import Path

from data.settings import DataSettings
from data.synthetic import Families, write

SYNTHETIC = "synthetic:"


@dataclass(frozen=True, slots=True)
class Source:
    """A corpus, ready to be read."""

    paths: tuple[Path, ...]
    clusters: Path | None
    families: Families | None
    """How the embedded corpus was drawn; None for any other."""


def resolve(settings: DataSettings) -> Source:
    """Find the files, and write the embedded corpus if it is asked for and not there yet.

    Raises:
        ValueError: a path or glob that matches nothing; the embedded corpus mixed with files; a seed that is no number.
    """
    clusters = Path(settings.clusters) if settings.clusters else None
    synthetic = [s for s in settings.sources if s.startswith(SYNTHETIC)]
    if not synthetic:
        return Source(tuple(path for s in settings.sources for path in _matches(s)), clusters, None)
    if len(settings.sources) > 1 or clusters:
        raise ValueError(
            f"data.sources has {synthetic[0]!r} beside other sources or data.clusters; the embedded corpus brings its "
            "own clusters and stands alone"
        )
    seed = synthetic[0].removeprefix(SYNTHETIC)
    if not seed.isdecimal():
        raise ValueError(f"data.sources: {synthetic[0]!r} needs a whole number as seed, for example 'synthetic:0'")
    families = Families(seed=int(seed))
    fasta, table = write(Path(settings.store_dir) / f"synthetic-{seed}", families)
    return Source((fasta,), table, families)


def _matches(pattern: str) -> list[Path]:
    if not glob.has_magic(pattern):
        return [Path(pattern)]
    found = sorted(Path(p) for p in glob.glob(pattern, recursive=True))
    if not found:
        raise ValueError(f"{pattern}: no file matches this pattern; check data.sources")
    return found
