"""Program that applies adapters to a Llama model with PEFT: BASE TOKENS ADAPTER NEW_ADAPTER.

It runs with the packages of an environment that has peft. It writes the logits with ADAPTER to
ADAPTER/logits.npy, an adapter with random weights for all linear layers to NEW_ADAPTER, and the
logits with that adapter to NEW_ADAPTER/logits.npy.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

base, tokens, adapter, new = map(Path, sys.argv[1:])
inputs = torch.from_numpy(np.load(tokens))
# PEFT loads the base model from the directory that the adapter's configuration names.
with_adapter = AutoPeftModelForCausalLM.from_pretrained(adapter).eval()
torch.manual_seed(1)
size = {"r": 3, "lora_alpha": 5, "target_modules": "all-linear", "init_lora_weights": False}
config = LoraConfig(task_type="CAUSAL_LM", **size)
with_new_adapter = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).eval()
with_new_adapter.save_pretrained(new)
with torch.no_grad():
    for folder, model in ((adapter, with_adapter), (new, with_new_adapter)):
        np.save(folder / "logits.npy", model(inputs).logits.numpy())
