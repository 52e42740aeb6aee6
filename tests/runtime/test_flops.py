"""The catalog's FLOPs against torch's own count of what a forward pass computes."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from trimtab.catalog import Network, network
from trimtab.runtime.decoder import Decoder
from trimtab.runtime.random_keys import KeyedRandom

BATCH, SEQUENCE = 2, 32
SMALL = {"layers": 2, "embed": 64, "heads": 4, "context": 32}


def counted(compute: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        compute()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    "net",
    [
        network("gpt-3m", **SMALL, mlp=96),
        network("llama-3m", **SMALL, mlp=96, kv_heads=4),
        network("llama-3m", **SMALL, mlp=96, kv_heads=4, head_size=24, qk_norm=True, bias="qkv"),
    ],
    ids=lambda net: net.name,
)
def test_a_decoder_computes_what_the_catalog_says(net: Network) -> None:
    """S-PLN-06: a utilisation from other FLOPs than those computed is no utilisation.

    Torch counts every score, which is the full convention.
    """
    with torch.device("meta"):
        decoder = Decoder(net, KeyedRandom())
        tokens = torch.zeros((BATCH, SEQUENCE), dtype=torch.long)
    per_token = net.forward_flops_per_token(SEQUENCE, causal=False)
    assert counted(lambda: decoder(tokens)) == BATCH * SEQUENCE * per_token


@pytest.mark.parametrize("net", [network("llama-3m", **SMALL, mlp=96, kv_heads=1)], ids=lambda net: net.name)
def test_shared_key_heads_save_projections_and_no_scores(net: Network) -> None:
    """S-PLN-07: torch refuses to count grouped attention, so keys are repeated as its kernels do."""
    x_BTD = torch.zeros(BATCH, SEQUENCE, net.embed)

    def layer() -> None:
        q, k, v, out, up, gate, down = (
            torch.zeros(tensor.shape)
            for tensor in net.tensors()
            if tensor.layer == 0 and len(tensor.shape) == 2
        )
        heads = [
            functional.linear(x_BTD, w).unflatten(-1, (-1, net.head_size)).transpose(1, 2) for w in (q, k, v)
        ]
        repeated = [head.repeat_interleave(net.heads // head.shape[1], 1) for head in heads]
        y_BHTE = (repeated[0] @ repeated[1].mT).softmax(-1) @ repeated[2]
        functional.linear(y_BHTE.transpose(1, 2).flatten(2), out)
        functional.linear(functional.linear(x_BTD, up) * functional.linear(x_BTD, gate), down)

    assert counted(layer) == BATCH * SEQUENCE * net.layer_forward_flops(0, SEQUENCE, causal=False)


@pytest.mark.parametrize("layer", [0, 1])
def test_a_window_and_its_mixed_layers_by_query(layer: int) -> None:
    """S-PLN-07: window 8 of 32, and a layer before it that sees everything."""
    net = network("gpt-3m", **SMALL, mlp=96, window=8, full_layers=1)
    seen = net.window_of(layer) or SEQUENCE
    q, k, v = torch.zeros(3, net.heads, SEQUENCE, net.head_size)

    def attention() -> None:
        for query in range(SEQUENCE):
            keys = slice(max(0, query + 1 - seen), query + 1)
            ((q[:, query : query + 1] @ k[:, keys].mT) @ v[:, keys]).sum()

    without = replace(net, window=0, full_layers=0)
    matrices = without.layer_forward_flops(layer, 1, causal=True) - 2 * 2 * net.embed  # one score, one value
    per_sample = SEQUENCE * (net.layer_forward_flops(layer, SEQUENCE, causal=True) - matrices)
    assert counted(attention) == per_sample


@pytest.mark.parametrize("top_k", [1, 2])
def test_tokens_meet_the_experts_they_are_sent_to(top_k: int) -> None:
    """S-PLN-08: counting all 8 experts gives five times the work."""
    net = network("moe-3m", layers=1, top_k=top_k)
    tensors = {t.name.removeprefix("layers.0."): torch.zeros(t.shape) for t in net.tensors() if t.layer == 0}
    tokens_ND = torch.zeros(BATCH * SEQUENCE, net.embed)
    chosen = torch.randint(net.experts, (len(tokens_ND), top_k), generator=torch.Generator().manual_seed(0))

    def experts() -> None:
        functional.linear(tokens_ND, tensors["router.weight"])
        for expert in range(net.experts):
            mine = tokens_ND[(chosen == expert).nonzero()[:, 0]]
            up = functional.linear(mine, tensors["experts.up.weight"][expert])
            gate = functional.linear(mine, tensors["experts.gate.weight"][expert])
            functional.linear(up * gate, tensors["experts.down.weight"][expert])

    attention = 2 * sum(t.numel() for name, t in tensors.items() if name.startswith("attention."))
    scores = 2 * 2 * net.embed  # of one token with itself
    per_token = net.layer_forward_flops(0, 1, causal=True) - attention - scores
    assert counted(experts) == BATCH * SEQUENCE * per_token
