"""Is attention on pieces the attention of whole samples?"""

from dataclasses import replace

import pytest
import torch

from trimtab.catalog import Network, network
from trimtab.runtime.lowering.attention import Attention, Running, Where, seen_gradients, visible
from trimtab.runtime.lowering.extents import Run

LENGTH = 12


def _network(**fields: object) -> Network:
    return network("gpt-3m", heads=4, kv_heads=2, head_size=8, embed=32, context=16, dropout=0.0, **fields)


def _where(queries: Run, keys: Run, heads: Run | None = None, kv_heads: Run | None = None) -> Where:
    return Where(
        queries=queries,
        keys=keys,
        heads=heads or Run(0, 32, 32),
        kv_heads=kv_heads or Run(0, 16, 16),
    )


def _qkv() -> list[torch.Tensor]:
    chance = torch.Generator().manual_seed(0)
    return [torch.randn((2, LENGTH, width), generator=chance) for width in (32, 16, 16)]


WHOLE = _where(Run(0, LENGTH, LENGTH), Run(0, LENGTH, LENGTH))


def _windowed(where: Where, window: int | None) -> Where:
    return replace(where, window=window)


@pytest.mark.parametrize("window", [1, 5, LENGTH])
def test_a_window_hides_what_lies_before_it(window: int) -> None:
    """A key too many or too few at the far end changes every output a little, and no shape."""
    attention = Attention(_network(positions="rotary"))
    q, k, v = _qkv()
    found = attention(q, k, v, _windowed(WHOLE, window))
    for query in range(LENGTH):
        seen = Run(max(0, query - window + 1), min(window, query + 1), min(window, query + 1))
        alone = _where(Run(query, 1, 1), seen)
        keys = slice(seen.start, seen.start + seen.length)
        expected = attention(q[:, query : query + 1], k[:, keys], v[:, keys], alone)
        torch.testing.assert_close(found[:, query : query + 1], expected)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_cut_queries_see_what_whole_samples_see(positions: str, window: int | None) -> None:
    """A query that counts positions from its own piece would see the wrong keys, rotated wrongly."""
    attention = Attention(_network(positions=positions))
    q, k, v = _qkv()
    whole = attention(q, k, v, _windowed(WHOLE, window))
    for start in (0, 4, 8):
        piece = _windowed(_where(Run(start, 4, 4), Run(0, LENGTH, LENGTH)), window)
        found = attention(q[:, start : start + 4], k, v, piece)
        torch.testing.assert_close(found, whole[:, start : start + 4])


def test_cut_heads_take_their_own_keys() -> None:
    """Query heads on another rank than the keys that they share would attend to strangers."""
    attention = Attention(_network(positions="rotary"))
    q, k, v = _qkv()
    whole = attention(q, k, v, WHOLE)
    right = _where(WHOLE.queries, WHOLE.keys, Run(16, 16, 16), Run(8, 8, 8))
    torch.testing.assert_close(attention(q[..., 16:], k[..., 8:], v[..., 8:], right), whole[..., 16:])


@pytest.mark.parametrize("window", [None, 3])
def test_running_attention_is_attention_in_any_order(window: int | None) -> None:
    """Keys arrive around a ring: last ones first for some ranks, and some that a query may not see at all."""
    attention = Attention(_network())
    q, k, v = _qkv()
    where = _windowed(_where(Run(4, 4, 4), Run(0, LENGTH, LENGTH)), window)
    expected = attention(q[:, 4:8], k, v, where)
    q_BHSE, k_BKUE, v_BKUE = attention.by_head(q[:, 4:8], k, v, where)
    shared = attention.shared_heads(where)
    running = Running.nothing(q_BHSE)
    for start in (8, 4, 0):
        piece = slice(start, start + 4)
        mask = visible(where.queries, Run(start, 4, 4), window)
        running.see(q_BHSE, k_BKUE[:, shared, piece], v_BKUE[:, shared, piece], mask)
    found, _ = running.finished()
    torch.testing.assert_close(found.transpose(1, 2).flatten(2), expected)


@pytest.mark.parametrize("window", [None, 4])
def test_gradients_of_keys_in_pieces_are_those_of_autograd(window: int | None) -> None:
    """Each rank adds its part to gradients that travel on: a wrong part is a wrong key for everyone."""
    attention = Attention(_network())
    q, k, v = (tensor.requires_grad_() for tensor in _qkv())
    output = attention(q, k, v, _windowed(WHOLE, window))
    gradient = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    expected = torch.autograd.grad(output, [q, k, v], gradient)
    q_BHSE, k_BKUE, v_BKUE = (x.detach() for x in attention.by_head(q, k, v, WHOLE))
    shared = attention.shared_heads(WHOLE)
    gradient_BHSE = gradient.unflatten(-1, (4, 8)).transpose(1, 2)
    running = Running.nothing(q_BHSE)
    running.see(q_BHSE, k_BKUE[:, shared], v_BKUE[:, shared], visible(WHOLE.queries, WHOLE.keys, window))
    outputs, log_sums = running.finished()
    of_q = torch.zeros_like(q_BHSE)
    for start in (0, 6):
        piece = slice(start, start + 6)
        parts = seen_gradients(
            gradient_BHSE,
            (gradient_BHSE * outputs).sum(-1),
            log_sums,
            q_BHSE,
            k_BKUE[:, shared, piece],
            v_BKUE[:, shared, piece],
            visible(WHOLE.queries, Run(start, 6, 6), window),
        )
        of_q += parts[0]
        of_v = parts[2].unflatten(1, (2, 2)).sum(2).transpose(1, 2).flatten(2)
        torch.testing.assert_close(of_v, expected[2][:, piece])
    torch.testing.assert_close(of_q.transpose(1, 2).flatten(2), expected[0], rtol=1e-4, atol=1e-5)
