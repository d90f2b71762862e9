"""Options of commands that score proteins: which proteins, and in which type.

In: a parser. Out: its options. State: none; torch is not imported.
"""

import argparse

from zymogen.command_line.parser import positive


def add_evaluation_set_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which proteins are scored, and in which type."""
    add = parser.add_argument
    add("--data", nargs="+", metavar="WHAT", help="a run, whose held-out proteins are scored, or sources of proteins")
    add("--sequences", type=positive, metavar="N", help="most proteins, chosen by hash; that of the run, or 2,000")
    add("--crop-tokens", type=_crop, metavar="N", help="most tokens of a protein; that of the run, or 1,024")
    add("--compute", choices=["float32", "bfloat16"], default="float32", help="type that the model computes in")
    add("--store-dir", metavar="FOLDER", help="where token stores are kept; that of the run, or runs/stores")


def _crop(text: str) -> int:
    if positive(text) < 3:
        raise argparse.ArgumentTypeError(f"got {text!r}; begin, one residue and end are 3 tokens")
    return int(text)
