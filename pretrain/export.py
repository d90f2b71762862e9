"""Write the newest checkpoint of a run as a directory that transformers loads by itself.

    python -m pretrain.export runs/quickstart

In: a run directory with a checkpoint. Out: its `export/`, and a line with the step and the place. `pretrain.ship` does
the work.
"""

import argparse
import sys
from pathlib import Path

from data.disk_error import CLOSED, one_line
from pretrain.run.directory import RunDirectory
from pretrain.ship.export import export


def main(arguments: list[str] | None = None) -> None:
    """Export the newest checkpoint of a run."""
    parser = argparse.ArgumentParser(prog="python -m pretrain.export", description=str(__doc__).split("\n")[0])
    parser.add_argument("run", type=Path, help="run directory")
    folder = parser.parse_args(arguments).run
    try:
        path, step = export(RunDirectory(folder))
    except (ValueError, RuntimeError) as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        if error.errno not in CLOSED:
            raise
        sys.exit(f"error: {one_line(error)}")
    print(f"step {step}: {path}")


if __name__ == "__main__":
    main()
