"""Build token stores, look into them, and prove what a run reads.

    python -m data build proteins.fasta.gz
    python -m data stats proteins.fasta.gz

In: a command, sources or a store. Out: text on standard output, exit status 0; 1 from `verify` for a store that is
damaged, 2 for a mistake in the input, 130 when interrupted.
"""

import sys
from collections.abc import Sequence
from importlib import import_module

from data.commands.arguments import parsers
from zymogen.console.safe_text import log, log_error
from zymogen.files.durable import CLOSED, FULL, format_os_error
from zymogen.processes.environment import use_standard_streams, use_writable_caches
from zymogen.settings.origin import use_options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    use_standard_streams(outlives_reader=False)
    use_writable_caches()
    parser, commands = parsers()
    try:
        if arguments and arguments[0] in commands:
            # The command's own parser, as the outer one cannot read options between a command's arguments.
            options = commands[arguments[0]].parse_intermixed_args(arguments[1:])
            # A command is imported when it runs, so that `--help` does not wait for NumPy and DuckDB.
            status = int(import_module(f"data.commands.{arguments[0]}").run(options))
        else:
            parser.parse_args(arguments or ["--help"])
            status = 2
        sys.stdout.flush()
    except ValueError as error:
        log(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        log("interrupted; the same command continues a build where it stopped")
        return 130
    except OSError as error:
        if error.errno not in CLOSED | FULL:
            raise
        log(f"error: {format_os_error(error)}")
        return 2
    finally:
        use_options(None)  # so that errors name settings as a recipe does again
    return status


if __name__ == "__main__":
    sys.excepthook = log_error
    sys.exit(main())
