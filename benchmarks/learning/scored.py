"""What a run of the track loses on each protein, every target masked.

    python -m benchmarks.learning.scored RUN MODEL OUT [PROTEINS]

In: a finished run; a model, which may be the run; proteins, or else what the run held out. Out: a file that
`Scored.read` reads. Kept: this file.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.learning.around import as_trained
from pretrain.evaluate.score_models import LAUNCH, scored_by
from pretrain.evaluate.scored_set import EvaluationSetOptions, open_evaluation_set
from pretrain.evaluate.validation import unigram_losses
from pretrain.trained_model import masked_language_model, open_trained_model
from zymogen.files.durable import replacing_file
from zymogen.trainer.engine.launch import launch

_MOST = 100_000


class Kept:
    """A dataclass of arrays that a file holds."""

    __slots__: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Self:
        """The content of a file."""
        with np.load(path) as content:
            return cls(**{name: content[name] for name in content.files})

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        with replacing_file(path, "give another folder") as new, new.open("wb") as file:
            np.savez(file, **{name: getattr(self, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True, eq=False)
class Scored(Kept):
    """Sums over the targets of each protein."""

    names: NDArray[np.str_]
    """(proteins,) header of each, rising by its place in the file."""
    losses: NDArray[np.float64]
    """(proteins,) in nats."""
    unigram: NDArray[np.float64]
    """(proteins,) the same of residue frequencies."""
    targets: NDArray[np.int64]
    """(proteins,)."""

    @property
    def gain(self) -> float:
        """Nats a residue below residue frequencies."""
        return float((self.unigram - self.losses).sum() / self.targets.sum())


def score(run: Path, model: str, data: tuple[str, ...] = ()) -> Scored:
    """Score a model.

    Args:
        run: directory of a finished run, which says what is held out and how often residues are.
        model: what is scored: the same directory, or any that `open_trained_model` takes.
        data: proteins; empty for those that it held out.
    """
    with launch(LAUNCH) as engine:
        own = open_evaluation_set(EvaluationSetOptions(data=(str(run),), max_sequences=_MOST), engine)
        opened = own
        if data:
            store_dir = str(run.parent / "stores")
            asked = EvaluationSetOptions(
                data=data, max_sequences=_MOST, crop_tokens=own.crop_tokens, store_dir=store_dir
            )
            opened = open_evaluation_set(asked, engine)
        source = open_trained_model(model)
        opened_model = as_trained(masked_language_model(source, engine.device), Path(model))
        sums = scored_by(opened_model, source.origin, opened, engine, unigram_losses(own.corpora))["mask_all"]
        samples, losses, unigram, targets = zip(*sums, strict=True)
        names = opened.corpora.names(np.array(samples))
    return Scored(
        names=np.array(names),
        losses=np.array(losses),
        unigram=np.array(unigram),
        targets=np.array(targets),
    )


if __name__ == "__main__":
    _, of_run, named, out, *proteins = sys.argv
    score(Path(of_run), named, tuple(proteins)).write(Path(out))
