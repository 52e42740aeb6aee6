"""A Llama trained by a loop of plain torch on one device, written by hand: what `decoder.py` is measured against.

Fused AdamW, clipping, autocast, one microbatch after the other; no word of Trimtab in it.
"""

import argparse
import contextlib
import json
import resource
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

LR, CLIP = 1e-3, 1.0
BACKENDS = {
    "auto": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


def main() -> None:
    """Train, and write when each step began and ended, and the memory at its peak."""
    options = parse()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = torch.device(options.device)
    with device:
        model = Llama(options)
    if options.compile:
        for layer in model.layers:
            layer.compile()
    optimizer = build_optimizer(model)
    data = np.frombuffer(
        b"".join(path.read_bytes() for path in sorted(Path(options.text).iterdir())), np.uint8
    )
    positions = np.random.default_rng(0)
    times_ns = []
    backend = BACKENDS[options.attention]
    with sdpa_kernel(backend) if backend is not None else contextlib.nullcontext():
        for _ in range(options.steps):
            start_ns = time.monotonic_ns()
            starts = positions.integers(0, len(data) - options.sequence - 1, options.batch)
            rows = np.stack([data[start : start + options.sequence + 1] for start in starts])
            train_step(
                model, optimizer, torch.from_numpy(rows.astype(np.int64)).to(device), options, device.type
            )
            if device.type != "cpu":
                torch.accelerator.synchronize()
            times_ns.append((start_ns, time.monotonic_ns()))
    peak = (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if device.type == "cpu"
        else torch.accelerator.max_memory_allocated()
    )
    Path(options.out).write_text(json.dumps({"times_ns": times_ns, "peak_bytes": peak}), encoding="utf-8")


def train_step(
    model: "Llama",
    optimizer: torch.optim.Optimizer,
    rows: Tensor,
    options: argparse.Namespace,
    device: str,
) -> None:
    """One optimizer step over all microbatches."""
    autocast = (
        torch.autocast(device, torch.bfloat16) if options.compute == "bf16" else contextlib.nullcontext()
    )
    pieces = torch.split(rows, options.microbatch)
    for piece in pieces:
        with autocast:
            logits = model(piece[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), piece[:, 1:].flatten()) / len(
                pieces
            )
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Fused AdamW; matrices decay."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), fused=True)


class Llama(nn.Module):
    """Embedding, layers, a head of its own."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.embedding = nn.Embedding(options.vocab, options.embed)
        self.layers = nn.ModuleList(Layer(options) for _ in range(options.layers))
        self.norm = nn.RMSNorm(options.embed, eps=1e-5)
        self.head = nn.Linear(options.embed, options.vocab, bias=False)
        for parameter in self.parameters():
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, 0.0, 0.02)
        size = options.embed // options.heads
        frequencies = 10000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(options.sequence), frequencies)
        self.register_buffer("rotation", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        x = self.embedding(tokens)
        rotation = torch.view_as_real(self.rotation)[None, : tokens.shape[1], None]
        for layer in self.layers:
            x = layer(x, rotation)
        return self.head(self.norm(x))


class Layer(nn.Module):
    """Attention and a gated MLP, each behind a norm."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.heads, self.kv_heads = options.heads, options.kv_heads
        embed, size = options.embed, options.embed // options.heads
        self.attention_norm = nn.RMSNorm(embed, eps=1e-5)
        self.q = nn.Linear(embed, embed, bias=False)
        self.kv = nn.Linear(embed, 2 * options.kv_heads * size, bias=False)
        self.o = nn.Linear(embed, embed, bias=False)
        self.mlp_norm = nn.RMSNorm(embed, eps=1e-5)
        self.up_gate = nn.Linear(embed, 2 * options.mlp, bias=False)
        self.down = nn.Linear(options.mlp, embed, bias=False)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """The residual stream after this layer."""
        normed = self.attention_norm(x)
        q = turned(self.q(normed).unflatten(-1, (self.heads, -1)), rotation)
        k, v = self.kv(normed).unflatten(-1, (2 * self.kv_heads, -1)).chunk(2, dim=2)
        y = functional.scaled_dot_product_attention(
            q.transpose(1, 2),
            turned(k, rotation).transpose(1, 2),
            v.transpose(1, 2),
            is_causal=True,
            enable_gqa=self.heads != self.kv_heads,
        )
        x = x + self.o(y.transpose(1, 2).flatten(2))
        up, gate = self.up_gate(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


def turned(x: Tensor, rotation: Tensor) -> Tensor:
    """Heads [B, T, H, E] turned by their positions, in fp32."""
    cos, sin = rotation.unbind(-1)
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).type_as(x)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("layers", "embed", "heads", "kv_heads", "mlp", "vocab"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("batch", "microbatch", "sequence", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--compute", choices=("fp32", "bf16"), required=True)
    parser.add_argument("--attention", choices=BACKENDS, default="auto")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--text", required=True)
    parser.add_argument("--out", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
