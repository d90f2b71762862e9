"""`python -m data verify`: every file of a store, compared with its hash."""

import argparse

from data.store.token_store import FACTS, TokenStore
from zymogen.console.progress import ProgressBar
from zymogen.console.safe_text import log


def run(options: argparse.Namespace) -> int:
    """Compare the files of a store with their hashes, and return the exit status."""
    if not (options.store / FACTS).is_file():
        raise ValueError(f"{options.store} is no finished token store: it has no {FACTS}")
    store = TokenStore(options.store)
    try:
        with ProgressBar(f"comparing {options.store} with its hashes"):
            store.verify()
    except ValueError as error:
        log(f"damaged: {error}")
        return 1
    for name, of_file in store.facts["files"].items():
        print(f"ok  {name:<18} {of_file['bytes']:>20,} bytes")
    print(f"ok: {store.num_records:,} records, fingerprint {store.fingerprint}")
    return 0
