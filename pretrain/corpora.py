"""The corpora of a run, opened the same way on every rank.

In: the recipe's data settings, or the record of a run that has them. Out: `data.corpus.corpora.Corpora`. Kept: the
stores on disk, which the first rank of each node builds while the others wait.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from data.corpus.corpora import Corpora
from data.corpus.prepare import open_corpora, prepare_corpora
from data.order.plan_size import tokens_per_epoch
from data.settings import DataSettings
from pretrain.recipe import Recipe
from zymogen.settings.toml_file import check
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.run.run_json import RunRecord


def open_on_every_rank(settings: DataSettings, engine: Engine) -> Corpora:
    """Find, build or begin to stream the corpora; collective.

    Raises:
        ValueError: a file is at fault, or nodes hold different ones; `PeerError` on the other ranks.
    """
    corpora = open_corpora(settings, engine.on_each_node(lambda: prepare_corpora(settings)))
    seen = engine.gather((corpora.fingerprint, corpora.split_fingerprint))
    for rank, other in enumerate(seen):
        if other != seen[0]:
            raise ValueError(
                f"rank {rank} has another corpus than rank 0: fingerprint and split {other}, rank 0 has {seen[0]}; "
                "data.sources must name the same content on every node"
            )
    return corpora


def resolve_epochs(recipe: Recipe, engine: Engine) -> Recipe:
    """The recipe with its length in tokens; if it is given in passes, the corpus is opened and counted. Collective.

    Raises:
        ValueError: a file is at fault; `PeerError` on the other ranks.
    """
    if recipe.schedule.passes is None:
        return recipe
    corpora = open_on_every_rank(recipe.data, engine)
    tokens = engine.on_main(lambda: tokens_per_epoch(corpora.plan(recipe.run.seed)))
    return replace(recipe, schedule=recipe.schedule.in_tokens(tokens))


def data_settings(record: RunRecord, root: Path) -> DataSettings:
    """Return the section `data` of a pretraining run's recipe; `root` is its directory.

    Raises:
        ValueError: it is a fine-tuning run, or its settings are not those of this version.
    """
    if "tasks" in record.recipe:
        raise ValueError(f"{root} is a fine-tuning run; give one of python -m pretrain")
    return check(_Data, {"data": record.recipe.get("data")}, str(root / "run.json")).data


@dataclass(frozen=True, kw_only=True, slots=True)
class _Data:
    data: DataSettings
