"""A small network learns which of two spirals a point is on."""

import math

import torch
from torch import nn
from torch.nn import functional

STEPS = 200


def batch(positions):
    """The samples at some positions of an endless stream: points [B, 2] and the spiral of each [B]."""
    numbers = torch.arange(positions.start, positions.stop)
    angles = 0.4 + 3 * math.pi * ((numbers * 0.6180339887) % 1)
    spirals = numbers % 2
    turned = angles + math.pi * spirals
    return torch.stack([angles * turned.cos(), angles * turned.sin()], dim=1) / 10, spirals


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)

for number in range(STEPS):
    points, spirals = batch(range(number * 64, number * 64 + 64))
    loss = functional.cross_entropy(model(points), spirals)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if number % 50 == 49:
        print(f"step {number + 1}  loss {loss:.4f}")
