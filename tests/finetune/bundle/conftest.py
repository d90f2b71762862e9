"""One run for all tests of bundles."""

from pathlib import Path

import pytest

from support.assays.bundled import run_in


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, its recipe and its run."""
    root = tmp_path_factory.mktemp("bundle")
    run_in(root)
    return root
