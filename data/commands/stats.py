"""`python -m data stats`: what is in a store, in numbers and as a picture, and what could be trained on it."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, fields
from importlib.util import find_spec

from data.commands.histogram import draw_lengths
from data.commands.opening import ingest_of, store_of
from data.commands.statistics import lines, statistics
from data.corpus.lengths import count_lengths
from data.settings import DataSettings, IngestSettings
from data.store.derived import open_for_writing
from zymogen.console.progress import ProgressBar
from zymogen.files.disk_error import write_error
from zymogen.settings.section import listed, require


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
