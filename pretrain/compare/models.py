"""Two models by their names, scored on one frozen set, one after the other.

In: runs, checkpoints, exports, folders of transformers' or Hub names. Out: a `Comparison`. Kept: token stores.
"""

from collections.abc import Sequence

from data.progress_line import WorkLine
from data.recipe.packing import BIN_TOKENS
from pretrain.compare.comparison import Comparison, differences
from pretrain.engine.engine import Engine
from pretrain.engine.launch import launch
from pretrain.evaluation.finished import LAUNCH, Compute, Sums, scored_by
from pretrain.evaluation.opened import Asked, OpenSet, named, open_set
from pretrain.ship.source import Source, masked_language_model, open_source


def compare_models(a: str, b: str, data: Sequence[str] = ()) -> Comparison:
    """Compare two models in this process, as a step of another command.

    Args:
        a: the model that is there.
        b: the one that may take its place.
        data: a run, whose held-out proteins are scored, or sources; empty for the run that `b`, or else `a`, is or lies
            in.

    Raises:
        ValueError: a model cannot be read, or nothing says what to score.
    """
    with launch(LAUNCH) as engine:
        return compare_on(engine, a, b, Asked(data=data_for(a, b, data)))


def data_for(a: str, b: str, data: Sequence[str] | None) -> tuple[str, ...]:
    """What two models are scored on.

    Raises:
        ValueError: nothing says so.
    """
    found = named(data, b) or named(None, a)
    if not found:
        raise ValueError(f"neither {a} nor {b} lies in a run, whose held-out proteins could be scored; name proteins")
    return found


def compare_on(
    engine: Engine, a: str, b: str, asked: Asked, *, compute: Compute = "float32", bin_tokens: int = BIN_TOKENS
) -> Comparison:
    """Compare two models; collective. One of them is in memory at a time.

    Raises:
        ValueError: as `compare_models`.
    """
    sources = [open_source(each) for each in (a, b)]
    opened = open_set(asked, engine)
    first, second = (_sums(source, opened, engine, compute, bin_tokens) for source in sources)

    def found() -> Comparison:
        groups, drawn = opened.groups()
        numbers = dict(zip(opened.scored.samples.tolist(), groups.tolist(), strict=True))
        return Comparison(
            models=(sources[0].origin, sources[1].origin),
            data=asked.data,
            set=opened.scored.fingerprint(),
            drawn=drawn,
            differences=differences(first, second, numbers),
        )

    return engine.on_main(found)


def _sums(source: Source, opened: OpenSet, engine: Engine, compute: Compute, bin_tokens: int) -> dict[str, Sums]:
    with WorkLine(f"scoring {source.origin}", after_s=2.0, speaks=engine.is_main):
        model = masked_language_model(source, engine.device)
        return scored_by(model, source.origin, opened, engine, compute=compute, bin_tokens=bin_tokens)
