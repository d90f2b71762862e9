"""The corpora of a run, opened the same way on every rank.

In: the recipe's data settings. Out: `data.corpus.corpora.Corpora`. Kept: the stores on disk, which the first rank of
each node builds while the others wait.
"""

from dataclasses import replace

from data.corpus.corpora import Corpora
from data.corpus.prepare import open_corpora, prepare_corpora
from data.order.plan_size import tokens_per_epoch
from data.settings import DataSettings
from pretrain.engine.engine import Engine
from pretrain.recipe import Recipe


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
