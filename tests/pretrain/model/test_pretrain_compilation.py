"""The processes in which triton's kernels are compiled outlive a signal to all of a group, as long as the run does."""

import os
import subprocess
import sys

import pytest

from support.places import ROOT

PROGRAM = """
import os, signal, time
from pretrain.model import compilation
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS

os.setsid()
heard = []
for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, lambda number, frame: heard.append(number))
compilation.find_spec = lambda name: name  # torch starts them where triton is installed, and so do we
compilation.compile_layers(MaskedLanguageModel(PRESETS["esm2_60k"]).encoder)

from torch._inductor.async_compile import AsyncCompile

pool = AsyncCompile.process_pool()
worker = pool.submit(os.getpid).result(120)
under_way = pool.submit(time.sleep, 1)
for each in (signal.SIGINT, signal.SIGTERM):
    os.killpg(0, each)
under_way.result(30)
later = pool.submit(os.getpid).result(30)
print(sorted(heard) == [2, 15], worker != os.getpid(), later != os.getpid())
"""


@pytest.mark.slow  # ten seconds: two processes import torch, one after the other
def test_what_is_being_compiled_is_compiled_after_a_signal_to_the_group() -> None:
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True"] * 3
