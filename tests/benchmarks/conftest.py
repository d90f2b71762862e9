"""Tests of benchmarks are slow: nobody who changes the program waits for them, and `.ci/run` runs them."""

from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)  # pytest selects by marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All items of a session are given to this hook, those of other folders too."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slow)
