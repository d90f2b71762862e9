"""Write the newest checkpoint of a run as a directory that transformers loads by itself.

    python -m pretrain.export runs/quickstart

In: a run directory with a checkpoint. Out: its `export/`, and a line with the step and the place; exit status 2 for
a mistake in the input. `pretrain.ship` does the work.
"""

import argparse
import sys
from pathlib import Path

from data.disk_error import CLOSED, one_line
from pretrain.run.directory import RunDirectory
from pretrain.ship.export import export


def main(arguments: list[str] | None = None) -> int:
    """Export the newest checkpoint of a run; the exit status, 2 for a mistake in the input."""
    parser = argparse.ArgumentParser(prog="python -m pretrain.export", description=str(__doc__).split("\n")[0])
    parser.add_argument("run", type=Path, help="run directory")
    folder = parser.parse_args(arguments).run
    try:
        path, step = export(RunDirectory(folder))
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except OSError as error:
        if error.errno not in CLOSED:
            raise
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 1
    print(f"step {step}: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
