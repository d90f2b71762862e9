"""A place that cannot be written to is refused before anything is read or computed."""

from collections.abc import Callable

import pytest

from finetune.embed import __main__ as embed
from finetune.predict import __main__ as predict
from finetune.proteingym import __main__ as proteingym
from finetune.score import __main__ as score


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (embed.main, "nowhere/model nowhere.fasta /proc/out.parquet"),
        (score.main, "nowhere/model nowhere.csv --target-seq MKTAYIAK -o /proc/out.csv"),
        (predict.main, "nowhere/run nowhere.csv -o /proc/out.csv"),
        (proteingym.main, "nowhere.csv nowhere --model nowhere/run -o /proc/out.csv"),
    ],
)
def test_a_folder_without_the_right_to_write_is_refused_first(
    main: Callable[[list[str]], int], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 78
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: /proc: ")
    assert line.endswith("; get the right to write there, or give another name")
