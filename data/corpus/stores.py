"""The stores of the corpora of a recipe, found or built.

In: the recipe's data settings. Out: `PreparedCorpus`, one for each corpus. Kept: token stores under `data.store_dir`,
and the embedded corpus. Torch is not imported.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data.settings import AUTO, CorpusSettings, DataSettings, IngestSettings, LetterPolicy
from data.sources.synthetic import Families
from data.store.growing import GrowingStore
from data.store.token_store import FACTS, TABLES, TokenStore
from zymogen.console.safe_text import is_redacted
from zymogen.settings.extension import is_external


@dataclass(frozen=True, slots=True)
class PreparedCorpus:
    """One corpus on this node's disk."""

    folder: Path
    """Its token store, finished or, for a stream, still growing."""
    clusters: Path | None
    """The table of clusters that was given, or that the embedded corpus brings."""
    families: Families | None


def prepare_stores(settings: DataSettings, *, fetches: bool = True) -> tuple[PreparedCorpus, ...]:
    """Find or build the stores, without clusters and splits; called by one process of each node.

    Args:
        settings: of the recipe.
        fetches: whether servers may be asked and `data.store_dir` made; not where somebody else's file names them.

    Raises:
        ValueError: the sources are wrong, or would have to be fetched.
    """
    return tuple(_prepare(corpus, settings, fetches) for corpus in settings.corpora)


def open_store(
    sources: Sequence[str],
    unknown_letters: LetterPolicy,
    ingest: IngestSettings,
    store_dir: Path,
    format: str = AUTO,
) -> TokenStore:
    """The finished store that is named, or the store of the sources that are named, which is built if necessary.

    Raises:
        ValueError: there is no such source, or it is not a protein corpus.
    """
    from data.sources.resolve import resolve
    from data.store.build import open_or_build

    corpus = CorpusSettings(sources=tuple(sources), format=format)
    found = resolve(corpus, unknown_letters, ingest, store_dir)
    if found.store is not None:
        return TokenStore(found.store, store_dir)
    return open_or_build(found.sources, store_dir, unknown_letters, ingest)


def _prepare(corpus: CorpusSettings, settings: DataSettings, fetches: bool) -> PreparedCorpus:
    from data.sources.resolve import is_remote, names_of, resolve
    from data.store.build import find_built, open_or_build  # imported here, so that reading a store needs no parser
    from data.store.growing import start_builder

    store_dir, remote = Path(settings.store_dir), [s for s in corpus.sources if is_remote(s)]
    if not (fetches or store_dir.is_dir()):
        raise ValueError(f"{store_dir}: no such folder of token stores; name one with --store-dir, or give --data")
    is_own = is_external(corpus.format)  # whose class only a run imports
    if any(map(is_redacted, remote)) or ((remote or is_own) and not fetches):
        kept = find_built(names_of(corpus), store_dir, settings.unknown_letters, settings.ingest, corpus.format)
        if kept is not None:
            TokenStore(kept).verify(*TABLES)
            return PreparedCorpus(kept, Path(corpus.clusters).expanduser() if corpus.clusters else None, None)
        if not fetches:
            raise ValueError(
                f"{(remote or corpus.sources)[0]}: not fetched, as the file of a run names it"
                f"{' and its class' if is_own else ''}, which may be somebody else's: build its store yourself (python "
                f"-m data build SOURCE --store-dir {store_dir}), or give proteins with --data"
            )
    if corpus.streaming:
        folder = start_builder(corpus, settings.unknown_letters, settings.ingest, store_dir)
        if (folder / FACTS).exists():
            GrowingStore(folder).verify(*TABLES)
        return PreparedCorpus(folder, None, None)
    source = resolve(corpus, settings.unknown_letters, settings.ingest, store_dir)
    if source.store is not None:
        folder = source.store
        if TokenStore(folder).unknown_letters and settings.unknown_letters == "refuse":
            raise ValueError(
                f"{folder} was built with letters read as <unk> ({TokenStore(folder).unknown_letters}), and "
                "data.unknown_letters is 'refuse'; set it to 'count', or build the store again"
            )
    else:
        folder = open_or_build(source.sources, store_dir, settings.unknown_letters, settings.ingest).folder
    TokenStore(folder).verify(*TABLES)
    return PreparedCorpus(folder, source.clusters, source.families)
