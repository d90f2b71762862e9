"""Small JSON files beside what was derived: splits, clusters, exclusions, indices of plans.

In: a path, or a folder and what fills it. Out: the file's content. Kept: files that are written whole or not at all.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from data.store import derived
from zymogen.files.disk_error import write_error
from zymogen.files.durable import new_dir, replacing_file


def read(path: Path, names: Iterable[str], delete: Path) -> dict[str, Any]:
    """The content of a JSON file that this package wrote.

    Args:
        path: the file.
        names: names of the fields that it must have.
        delete: what to delete so that it is derived again: the folder that it describes, or the file itself.

    Raises:
        ValueError: it is missing, cannot be read, or was cut or changed; the message names the file and the remedy.
    """
    remedy = derived.remedy(delete)
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; {remedy}") from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}; make it readable for this user") from None
    except ValueError as error:
        raise ValueError(f"{path} is no whole JSON ({error}): it was cut short or written to; {remedy}") from None
    missing = [name for name in names if not isinstance(content, dict) or name not in content]
    if missing:
        raise ValueError(f"{path} has no {', '.join(missing)}: it is damaged, or of another version; {remedy}")
    return dict(content)


def kept(path: Path, names: Iterable[str], derive: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """The facts about what lies in a folder, which is derived if it is not there yet.

    Args:
        path: the file of the facts, in that folder.
        names: names of the fields that it must have.
        derive: fills a folder, which takes the place of the one of `path`, and returns the facts about it.

    Raises:
        ValueError: as of `read` and `write`, or `derive` raises it.
    """
    if not path.parent.is_dir():
        with new_dir(path.parent) as building:
            (building / path.name).write_text(json.dumps(derive(building), indent=1))
    return read(path, names, path.parent)


def write(path: Path, text: str) -> None:
    """Write or replace a JSON file; its folder is made if it does not exist.

    Raises:
        ValueError: it cannot be written, for want of permission or space.
    """
    with write_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing_file(path) as temporary:
        temporary.write_text(text)
