"""One run for all tests of bundles."""

from pathlib import Path

import pytest

from support.assays.bundled import run_in


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, its recipe and its run."""
    root = tmp_path_factory.mktemp("bundle")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(root))  # without MMseqs2: relatives are counted by words, which takes no second
        run_in(root)
    return root
