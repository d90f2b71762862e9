"""The file in which a failed process tells its launcher why, so that the launcher's last words are ours.

Accelerate starts several processes through torchrun, which prints forty lines about the first one that fails, after
that process has ended. It ends them with what this file holds. A launcher that has no such file (of a single process)
is told by nothing but the exit status.

In: the error's line. Out: nothing. Kept: the file that torchrun names in TORCHELASTIC_ERROR_FILE, until it has ended.
"""

import json
import os
import time
from contextlib import suppress
from pathlib import Path

from data.safe_text import printable, redacted

VARIABLE = "TORCHELASTIC_ERROR_FILE"


def tell_launcher(line: str) -> None:
    """Have the launcher, if it is torchrun, print `line` at the end of what it prints.

    The file is there whole or not at all: torchrun fails in a way of its own if it cannot read it.
    """
    if not (name := os.environ.get(VARIABLE)):
        return
    path = Path(name)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    # Torchrun writes "traceback : " before a message, and the process whose time is the earliest comes last.
    content = {"message": f"none\n\n{printable(redacted(line))}", "timestamp": int(time.time())}
    with suppress(OSError):
        unfinished.write_text(json.dumps(content))
        unfinished.replace(path)
