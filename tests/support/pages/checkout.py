"""A copy of the checkout in which a page's commands are typed, and a training made small enough for a test."""

import json
import os
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from pretrain.model.settings import ModelSettings
from pretrain.model.weights.io import save
from support.inputs.whole_models import build_model
from support.launching import lines
from support.pages.shown import recipe_of

HUB_NAME = "facebook/esm2_t6_8M_UR50D"  # no test can reach it: a folder with random weights takes its place

SMALL = {
    "data.crop_tokens": "100",
    "data.bin_tokens": "128",
    "data.bins_per_step": "4",
    "data.validation_fraction": "0.15",
    "schedule.total_tokens": "3000",
    "run.validation_sequences": "40",
}


def overridden(command: str, **overrides: str) -> str:
    return " ".join([command, *(shlex.quote(f"{name}={value}") for name, value in overrides.items())])


def tiny_model(command: str) -> str:
    """The smallest preset with the architecture of a command's recipe."""
    return "modern_60k" if "recipes/modern_" in command else "esm2_60k"


@dataclass
class Checkout:
    """A copy of what git would hand over, with the environment in its place and `your.fasta.gz` in it."""

    folder: Path
    outputs: dict[str | Path, str] = field(default_factory=dict)
    """What each command that ran has printed, and by its directory what the one that trained a run has."""

    def bash(self, command: str, **environment: str) -> str:
        """What a command prints when it is typed in this folder; it must succeed."""
        if command not in self.outputs:
            # `make` hands its own options to its children, and this may run under `make test`.
            clean = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
            clean |= {"PATH": f"{self.folder}/.venv/bin:{os.environ['PATH']}", "PYTHONPATH": str(self.folder)}
            clean |= {"HF_HUB_OFFLINE": "1"} | environment
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.folder,
                env=clean,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            assert done.returncode == 0, f"{command}\nended with {done.returncode}:\n{done.stdout}"
            self.outputs[command] = done.stdout
        return self.outputs[command]

    def train(self, command: str, **overrides: str) -> Path:
        """Run a training command with a small model and few tokens; its run directory, checked."""
        if HUB_NAME in command:
            published = self.folder / "published"
            save(build_model(ModelSettings(preset="esm2_60k"), seed=7), published)
            shrunk = overridden(command, **SMALL, **{"model.init": str(published)}, **overrides)
        else:
            shrunk = overridden(command, **SMALL, **{"model.preset": tiny_model(command)}, **overrides)
        shrunk = shrunk.replace("--num_processes 8", "--num_processes 2")
        output = self.bash(shrunk, OMP_NUM_THREADS="1")
        run = self.folder / recipe_of(shrunk, self.folder).run.directory
        attempts = lines(run / "attempts.jsonl")
        assert attempts[-1]["exit"] == "finished"
        assert attempts[-2]["world_size"] == (2 if "ddp.yaml" in command or "--num_processes" in command else 1)
        (newest,) = sorted((run / "checkpoints").glob("step-*"))[-1:]
        assert json.loads((newest / "trainer.json").read_text())["tokens_seen"] >= 3000
        precision = json.loads((newest / "manifest.json").read_text())["precision"]
        assert precision == "bf16"
        assert f"The model, as transformers loads it: {run.relative_to(self.folder)}/export" in output
        assert (run / "export" / "model.safetensors").is_file()
        self.outputs[run] = output
        return run
