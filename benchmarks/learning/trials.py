"""Trials: what is no setting of a recipe, such as other first weights than `pretrain.model.initialization` draws.

    python -m benchmarks.learning.trials TRIALS RECIPE [SETTING ...]

In: names of trials with commas between, and the command line of `python -m pretrain`. Out: its run. Kept: nothing.

A trial changes the first weights by name, before an engine spreads them, or how Muon moves a matrix (`moves`), or the
embedding (`around`), or how many bins a step has at first. The run itself is that of a user: the same loop, the same
checkpoints, an export. What wins becomes a setting and leaves these files.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from types import GeneratorType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.learning.around import NAME, with_around
from benchmarks.learning.moves import MOVES, Tried
from data.alphabet import IS_TARGET
from data.batches import loader
from pretrain import job as pretraining_job
from pretrain.__main__ import main as pretrain
from pretrain.evaluate.validation import unigram_losses
from pretrain.export import export
from pretrain.model import build
from pretrain.model.initialization import WEIGHT_STD, FirstWeight
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import EsmShape
from zymogen.trainer import loop
from zymogen.trainer.optimizer import muon as optimizers

LAYERS = "encoder.layers."


class Weights:
    """First weights by name, which trials change.

    Args:
        model: gives the shape.
        first: what is drawn.
        unigram: (33,) loss in nats of each token id, of residue frequencies.
    """

    def __init__(self, model: MaskedLanguageModel, first: dict[str, FirstWeight], unigram: NDArray[np.float64]) -> None:
        self.shape, self.first, self.unigram = model.shape, first, unigram
        self.sizes = {name: parameter.shape for name, parameter in model.named_parameters()}

    def change(self, name: str, by: Callable[[Tensor], Tensor]) -> None:
        """Replace a weight by a function of it."""
        drawn = self.first[name]
        self.first[name] = lambda: by(drawn().clone())

    def scale(self, name: str, factor: float) -> None:
        """Multiply a weight."""
        self.change(name, lambda weight: weight * factor)


def fan_in(weights: Weights, gain: float) -> None:
    """Matrices of the layers with a standard deviation of `gain` over the root of their columns."""
    for name, size in weights.sizes.items():
        if name.startswith(LAYERS) and len(size) == 2:
            weights.scale(name, gain / (WEIGHT_STD * math.sqrt(size[1])))


def outputs(weights: Weights, factor: float) -> None:
    """What the layers add to the residual stream, times `factor`; 0 for layers that begin as the identity."""
    for name in weights.sizes:
        if name.startswith(LAYERS) and name.endswith(("attention.out.weight", "feed_forward.down.weight")):
            weights.scale(name, factor)


def values(weights: Weights, gain: float) -> None:
    """Values and output of the first layer's attention with a standard deviation of `gain` over the root of `dim`."""
    dim = weights.shape.dim

    def larger(drawn: Tensor) -> Tensor:
        drawn[2 * dim :] *= gain / (WEIGHT_STD * math.sqrt(dim))
        return drawn

    weights.change(f"{LAYERS}0.attention.qkv.weight", larger)
    weights.scale(f"{LAYERS}0.attention.out.weight", gain / (WEIGHT_STD * math.sqrt(dim)))


def embedding(weights: Weights, std: float) -> None:
    """The embedding with this standard deviation."""
    weights.change("encoder.embedding.weight", lambda drawn: drawn * (std / drawn.std()))


def bias(weights: Weights, above: float) -> None:
    """The head's bias at the log frequencies of residues plus `above`; other tokens keep 0."""
    is_target = torch.from_numpy(IS_TARGET)

    def with_frequencies(drawn: Tensor) -> Tensor:
        drawn[: len(is_target)][is_target] = above - torch.from_numpy(weights.unigram).float()[is_target]
        return drawn

    weights.change("head.bias" if "head.bias" in weights.sizes else "head.decoder.bias", with_frequencies)


TRIALS: dict[str, Callable[[Weights, float], None]] = {
    function.__name__: function for function in (fan_in, outputs, values, embedding, bias)
}
AROUND = "around"
"""Name of the trial of an embedding that sees so many places to either side."""
RAMP = "ramp"
"""Name of the trial of steps that have half as many bins until so many tokens."""
NAMES = (*TRIALS, *MOVES, AROUND, RAMP)


def install(asked: str) -> None:
    """Let every run of this process be as `asked` says: ``name=number`` with commas between.

    Raises:
        ValueError: there is no trial of a name.
    """
    chosen = {name: float(number) for name, _, number in (word.partition("=") for word in asked.split(",") if word)}
    if unknown := [name for name in chosen if name not in NAMES]:
        raise ValueError(f"there is no trial {unknown[0]!r}; there are {', '.join(NAMES)}")
    if begins := {name: number for name, number in chosen.items() if name in TRIALS}:
        _begin(begins)
    if moves := {name: number for name, number in chosen.items() if name in MOVES}:
        _move(moves)
    if AROUND in chosen:
        _see_around(int(chosen[AROUND]))
    if RAMP in chosen:
        _grow(chosen[RAMP])


def _begin(chosen: dict[str, float]) -> None:
    """Change the first weights."""
    built = pretraining_job.PretrainingJob.build
    unigram: list[NDArray[np.float64]] = []

    def changed(starts: Callable[..., dict[str, FirstWeight]]) -> Callable[..., dict[str, FirstWeight]]:
        def first(model: MaskedLanguageModel, seed: int) -> dict[str, FirstWeight]:
            weights = Weights(model, starts(model, seed), unigram[-1])
            for name, number in chosen.items():
                TRIALS[name](weights, number)
            return weights.first

        return first

    def counted(job: Any, described: Any) -> Any:
        unigram.append(unigram_losses(job.corpora))
        return built(job, described)

    for name in ("initial_weights", "local_attention_init"):
        setattr(build, name, changed(getattr(build, name)))
    pretraining_job.PretrainingJob.build = counted  # type: ignore


def _move(chosen: dict[str, float]) -> None:
    """Put another optimizer in Muon's place."""
    save = loop.Trainer.save

    def of_means(training: Any, *, final: bool, overwrite: bool = False) -> bool:
        if final and training.is_over:
            getattr(training.optimizer, "optimizer", training.optimizer).take_means()  # inside Accelerate's wrapper
        return save(training, final=final, overwrite=overwrite)

    Tried.asked = chosen
    optimizers.Muon = Tried  # type: ignore
    loop.Trainer.save = of_means  # type: ignore


def _see_around(farthest: int) -> None:
    """Give every model that is trained an embedding that sees so far; it is 0 at first."""
    without_memory, starts, whole = pretraining_job.build_meta, build.local_attention_init, export.read_whole

    def model(shape: EsmShape, model_of: Any) -> MaskedLanguageModel:
        return with_around(without_memory(shape, model_of), farthest)

    def first(plain: MaskedLanguageModel, seed: int) -> dict[str, FirstWeight]:
        zeros = torch.zeros(2 * farthest, plain.shape.dim)
        return {**starts(plain, seed), NAME: zeros.clone}

    def exported(*arguments: Any) -> dict[str, Tensor]:
        return {name: weight for name, weight in whole(*arguments).items() if name != NAME}

    pretraining_job.build_meta = model
    build.local_attention_init = first
    export.read_whole = exported


def _grow(until: float) -> None:
    """Let a loader deal half as many bins a step until so many tokens; to continue a run begins it once more."""
    taken = 0

    def fewer(stream: Iterable[Any], most: int) -> Iterator[Any]:
        nonlocal taken
        if taken >= until or not isinstance(stream, GeneratorType):  # what is no generator are bins that are filled
            return islice(stream, most)
        half = tuple(islice(stream, most // 2))
        taken += sum(bin_.num_tokens for bin_, _ in half)
        return iter(half)

    loader.islice = fewer  # type: ignore  # a trial takes the place of what every run has


if __name__ == "__main__":
    install(sys.argv[1])
    sys.exit(pretrain(sys.argv[2:]))
