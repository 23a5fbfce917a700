"""Read a Hugging Face directory with transformers, and print what it computes as JSON.

Runs in an environment of its own, without this project: read_huggingface.py FOLDER TOKENS.npy TEXT
"""

import json
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, tokens, text = sys.argv[1:]
model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
tokenizer = AutoTokenizer.from_pretrained(folder)
with torch.no_grad():
    logits = model(torch.from_numpy(np.load(tokens))).logits
np.save(f"{tokens}.logits.npy", logits.numpy())
encoded = tokenizer.encode(text)
answer = {
    "missing": sorted(map(str, report["missing_keys"])),
    "unexpected": sorted(map(str, report["unexpected_keys"])),
    "encoded": encoded,
    "decoded": tokenizer.decode(encoded),
}
print(json.dumps(answer))  # noqa: T201
