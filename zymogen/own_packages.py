"""Our packages, not a file of the user's that has the name of one.

In: names of packages. Out: nothing, or an error. Kept: nothing. `finetune` and `pretrain` run this file by its path, as
the name `zymogen`, too, may be hidden.
"""

import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_PATIENCE_S = 5.0


def require_own(*names: str) -> None:
    """Refuse packages of these names that are not this project's, such as a `data.py` in the working directory.

    `python -m data` beside a `data.py` cannot be refused: Python runs that file itself.

    Raises:
        ImportError: one of the packages is another one, and this is no command.
        SystemExit: the same, of a command.
    """
    for name in names:
        found = find_spec(name)
        place = Path(found.origin).resolve() if found and found.origin else None
        if place == _ROOT / name / "__init__.py":
            continue
        text = (
            f"{place or name} hides the package {name!r} of this program; rename it, start in another folder, or set "
            "PYTHONSAFEPATH=1, with which Python looks for no modules in the working directory"
        )
        if sys.argv[0] != "-m":  # as it is while `python -m` looks for what to run
            raise ImportError(text)
        if os.environ.get("RANK", "0") == "0":
            print(f"error: {text}", file=sys.stderr, flush=True)
        else:
            time.sleep(_PATIENCE_S)  # the launcher ends all ranks when the first has ended, be it before rank 0 spoke
        sys.exit(78)
