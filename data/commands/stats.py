"""`python -m data stats`: what is in a store, in numbers and as a picture, and what could be trained on it.

In: sources or a store. Out: lengths, composition and duplicates, all exact, as lines or JSON. Kept: the store; a PNG of
the lengths, which names this command in its metadata, so that no other picture is replaced. The sort that finds
duplicates writes about 20 bytes a record into the system's temporary folder (TMPDIR), and removes them.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from importlib.util import find_spec
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.alphabet import TOKENS
from data.commands.build import ingest_of, store_of
from data.corpus.lengths import LengthHistogram, count_lengths
from data.homology import name_table
from data.homology.clusters import open_clusters
from data.settings import DataSettings, IngestSettings
from data.sources.protein import shown
from data.store.build import format_rejected
from data.store.derived import open_for_writing
from data.store.token_store import TokenStore
from zymogen.console.progress import ProgressBar
from zymogen.files.durable import replacing_file, write_error
from zymogen.settings.section import listed, require

QUANTILES = (1, 5, 25, 50, 75, 95, 99)
"""The percentages that are reported."""
LARGEST = 5
"""How many groups of equal sequences are reported."""
SHOWN = 3
"""How many records of each group are listed."""

_BLOCK_RESIDUES = 1 << 22


def statistics(store: TokenStore, lengths: LengthHistogram) -> dict[str, Any]:
    """The statistics of a store as an object for `json.dumps`; shares in 0..1, lengths in residues, records from 0.

    The store is read from beginning to end; `lengths` are those of `count_lengths`.

    Raises:
        ValueError: the store is damaged, or there is no space to sort in.
    """
    duplicates = find_duplicates(store)
    return {
        "store": str(store.folder),
        "fingerprint": store.fingerprint,
        "records": store.num_records,
        "residues": store.total_residues,
        "rejected": store.rejected,
        "unknown_letters": store.unknown_letters,
        "lengths": {
            "min": int(lengths.values[0]),
            "quantiles": {str(percent): lengths.quantile(percent) for percent in QUANTILES},
            "max": int(lengths.values[-1]),
            "mean": lengths.num_residues / lengths.num_records,
        },
        "composition": {
            token: {"count": count, "share": count / store.total_residues}
            for token, count in count_tokens(store).items()
        },
        "distinct_sequences": store.num_records - duplicates["records"],
        "duplicates": duplicates,
    }


def count_tokens(store: TokenStore) -> dict[str, int]:
    """Number of residues of each token that occurs, the most frequent first.

    Raises:
        ValueError: a byte is not a token.
    """
    counts = np.zeros(256, np.int64)
    for start in range(0, store.total_residues, _BLOCK_RESIDUES):
        counts += np.bincount(store.read("tokens.bin", np.uint8, start, _BLOCK_RESIDUES), minlength=256)
    if counts[len(TOKENS) :].any():
        wrong = len(TOKENS) + int(counts[len(TOKENS) :].argmax())
        raise ValueError(
            f"{store.folder}/tokens.bin holds the byte {wrong}, tokens are 0 to {len(TOKENS) - 1}: it is damaged; "
            "`python -m data verify` says more, and a store that is deleted is built again"
        )
    order = np.argsort(-counts, kind="stable")
    return {TOKENS[token]: int(counts[token]) for token in order.tolist() if counts[token]}


def find_duplicates(store: TokenStore) -> dict[str, Any]:
    """Group the records of equal residues.

    Records with the same digest are grouped on disk and then compared residue by residue, so that two sequences that
    only share a digest do not count as equal.

    Returns:
        ``records``: how many equal an earlier one; ``groups``: how many sequences occur more than once; ``largest``:
        the largest groups, at most `LARGEST`, among groups of equal size those that begin first. A group has its
        ``size``, the ``residues`` of its sequence, and the number and header of its first `SHOWN` ``records``.

    Raises:
        ValueError: the temporary folder has no space.
    """
    num_duplicates = num_groups = 0
    largest: list[tuple[int, int, list[int]]] = []
    with (store.folder / "tokens.bin").open("rb") as tokens, (store.folder / "offsets.bin").open("rb") as offsets:
        for _, run in groupby(_sharing_a_digest(store), itemgetter(0)):
            groups: dict[bytes, tuple[int, int, list[int]]] = {}
            for _, record in run:
                start, end = struct.unpack("<QQ", os.pread(offsets.fileno(), 16, 8 * record))
                residues = os.pread(tokens.fileno(), end - start, start)
                size, _, records = groups.get(residues, (0, 0, []))
                groups[residues] = size + 1, end - start, [*records, record][:SHOWN]
            equal = [group for group in groups.values() if group[0] > 1]
            num_groups += len(equal)
            num_duplicates += sum(size - 1 for size, _, _ in equal)
            largest = sorted([*largest, *equal], key=lambda group: (-group[0], group[2]))[:LARGEST]
    shown_groups = [
        {
            **{"size": size, "residues": residues},
            "records": [{"record": record, "header": store.header(record)} for record in records],
        }
        for size, residues, records in largest
    ]
    return {"records": num_duplicates, "groups": num_groups, "largest": shown_groups}


def _sharing_a_digest(store: TokenStore) -> Iterator[tuple[int, int]]:
    """(digest, record) of every record whose digest another record has too, sorted."""

    def no_room(reason: str) -> str:
        return (
            f"{store.folder}: the records cannot be sorted in {tempfile.gettempdir()}: {reason}; it needs some 20 "
            "bytes a record there: free space, or set TMPDIR to another folder"
        )

    with name_table.session(Path(tempfile.gettempdir()), no_room) as connection:
        name_table.register_hashes(connection, open_clusters(store, None).blocks())
        connection.execute("CREATE TABLE digests AS FROM hashes")
        shared = "SELECT hash FROM digests GROUP BY hash HAVING count(*) > 1"
        query = f"FROM digests WHERE hash IN ({shared}) ORDER BY hash, record"
        for digests, records in name_table.batches(connection, query):
            yield from zip(digests.tolist(), records.tolist(), strict=True)


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The statistics as lines of text."""
    lengths, duplicates = found["lengths"], found["duplicates"]
    yield f"store        {found['store']}"
    yield f"fingerprint  {found['fingerprint']}"
    yield f"records      {found['records']:,}"
    if found["rejected"]:
        yield f"left out     {format_rejected(found['rejected'])} (rejected.jsonl)"
    yield f"residues     {found['residues']:,}"
    yield f"length       min {lengths['min']:,}, mean {lengths['mean']:,.1f}, max {lengths['max']:,} residues"
    yield "  quantiles  " + ", ".join(f"{percent} %: {length:,}" for percent, length in lengths["quantiles"].items())
    yield f"distinct     {found['distinct_sequences']:,} sequences"
    share = 100 * duplicates["records"] / found["records"]
    yield f"duplicates   {duplicates['records']:,} records ({share:.2f} %) equal an earlier one"
    for group in duplicates["largest"]:
        yield f"  {group['size']:,} records of one sequence of {group['residues']:,} residues"
        for of_one in group["records"]:
            yield f"    record {of_one['record']}  {shown(of_one['header'])}"
        if group["size"] > len(group["records"]):
            yield f"    and {group['size'] - len(group['records']):,} more"
    yield "composition"
    for token, of_token in found["composition"].items():
        yield f"  {token:<6} {of_token['count']:>20,}  {100 * of_token['share']:8.4f} %"
    if found["unknown_letters"]:
        counted = ", ".join(f"{letter} {times:,}" for letter, times in found["unknown_letters"].items())
        yield f"read as <unk>: {counted}"


_BARS = 60
_SOFTWARE = "zymogen, python -m data stats"


def edges(lengths: LengthHistogram) -> NDArray[np.int64]:
    """Bin edges, whole residues, evenly spaced on a logarithmic axis as far as whole numbers allow.

    Returns:
        (bins + 1,) rising; bin i holds the lengths ``edges[i] <= length < edges[i + 1]``, and each length is in a bin.
    """
    low, high = int(lengths.values[0]), int(lengths.values[-1]) + 1
    return np.unique(np.rint(np.geomspace(low, high, _BARS + 1)).astype(np.int64))


def bars(lengths: LengthHistogram, bin_edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """(bins,) number of records in each bin."""
    return np.histogram(lengths.values, bin_edges, weights=lengths.counts)[0].astype(np.int64)


def draw_lengths(lengths: LengthHistogram, path: Path, *, title: str, crop_tokens: int) -> None:
    """Draw the histogram of lengths, with the median and the longest protein that a crop holds whole.

    Args:
        lengths: how many records have which length.
        path: PNG file to write; it appears whole or not at all.
        title: title of the picture.
        crop_tokens: the longest document; its begin and end token take two of these.

    Raises:
        ValueError: the file cannot be written, or exists and is not a picture that this function drew.
    """
    if path.exists() and not (path.is_file() and _SOFTWARE.encode() in path.read_bytes()):
        raise ValueError(f"{path}: is there, and no picture of this command; choose another place")
    from matplotlib.figure import Figure  # not pyplot, which has a global state and may need a display
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    bin_edges = edges(lengths)
    median, whole = lengths.quantile(50), crop_tokens - 2
    longer = f"{100 * lengths.longer_than(whole):.1f} % of records are longer"
    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.stairs(bars(lengths, bin_edges), bin_edges - 0.5, fill=True, color="#4c78a8")
    axes.axvline(median, color="#222222", label=f"median: {median:,} residues")
    axes.axvline(
        whole,
        color="#e45756",
        linestyle="--",
        label=f"crop of {crop_tokens:,} tokens ({whole:,} residues): {longer}",
    )
    axes.set_xscale("log")
    left, right = min(int(bin_edges[0]), whole) / 2, max(int(bin_edges[-1]), whole) * 2
    axes.set_xlim(left, right)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if right / left < 5000 else (1,), numticks=40))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.tick_params(axis="x", labelsize="small")
    axes.set_xlabel("length in residues (logarithmic)")
    axes.set_ylabel("records per bar")
    axes.set_title(title, fontsize="medium", parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", frameon=False, ncols=2, fontsize="small")
    with replacing_file(path, "choose another place") as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": _SOFTWARE})


def run(options: argparse.Namespace) -> int:
    """Count, draw and print, and return the exit status."""
    if options.png is not None and options.png.suffix != ".png":
        raise ValueError(f"--png is {str(options.png)!r}; the picture is PNG, so write a name that ends in .png")
    require(options.crop_tokens >= 3, "--crop-tokens", options.crop_tokens, "it must be at least 3")

    store = store_of(options)
    with ProgressBar("counting residues and lengths"):
        lengths = count_lengths(store)
        found = statistics(store, lengths)
    path = options.png or open_for_writing(store, "lengths.png")
    # matplotlib can draw only UTF-8, which a file name need not be.
    names = [os.fsencode(os.path.basename(name)).decode("utf-8", "replace") for name in store.facts["sources"]]
    title = f"{listed(names, 1)}: {store.num_records:,} records, {store.total_residues:,} residues"
    try:
        with write_error(path, "choose another place"):
            if options.png is None:
                path.parent.mkdir(parents=True, exist_ok=True)
        draw_lengths(lengths, path, title=title, crop_tokens=options.crop_tokens)
        drawn = str(path)
    except ValueError as error:
        if options.png is not None:
            raise ValueError(f"--png {error}") from None
        path, drawn = None, f"none ({error}); choose its place with --png"
    if options.json:
        print(json.dumps(found | {"picture": str(path) if path else None}, indent=1))
    else:
        print("\n".join([*lines(found), f"picture      {drawn}"]), flush=True)
        _propose(options)
    return 0


def _propose(options: argparse.Namespace) -> None:
    """Print what could be trained on these sequences, if the package that trains is installed."""
    if find_spec("pretrain") is None:  # asked of another process, because nothing here may import it
        return
    if any(os.fsencode(source).decode("utf-8", "replace") != source for source in options.sources):
        return  # no recipe can hold such a name
    settings = {"data.store_dir": options.store_dir, "data.unknown_letters": options.unknown_letters}
    settings |= {f"data.ingest.{name}": value for name, value in asdict(ingest_of(options)).items()}
    words = [*options.sources, *(f"{name}={value}" for name, value in settings.items() if _differs(name, value))]
    print("\nwhat could be trained on it:", flush=True)
    with tempfile.TemporaryDirectory() as folder:  # no run is there, whatever runs/ has
        words.append(f"run.directory={folder}/run")
        subprocess.run([sys.executable, "-m", "pretrain", *words, "--plan", "--untimed"], check=False)


def _differs(name: str, value: object) -> bool:
    of = IngestSettings if name.startswith("data.ingest.") else DataSettings
    default = next(f.default for f in fields(of) if f.name == name.rpartition(".")[2])
    return str(value) != str(default)
