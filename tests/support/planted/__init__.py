"""Secrets that are planted wherever a path or a URL may stand, and the search for them in every byte that was made."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from zymogen.settings.section import is_union
from zymogen.settings.toml_file import _declared

SECRET = "PLANTEDsecret"
"""Is in each planted secret, and nowhere else."""
ALLOWED = "ALLOWEDmarker"
"""Stands in a parameter that may be written: what finds it everywhere would find a secret, too."""
SIGNED = f"file={ALLOWED}&X-Amz-Date=20261127&X-Amz-Signature={SECRET}0"
SIGNED_AGAIN = f"file={ALLOWED}&X-Amz-Date=20261128&X-Amz-Signature={SECRET}1"
ENVIRONMENT = {
    name: f"{SECRET}-{name}"
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HUGGING_FACE_HUB_TOKEN", "GITHUB_TOKEN")
}
URLS = {
    "user": f"https://me:{SECRET}@127.0.0.1:9/x.fasta",
    "user alone": f"https://{SECRET}@127.0.0.1:9/x.fasta",
    "user of a store": f"s3://key:{SECRET}@bucket/x.fasta",
    "signed": f"https://127.0.0.1:9/x.fasta?{SIGNED}",
    "signed by Azure": f"abfs://container/x.fasta?sv=2024-01-01&se=2026-12-01&sp=r&sig={SECRET}%3D",
    "unknown parameter": f"https://127.0.0.1:9/x.fasta?t={SECRET}&file=x",
    "no name": f"https://127.0.0.1:9/x.fasta?{SECRET}",
    "chained": f"simplecache::https://127.0.0.1:9/x.fasta?sig={SECRET}",
    "inside a parameter": f"datasets://json?data_files=https%3A%2F%2F127.0.0.1:9%2Fx.json%3Fsig%3D{SECRET}",
    "with a space": f"https://127.0.0.1:9/x.fasta?query=a b&t={SECRET}",
}


def path_settings(recipe: type) -> Iterator[tuple[str, bool]]:
    """(dotted name, whether it is a list) of each setting that takes any text, so that it may be a path or a URL."""
    for name, _, hint in _declared(recipe):
        kinds = get_args(hint) if is_union(hint) else (hint,)
        if get_origin(hint) is tuple and str in get_args(hint):
            yield name, True
        elif str in kinds:
            yield name, False


def secrets_in(*folders: Path, text: str = "", mark: str = SECRET) -> list[str]:
    """Names and lines that hold a mark, in every file below the folders and in what was printed."""
    places = [str(path) for folder in folders for path in sorted(folder.rglob("*")) if mark in str(path)]
    files = (path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file())
    places += [str(path) for path in files if mark.encode() in path.read_bytes()]
    return places + [line for line in text.splitlines() if mark in line]


def planted(content: dict[str, Any], name: str, value: object) -> dict[str, Any]:
    """The tables of a recipe with another value of one setting, in the first table of a list."""
    *sections, last = name.split(".")
    table: Any = content
    for section in sections:
        table = table.setdefault(section, [{"sources": "synthetic:0"}] if section == "mixture" else {})
        table = table[0] if isinstance(table, list) else table
    table[last] = value
    if "mixture" in sections:
        for other in ("sources", "clusters"):
            content["data"].pop(other, None)
    return content
