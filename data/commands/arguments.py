"""The arguments of `python -m data`: one parser for each command.

In: the settings of a recipe, from which options take their texts, defaults and types. Out: parsers. Kept: nothing.
"""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

from data.settings import CorpusSettings, DataSettings, IngestSettings
from zymogen.command_line.parser import PathParser
from zymogen.settings.section import format_setting


def parsers() -> tuple[PathParser, dict[str, PathParser]]:
    """The parser that lists the commands, and the parser of each command."""
    reading = _reading_options()
    parser = PathParser(
        prog="python -m data",
        description="Build token stores from any protein corpus, look into them, and prove what a run reads.",
        epilog="Exit status: 0; 1 from `verify` if the store is damaged; 2 for a mistake in the input; 130 when "
        "interrupted. `python -m data COMMAND --help` shows the options of a command.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    added: dict[str, PathParser] = {}

    def command(name: str, help_line: str, more: str = "", *, reads: bool = False) -> PathParser:
        added[name] = commands.add_parser(
            name,
            help=help_line,
            description=f"{help_line[0].upper()}{help_line[1:]}. {more}",
            parents=[reading] * reads,
        )
        return added[name]

    named = (
        "files, globs and URLs, as data.sources of a recipe takes them, or the folder of a finished store; the store "
        "of sources is reused, or built if it does not exist"
    )

    build = command(
        "build",
        "read sources into a token store",
        "A recipe that names the same sources uses the same store. An interrupted build continues where it stopped.",
        reads=True,
    )
    build.add_argument("sources", nargs="+", metavar="SOURCE", help="as data.sources")
    build.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="folder of the store, which is empty or does not exist yet; replaces --store-dir",
    )

    stats = command("stats", "count records, lengths, residues and duplicates", reads=True)
    stats.add_argument("sources", nargs="+", metavar="STORE_OR_SOURCE", help=named)
    stats.add_argument("--json", action="store_true", help="print one JSON object instead of text")

    verify = command(
        "verify",
        "read a whole store and compare it with its hashes",
        "Exit status 1 and the damaged file's name if they differ; 2 if there is no store.",
    )
    verify.add_argument("store", type=Path, metavar="STORE", help="folder of a finished store")

    head = command("head", "print records as FASTA", "Letters that were read as <unk> are printed as X.", reads=True)
    head.add_argument("sources", nargs="+", metavar="STORE_OR_SOURCE", help=named)
    head.add_argument("-n", type=int, dest="count", metavar="N", help="number of records; default 10")
    head.add_argument("--start", type=int, metavar="K", help="the first record, counted from 0; default 0")
    head.add_argument(
        "--name",
        nargs="+",
        action="extend",
        metavar="ACCESSION",
        help="all records with one of these names: the first word of the header, or the accession in it",
    )

    digest = command("digest", "print one hash of everything that each step of a run reads")
    digest.add_argument("recipe", type=Path, metavar="RECIPE", help="TOML file, such as recipes/quickstart.toml")
    digest.add_argument(
        "overrides", nargs="*", metavar="section.field=value", help="settings that replace the recipe's"
    )
    digest.add_argument("--steps", required=True, metavar="A:B", help="the steps from A to B-1, counted from 0")
    digest.add_argument("--world", type=int, default=1, metavar="W", help="number of ranks; default 1")
    digest.add_argument("--workers", type=int, default=0, metavar="N", help="data.workers of each rank; default 0")

    decontaminate = command(
        "decontaminate",
        "list the training records that are similar to a held-out set",
        "It searches with MMseqs2, and writes a table for data.exclude.",
    )
    decontaminate.add_argument("--training", nargs="+", required=True, metavar="SOURCE", help=named)
    decontaminate.add_argument("--heldout", nargs="+", required=True, metavar="SOURCE", help=named)
    decontaminate.add_argument(
        "--min-identity",
        type=float,
        default=0.3,
        metavar="F",
        help="least share of equal positions; default %(default)s",
    )
    decontaminate.add_argument(
        "--min-coverage",
        type=float,
        default=0.5,
        metavar="F",
        help="least aligned share of a sequence; default %(default)s",
    )
    decontaminate.add_argument("--output", type=Path, required=True, metavar="FILE", help="the table to write")
    _add_setting(decontaminate, DataSettings, "store_dir")
    return parser, added


def _reading_options() -> PathParser:
    """Options of all commands that may read sources: data.store_dir, data.unknown_letters, data.ingest."""
    parser = PathParser(add_help=False)
    group = parser.add_argument_group("how sources are read, as data.* and data.ingest.* of a recipe")
    for name in ("store_dir", "unknown_letters"):
        _add_setting(group, DataSettings, name)
    _add_setting(group, CorpusSettings, "format")
    for field in fields(IngestSettings):
        _add_setting(group, IngestSettings, field.name)
    return parser


def _add_setting(group: argparse._ActionsContainer, settings: type, name: str) -> None:
    """Add a setting of a recipe as an option, with the setting's default and text."""
    field = next(f for f in fields(settings) if f.name == name)
    hint = get_type_hints(settings)[name]
    unit, bounds = field.metadata["unit"], format_setting(field.metadata["bounds"])
    group.add_argument(
        f"--{name.replace('_', '-')}",
        type=Path if unit == "path" else hint if isinstance(hint, type) else str,
        choices=get_args(hint) or None,
        default=field.default,
        metavar=None if get_args(hint) else unit.upper() or "NAME",
        help=f"{field.metadata['doc'].replace('%', '%%')}; {bounds and bounds + ', '}default {field.default}",
    )
