"""The speed of a recipe on this machine, by a few steps whose weights are thrown away.

In: a recipe, what opens its job, an engine. Out: real tokens a second, over all processes. Kept: nothing: no file is
written, no random state changes, and the run that follows has a model of its own.

Every process takes part, so that shared cores and the exchange of gradients count. The first step, in which memory is
allocated and layers are compiled, does not.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeVar

import torch

from data.order.plan import Cursor
from pretrain.job import PretrainingJob, in_bins
from pretrain.recipe import Recipe
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.engine.named_state import fill
from zymogen.trainer.job import Job, TrainingRecipe, ValidationScores
from zymogen.trainer.optimizer.kinds import build_optimizer
from zymogen.trainer.step import train_step

_FEWEST, _MOST = 2, 50
"""Steps that are timed."""
_LEARNING_RATE = 1e-6
R = TypeVar("R", bound=TrainingRecipe)


def timed_tokens_per_s(recipe: Recipe, engine: Engine, seconds: float) -> float:
    """Real tokens a second of the recipe's steps, on all ranks the same; collective.

    Args:
        recipe: what is timed; its corpora are opened, and made ready if they are not.
        engine: how it is spread.
        seconds: about how long the timed steps take.
    """
    recipe, _ = in_bins(replace(recipe, data=replace(recipe.data, workers=0)), engine)
    return timed_steps(recipe, PretrainingJob, engine, seconds)


def timed_steps(
    recipe: R, open_job: Callable[[R, Engine], Job[Any]], engine: Engine, seconds: float, least_tokens: int = 0
) -> float:
    """Real tokens a second of the steps of any job, on all ranks the same; collective.

    Args:
        recipe: what is timed.
        open_job: opens the job, as `zymogen.trainer.attempt.train` takes it.
        engine: how it is spread.
        seconds: about how long the timed steps take.
        least_tokens: tokens that are timed at least, however long they take.
    """
    with torch.random.fork_rng([engine.device] if engine.device.type == "cuda" else []):
        tokens, took_s = _timed(recipe, open_job(recipe, engine), engine, seconds, least_tokens)
    engine.release()
    return tokens / max(engine.gather(took_s))


def _timed(
    recipe: TrainingRecipe, job: Job[ValidationScores], engine: Engine, seconds: float, least_tokens: int
) -> tuple[int, float]:
    """Tokens, and seconds on this rank."""
    built = job.build(None)
    job.set_up(built.model)
    optimizer = build_optimizer(job.parameter_groups(built.model), recipe.optimizer)
    model, optimizer = engine.prepare(built.model, optimizer)
    named = engine.named_state(model, optimizer)
    fill(named, named.names, built.initializers)
    model.train()
    weights = torch.tensor([objective.weight for objective in job.objectives], device=engine.device)
    with closing(job.loader(Cursor(), 0)) as loader:

        def take() -> int:
            step = next(loader)
            train_step(
                step,
                model,
                optimizer,
                engine,
                bins_per_step=recipe.data.bins_per_step,
                weights=weights,
                clip_norm=recipe.optimizer.clip_norm,
                learning_rate=_LEARNING_RATE,
            ).to_host()
            return step.num_tokens

        take()
        started = time.perf_counter()
        in_one = take()
        one_s = max(engine.gather(time.perf_counter() - started))  # the same on every rank, and so is the count
        fewest = max(_FEWEST, -(-least_tokens // in_one))
        count = max(min(int(seconds / one_s), _MOST), fewest)
        started = time.perf_counter()
        tokens = sum(take() for _ in range(count))
        return tokens, time.perf_counter() - started
