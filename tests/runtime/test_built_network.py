"""Utilisation is of what was built."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from trimtab.catalog import network
from trimtab.runtime.built_network import refuse_another_network
from trimtab.runtime.decoder import Decoder
from trimtab.runtime.errors import RankError
from trimtab.runtime.models import build_model
from trimtab.runtime.random_keys import KeyedRandom
from trimtab.terms import ComputeType

NETWORKS = {
    "gpt": network("gpt-3m", layers=3, embed=32, heads=2, mlp=64, vocab=67, context=16),
    "llama": network("llama-3m", layers=3, embed=32, heads=2, kv_heads=1, head_size=16, mlp=64, vocab=67),
}


def built(name: str) -> Decoder:
    model = build_model(
        NETWORKS[name],
        arguments={},
        seed=0,
        keyed=KeyedRandom(),
        compute=ComputeType.FP32,
        is_cut_into_shares=False,
    )
    assert isinstance(model.module, Decoder)
    refuse_another_network(NETWORKS[name], model.logical_parameters())
    return model.module


def lose_a_layer(decoder: Decoder) -> None:
    """As a stage does whose layers were rounded down."""
    del decoder.layers[2]


def narrow_a_matrix(decoder: Decoder) -> None:
    linear = next(part for part in decoder.layers[1].modules() if isinstance(part, nn.Linear))
    linear.weight = nn.Parameter(torch.zeros(16, linear.weight.shape[1]))


def add_a_matrix(decoder: Decoder) -> None:
    decoder.adapter = nn.Linear(4, 4)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    ("tamper", "said"),
    [
        (lose_a_layer, "layers.2.*is missing"),
        (narrow_a_matrix, r"layers.1.* is \(16, .*and should be"),
        (add_a_matrix, "adapter.*has no place in it"),
    ],
)
def test_a_module_that_is_not_the_network_is_refused(
    name: str, tamper: Callable[[Decoder], None], said: str
) -> None:
    """Throughput and FLOPs would be reported for the larger network that the job names."""
    decoder = built(name)
    tamper(decoder)
    with pytest.raises(RankError, match=said):
        refuse_another_network(NETWORKS[name], decoder.named_parameters())
