"""Compute with PEFT and a Llama model: read_peft.py BASE TOKENS ADAPTER NEW_ADAPTER.

Runs in an environment with peft, without this project. Writes the logits with ADAPTER to
ADAPTER/logits.npy, and an adapter with random weights of all linear layers, and its logits, to
NEW_ADAPTER.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

base, tokens, adapter, new = map(Path, sys.argv[1:])
inputs = torch.from_numpy(np.load(tokens))
# The adapter's base model is the directory that it names.
read = AutoPeftModelForCausalLM.from_pretrained(adapter).eval()
torch.manual_seed(1)
size = {"r": 3, "lora_alpha": 5, "target_modules": "all-linear", "init_lora_weights": False}
config = LoraConfig(task_type="CAUSAL_LM", **size)
made = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).eval()
made.save_pretrained(new)
with torch.no_grad():
    for folder, model in ((adapter, read), (new, made)):
        np.save(folder / "logits.npy", model(inputs).logits.numpy())
