"""What `sources` of a recipe name: files, globs and URLs of any format, a finished store, or the embedded corpus.

In: the strings of a recipe. Out: sources to read, or a store that is finished already. Kept: the embedded corpus, on
disk.

Object stores are named as fsspec names them (``s3://bucket/key``). Keys and the address of the server come from the
environment, as their own libraries read it: for S3 and compatible servers, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
AWS_ENDPOINTURL.
"""

import glob
import itertools
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from data.settings import AUTO, CorpusSettings, DataSettings, IngestSettings, LetterPolicy
from data.sources.block import Source
from data.sources.formats import FORMATS, URL, source_of, suffix_of, without_query
from data.sources.synthetic import Families, write_corpus
from data.sources.tables import DATASETS, TableSource
from data.transport.byte_stream import require_no_pipe
from data.transport.retries import WEB
from zymogen.console.safe_text import redact_later, unredacted
from zymogen.files.suggestions import did_you_mean, format_list

SYNTHETIC = "synthetic:"

_MOST_LISTED = 10_000
"""How many entries of a folder are looked at for an error's text."""


@dataclass(frozen=True, slots=True)
class ResolvedSources:
    """A corpus, ready to be read."""

    sources: tuple[Source, ...]
    """The sources in the order in which they are read; empty if `store` is given."""
    clusters: Path | None
    """The table of clusters that the recipe names."""
    families: Families | None
    """The settings of the embedded corpus; None for any other."""
    store: Path | None
    """Folder of a finished store, named in place of sources."""


def resolve(
    corpus: CorpusSettings,
    unknown_letters: LetterPolicy,
    ingest: IngestSettings,
    store_dir: Path,
) -> ResolvedSources:
    """Find what the strings name, and write the embedded corpus if the recipe names it and it does not exist yet.

    Nothing is opened: a file or URL that is missing is noticed when it is stamped or read.

    Raises:
        ValueError: a glob that matches nothing; a source named twice; a folder that is no store; a store or the
            embedded corpus beside other sources; a seed that is no number; standard input; nucleotides by suffix.
    """
    clusters = Path(corpus.clusters) if corpus.clusters else None
    synthetic = [s for s in corpus.sources if s.startswith(SYNTHETIC)]
    if synthetic:
        return _embedded(synthetic[0], corpus, unknown_letters, ingest, store_dir)
    places = [place for s in corpus.sources for place in _places(s)]
    _require_distinct(places)
    for place in places:
        require_no_pipe(place, "data.sources")
    for place in places:
        if not URL.match(place) and os.path.isdir(place):
            return ResolvedSources((), clusters, None, _store(place, places, corpus))
    found = tuple(source_of(place, corpus, unknown_letters, ingest.content) for place in places)
    return ResolvedSources(found, clusters, None, None)


def names_of(corpus: CorpusSettings) -> list[str]:
    """The names that its sources have in a store, as far as they are known without a server."""
    return [place for named in corpus.sources for place in ([named] if is_remote(named) else _places(named))]


def is_remote(named: str) -> bool:
    """Whether a source lies on another machine, so that reading it asks a server."""
    return not named.startswith("file://") and URL.match(named) is not None


def require_files(settings: DataSettings) -> None:
    """Refuse what is wrong with the names of local files, in a moment; URLs and data sets are left to the reading.

    Raises:
        ValueError: as `resolve` does; a file that does not exist.
    """
    for corpus in settings.corpora:
        local = tuple(s for s in corpus.sources if not (is_remote(s) or s.startswith(SYNTHETIC)))
        if local:
            alone = replace(corpus, sources=local)
            found = resolve(alone, settings.unknown_letters, settings.ingest, Path(settings.store_dir))
            for source in found.sources:
                source.stamp()
        for name in ("clusters", "exclude"):
            table = getattr(corpus, name)
            if table is None:
                continue
            require_no_pipe(table, f"data.{name}")
            if not os.path.lexists(path := Path(table)):
                raise ValueError(f"{path}: No such file or directory; check data.{name}{did_you_mean(path)}")


def _embedded(
    named: str, corpus: CorpusSettings, unknown_letters: LetterPolicy, ingest: IngestSettings, store_dir: Path
) -> ResolvedSources:
    if len(corpus.sources) > 1 or corpus.clusters or corpus.format != AUTO:
        raise ValueError(
            f"data.sources has {named!r} beside other sources, data.clusters or data.format; the embedded corpus "
            "brings its own clusters and stands alone"
        )
    seed = named.removeprefix(SYNTHETIC)
    if not seed.isdecimal():
        raise ValueError(f"data.sources: {named!r} needs a whole number as seed, for example 'synthetic:0'")
    families = Families(seed=int(seed))
    fasta, table = write_corpus(store_dir / f"synthetic-{seed}", families)
    return ResolvedSources((source_of(str(fasta), corpus, unknown_letters, ingest.content),), table, families, None)


def _places(named: str) -> Iterable[str]:
    """The paths, URLs and data sets that one string names."""
    if named.startswith(DATASETS):
        return [named]
    if named.startswith("file://"):
        named = unquote(urlsplit(named).path)
    if URL.match(named):
        return _remote(named)
    path, query = without_query(named)
    if not glob.has_magic(path) or os.path.exists(path):
        return [path + query]
    found = sorted(p for p in glob.glob(path, recursive=True) if not os.path.isdir(p))
    if not found:
        _require_readable(path)
        escaped = re.sub(r"\[(?!\[\])", "[[]", path)
        remedy = f"; brackets are part of a pattern: for a name with brackets write '{escaped}'" * (escaped != path)
        raise ValueError(f"{path}: no file matches this pattern; check data.sources{remedy}")
    return [p + query for p in found]


def _require_readable(pattern: str) -> None:
    """Raise if the pattern matches nothing because its folder cannot be read."""
    folder = Path(*itertools.takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts[:-1]))
    try:
        os.listdir(folder)
    except PermissionError as error:
        raise ValueError(f"{folder}: {error.strerror}; get the right to read it, or check data.sources") from None
    except OSError:  # the folder does not exist
        return


def _remote(url: str) -> list[str]:
    """A URL, or all that a glob among URLs matches."""
    path, query = without_query(url)
    # In a web address a question mark begins the query, where a star is no wildcard; brackets enclose an IP address.
    if not ("*" in urlsplit(path).path if path.startswith(WEB) else glob.has_magic(path)):
        return [url]
    from fsspec.core import url_to_fs

    try:
        if "::" in path:
            raise ValueError("a chain of file systems has no listing")
        files, pattern = url_to_fs(unredacted(path))
        listed = files.glob(pattern, detail=True).items()
        found = sorted(files.unstrip_protocol(p) for p, about in listed if about["type"] == "file")
    except Exception as error:  # each file system fails in its own way
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            f"{path}: the files of this pattern cannot be listed ({said}); check the address and the access, or name "
            "the files one by one"
        ) from error
    if not found:
        raise ValueError(f"{path}: no file matches this pattern; check data.sources")
    return [redact_later(p, "data.sources") + query for p in found]


def _require_distinct(places: list[str]) -> None:
    seen: dict[str, str] = {}
    for place in places:
        path, query = without_query(place)
        same = place if URL.match(place) else os.path.realpath(path) + query
        if same in seen:
            raise ValueError(
                f"data.sources names {place} twice{f' (as {seen[same]})' if seen[same] != place else ''}; its records "
                "would count double: name it once"
            )
        seen[same] = place


def _store(place: str, places: list[str], corpus: CorpusSettings) -> Path:
    folder = Path(place)
    if not (folder / "store.json").exists():
        raise ValueError(
            f"{place} is a folder, and no finished token store (it has no store.json); {_could_be_meant(folder)}"
        )
    if len(places) > 1:
        raise ValueError(
            f"data.sources has the token store {place} beside other sources; a finished store stands alone: name the "
            "files that it was built from, or mix the two with [[data.mixture]]"
        )
    if corpus.format != AUTO:
        raise ValueError(f"{place} is a finished store, and data.format is {corpus.format!r}, which reads files")
    return folder


def _could_be_meant(folder: Path) -> str:
    """What in a folder its name could stand for, and what to write."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in itertools.islice(entries, _MOST_LISTED))
    if stores := [name for name in names if (folder / name / "store.json").exists()]:
        return f"it holds {format_list(stores)}, finished: name one, for example '{folder / stores[0]}'"
    found = [name for name in names if suffix_of(name) in (*FORMATS, *TableSource.suffixes)]
    if not found:
        return f"name its files, for example '{folder}/*.fasta'"
    ending = found[0][found[0].lower().rindex(suffix_of(found[0])) :]
    return f"it holds {format_list(found)}: name them, for example '{glob.escape(str(folder))}/*{ending}'"
