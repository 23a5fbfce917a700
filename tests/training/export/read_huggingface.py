"""Program that reads Hugging Face directories with transformers: TEXT DIRECTORY...

It runs with the packages of an environment that has transformers. The model's inputs are in
`tokens.npy` next to each DIRECTORY. Its outputs are written to `logits.npy` there, and the other
results to `answer.json`.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

text, *folders = sys.argv[1:]
for folder in map(Path, folders):
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = model(torch.from_numpy(np.load(folder.with_name("tokens.npy")))).logits
    np.save(folder.with_name("logits.npy"), logits.numpy())
    encoded = tokenizer.encode(text)
    answer = {
        "missing": sorted(map(str, report["missing_keys"])),
        "unexpected": sorted(map(str, report["unexpected_keys"])),
        "encoded": encoded,
        "decoded": tokenizer.decode(encoded),
    }
    folder.with_name("answer.json").write_text(json.dumps(answer))
