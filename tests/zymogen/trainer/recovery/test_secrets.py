"""Keys that are in the environment of a run are in no byte that it writes, whether it fails or ends."""

from pathlib import Path
from typing import Any

import pytest

import zymogen.trainer.loop
from pretrain.__main__ import main
from support.kept_runs import STEPS_12

NAMES = ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GITHUB_TOKEN", "DATABASE_PASSWORD")


@pytest.mark.slow
def test_no_key_of_the_environment_is_written(
    recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    planted = {name: f"planted_{number}_for_{name.lower()}" for number, name in enumerate(NAMES)}
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    train_step = zymogen.trainer.loop.train_step
    words = [str(recipe_in(tmp_path)), *STEPS_12, "run.checkpoint_every=4", 'run.trackers=["tensorboard"]']

    def fails(*arguments: Any, **how: Any) -> Any:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(zymogen.trainer.loop, "train_step", fails)
    assert main(words) == 70
    monkeypatch.setattr(zymogen.trainer.loop, "train_step", train_step)
    assert main(words) == 0
    said = "".join(capfd.readouterr())
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"run.json", "attempts.jsonl", "manifest.json", "rank-00000.jsonl"} <= {path.name for path in written}
    assert any("tfevents" in path.name for path in written)

    def found(text: str) -> list[str]:
        return [path.name for path in written if text.encode() in path.read_bytes()]

    assert "run.json" in found(str(tmp_path))
    assert "rank-00000.jsonl" in found("no kernel")
    for value in planted.values():
        assert value not in said
        assert found(value) == []
