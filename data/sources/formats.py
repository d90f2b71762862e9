"""Which class reads a file: by its suffix one of ours, or the one that `data.format` names.

In: where a file is, and the settings of its corpus. Out: a `Source`. Kept: nothing. A new format of ours is a class and
an entry in `FORMATS`; one of the user's is a class derived from `record_format.RecordFormat`.
"""

import json
import re
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from data.settings import CorpusSettings, LetterPolicy, SourceContent
from data.sources.biopython import GenBank, Stockholm, SwissProt, UniProtXml
from data.sources.block import Source
from data.sources.fasta import FastaSource
from data.sources.record_format import RecordFormat
from data.sources.tables import DATASETS, TableSource
from data.transport.retries import WEB
from zymogen.settings import extension

URL = re.compile(r"[a-z][a-z0-9+.-]*(::[a-z0-9+.:-]*)?://")
"""The beginning of a URL, or of a chain such as ``simplecache::s3://x``; a file's name may have ``::`` too."""
COMPRESSIONS = (".gz", ".bgz", ".bgzf", ".zst", ".zstd")

FORMATS: dict[str, type[FastaSource | RecordFormat]] = {
    suffix: kind for kind in (FastaSource, UniProtXml, SwissProt, GenBank, Stockholm) for suffix in kind.suffixes
}
"""The class of a file by its suffix. Tables are `TableSource.suffixes`; any other file is read as FASTA."""

_NUCLEOTIDES = (".fna", ".ffn", ".frn")
_SHEETS = (".xlsx", ".xlsm", ".xls", ".ods")


def suffix_of(place: str) -> str:
    """The suffix that gives the format, in lower case: the one before that of a compression; in a URL, of its path."""
    if URL.match(place):
        place = next((part for part in place.split("::") if "://" in part), place)
        place = urlsplit(place).path if place.startswith(WEB) else place
    path = PurePosixPath(place)
    while path.suffix.lower() in COMPRESSIONS:
        path = path.with_suffix("")
    return path.suffix.lower()


def stem_of(name: str) -> str:
    """A file's name without the suffixes of formats and compressions."""
    path = PurePosixPath(name)
    while path.suffix.lower() in (*FORMATS, *TableSource.suffixes, *COMPRESSIONS, ".txt"):
        path = path.with_suffix("")
    return path.name


def without_query(place: str) -> tuple[str, str]:
    """A place, and the ``?sequence=...`` after the name of a table."""
    head, mark, query = place.rpartition("?")
    if mark and "=" in query and suffix_of(head) in TableSource.suffixes:
        return head, mark + query
    return place, ""


def source_of(place: str, corpus: CorpusSettings, unknown_letters: LetterPolicy, content: SourceContent) -> Source:
    """The source at a path or URL.

    Raises:
        ValueError: sheets, or nucleotides by suffix; the user's class cannot be loaded, or has no such option.
    """
    if extension.is_external(corpus.format):
        return _own(place, corpus, unknown_letters, content)
    suffix = "" if place.startswith(DATASETS) else suffix_of(without_query(place)[0])
    if place.startswith(DATASETS) or suffix in TableSource.suffixes:
        return TableSource(place, suffix, unknown_letters, content)
    if suffix in _SHEETS:
        raise ValueError(f"{place}: sheets of {suffix} files are not read as sources; save the sheet as .csv")
    if suffix in _NUCLEOTIDES:
        raise ValueError(
            f"{place}: {suffix} files hold nucleotides, whose letters would all pass for amino acids; give the "
            "translated proteins (.faa)"
        )
    return FORMATS.get(suffix, FastaSource)(place, unknown_letters, content)


def _own(place: str, corpus: CorpusSettings, unknown_letters: LetterPolicy, content: SourceContent) -> Source:
    from zymogen.settings.toml_file import check

    setting = f"{corpus.section}.format"
    kind = extension.load(setting, corpus.format, RecordFormat, {})  # type: ignore[type-abstract]
    options = check(kind.Options, corpus.format_options, f"{setting}_options")
    stamp = (corpus.format, extension.code_of(corpus)["format"], json.dumps(corpus.format_options, sort_keys=True))
    return kind(place, unknown_letters, content, options, stamp)
