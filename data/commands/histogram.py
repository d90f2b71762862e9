"""The picture of a store's lengths.

In: `LengthHistogram`. Out: a PNG file. It names this command in its metadata, so that no other picture is replaced.
Kept: nothing.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.corpus.lengths import LengthHistogram
from zymogen.files.durable import replacing_file

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
