"""A process that loads an exported model with transformers alone; it cannot import this project."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_PROGRAM = """
import json, sys
for name in ("zymogen", "data", "pretrain", "finetune"):
    sys.modules[name] = None  # importing one is now an error, however this project is installed
import numpy as np, torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline
folder, sequence = sys.argv[1:]
model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
encoded = tokenizer(sequence, return_tensors="pt")
with torch.no_grad():
    np.save(folder + "/logits.npy", model(**encoded).logits[0].numpy())
best = pipeline("fill-mask", model=folder, tokenizer=folder)(sequence, top_k=3)
print(json.dumps({"ids": encoded.input_ids[0].tolist(), "class": type(model).__name__, "best": best,
                  "max": tokenizer.model_max_length}))
"""

_COMPLAINTS = ("newly initialized", "MISSING", "UNEXPECTED", "not used when initializing", "trust_remote_code")


def loaded_elsewhere(folder: Path, sequence: str) -> dict[str, Any]:
    """What it says of the model in `folder`: ids, class, best guesses and longest input; it writes `logits.npy`."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(folder), sequence],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [complaint for complaint in _COMPLAINTS if complaint in done.stderr] == []
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said
