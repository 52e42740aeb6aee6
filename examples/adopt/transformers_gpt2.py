"""A small GPT-2 of transformers, with random weights, learns to write Python from the modules of the standard library."""

import math
import os
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

import trimtab

SEQUENCE = 64
MODULES = ("argparse.py", "ast.py", "calendar.py", "dataclasses.py", "inspect.py", "tarfile.py")


class Windows(Dataset):
    """The text of some modules, in windows of bytes [SEQUENCE + 1]; each byte is a token."""

    def __init__(self, paths):
        text = b"".join(path.read_bytes() for path in paths)
        self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def __len__(self):
        return (len(self.tokens) - 1) // SEQUENCE

    def __getitem__(self, number):
        return self.tokens[number * SEQUENCE : (number + 1) * SEQUENCE + 1].long()


torch.manual_seed(0)
dataset = Windows(Path(os.__file__).with_name(module) for module in MODULES)
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=SEQUENCE, n_embd=64, n_layer=2, n_head=4))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=10, num_training_steps=100)

session = trimtab.adopt(model, optimizer, "examples/adopt/transformers_gpt2.yaml", scheduler=scheduler)
for step in session.steps():
    for tokens in step.microbatches(dataset):
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        logits = model(input_ids=inputs).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        step.backward(loss, targets.numel())
    if step.number % 25 == 24:
        print(f"step {step.number + 1}  {step.loss / math.log(2):.3f} bits a byte", flush=True)

if session.rank == 0:
    model.save_pretrained("runs/gpt2-from-scratch")
