"""A program that loads an exported model with transformers alone; it cannot import this project."""

FOREIGN_PROCESS = """
import json, sys
for name in ("data", "pretrain", "finetune"):
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
