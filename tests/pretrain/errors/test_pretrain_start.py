"""While a command imports torch, Python looks for no garbage; afterwards it does, but not among what was imported."""

import gc
import sys

import pytest

from pretrain.engine.command import importing_torch


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not imported it."""
    monkeypatch.delitem(sys.modules, "torch")


@pytest.mark.usefixtures("without_torch")
def test_what_is_imported_is_not_looked_through() -> None:
    frozen = gc.get_freeze_count()
    with importing_torch():
        assert not gc.isenabled()
        imported = [[number] for number in range(2_000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= frozen + len(imported)


@pytest.mark.usefixtures("without_torch")
def test_an_import_that_fails_leaves_the_collector_on() -> None:
    with pytest.raises(ImportError), importing_torch():
        raise ImportError("libcudart.so.12")
    assert gc.isenabled()


def test_objects_of_another_program_are_collected_as_before() -> None:
    frozen = gc.get_freeze_count()
    with importing_torch():
        assert gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen


@pytest.mark.usefixtures("without_torch")
def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with importing_torch():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
