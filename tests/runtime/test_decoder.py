import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from trimtab.catalog import Network, RopeScaling, network
from trimtab.runtime.decoder import (
    IGNORED_TARGET,
    Decoder,
    initial_tensor,
    loss_sum,
    rotation_table,
    token_loss_sum,
)
from trimtab.runtime.random_keys import KeyedRandom
from trimtab.terms import InputError

GPT = network("gpt-3m", layers=2, embed=64, heads=4, mlp=96, context=32, dropout=0.0)
LLAMA = network("llama-3m", layers=2, embed=64, heads=4, kv_heads=2, mlp=96, context=32)
MIXED = network("gpt-3m", layers=1, embed=64, heads=4, kv_heads=1, mlp=96, tied=False, positions="rotary")
QWEN2 = network("llama-3m", layers=1, embed=64, heads=4, kv_heads=2, mlp=96, context=32, bias="qkv")
QWEN3 = network(
    "llama-3m", layers=1, embed=64, heads=4, kv_heads=2, mlp=96, context=32, head_size=24, qk_norm=True
)
STRETCHED = replace(
    LLAMA,
    rope_base=100.0,
    rope_scaling=RopeScaling(factor=8.0, low_factor=1.0, high_factor=4.0, original_context=64),
)
VARIANTS = [
    pytest.param(GPT, id="gpt"),
    pytest.param(LLAMA, id="llama"),
    pytest.param(MIXED, id="rotary with biases"),
    pytest.param(QWEN2, id="biases on queries, keys and values"),
    pytest.param(QWEN3, id="wide heads with normalised queries and keys"),
    pytest.param(STRETCHED, id="scaled frequencies"),
]

SAME_BITS = """
import sys, hashlib, torch
from trimtab.catalog import network
from trimtab.runtime.decoder import Decoder, loss_sum
from trimtab.runtime.random_keys import KeyedRandom

history, first_offset = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
for samples in range(1, history):  # other shapes, allocations and random numbers before the one that counts
    model = Decoder(network("gpt-3m", layers=1), KeyedRandom())
    model.initialize(samples)
    loss_sum(model, torch.randint(256, (samples, 40)), torch.randint(256, (samples, 40)))[0].backward()
for preset in ("gpt-3m", "llama-3m"):
    for compute in (torch.float32, torch.bfloat16):
        keyed = KeyedRandom()
        model = Decoder(network(preset, layers=2, dropout=0.1), keyed)
        model.initialize(3)
        aligned = {p: -(-p.numel() // 16) * 16 for p in model.parameters()}
        flat = torch.zeros(first_offset + sum(aligned.values()))
        flat_grad = torch.zeros_like(flat)
        start = first_offset
        for p, numel in aligned.items():
            view = flat[start : start + p.numel()].view_as(p)
            p.data = view.copy_(p.data)
            p.grad = flat_grad[start : start + p.numel()].view_as(p)
            start += numel
        generator = torch.Generator().manual_seed(5)
        digest = hashlib.sha256()
        for microbatch in range(2):
            batch = torch.randint(256, (8, 129), generator=generator)
            keyed.start_microbatch(seed=0, step=4, share=1, microbatch=microbatch)
            with torch.autocast("cpu", torch.bfloat16, enabled=compute is torch.bfloat16):
                loss, _ = loss_sum(model, batch[:, :-1], batch[:, 1:])
            loss.backward()
            digest.update(loss.detach().numpy().tobytes())
        digest.update(flat_grad[first_offset:].numpy().tobytes())
        assert flat_grad.abs().sum() > 0
        print(preset, compute, digest.hexdigest())
"""


def built(network: Network, seed: int = 0) -> Decoder:
    decoder = Decoder(network, KeyedRandom())
    decoder.initialize(seed)
    return decoder


def tokens(samples: int = 3, length: int = 20) -> torch.Tensor:
    return torch.randint(256, (samples, length), generator=torch.Generator().manual_seed(1))


def reference_logits(
    network: Network, weights: dict[str, torch.Tensor], tokens_BT: torch.Tensor
) -> torch.Tensor:
    """The same network written a second time, plainly: explicit softmax, complex rotations, repeated heads."""

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        if network.norm == "rmsnorm":
            scale = (x.square().mean(-1, keepdim=True) + network.norm_eps).rsqrt()
            return x * scale * weights[f"{name}.weight"]
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + network.norm_eps).rsqrt()
        return centred * scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        y = x @ weights[f"{name}.weight"].T
        return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y

    def frequency(i: int) -> float:
        plain = network.rope_base ** (-2 * i / network.head_size)
        scaling = network.rope_scaling
        if scaling is None:
            return plain
        # As Llama's released code says it: by wavelength, in three branches.
        wavelength = 2 * math.pi / plain
        if wavelength < scaling.original_context / scaling.high_factor:
            return plain
        if wavelength > scaling.original_context / scaling.low_factor:
            return plain / scaling.factor
        smooth = (scaling.original_context / wavelength - scaling.low_factor) / (
            scaling.high_factor - scaling.low_factor
        )
        return (1 - smooth) * plain / scaling.factor + smooth * plain

    def turned(x: torch.Tensor) -> torch.Tensor:
        half = network.head_size // 2
        angles = torch.tensor(
            [[t * frequency(i) for i in range(half)] for t in range(x.shape[1])],
            dtype=torch.float64,
        )
        z = (
            torch.complex(x[..., :half], x[..., half:])
            * torch.polar(torch.ones_like(angles), angles)[:, None]
        )
        return torch.cat((z.real, z.imag), -1)

    def attention(prefix: str, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            linear(f"{prefix}.{w}", x).unflatten(-1, (-1, network.head_size)) for w in ("wq", "wk", "wv")
        )
        if network.qk_norm:
            q, k = norm(f"{prefix}.q_norm", q), norm(f"{prefix}.k_norm", k)
        if network.positions == "rotary":
            q, k = turned(q), turned(k)
        k, v = (t.repeat_interleave(network.heads // network.kv_heads, 2) for t in (k, v))
        scores = torch.einsum("bthe,bshe->bhts", q, k) / math.sqrt(network.head_size)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        probabilities = scores.masked_fill(hidden, -math.inf).softmax(-1)
        return linear(f"{prefix}.wo", torch.einsum("bhts,bshe->bthe", probabilities, v).flatten(2))

    def mlp(prefix: str, x: torch.Tensor) -> torch.Tensor:
        up = linear(f"{prefix}.up", x)
        if network.activation == "swiglu":
            gate = linear(f"{prefix}.gate", x)
            return linear(f"{prefix}.down", gate * torch.sigmoid(gate) * up)
        tanh = torch.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3))
        return linear(f"{prefix}.down", 0.5 * up * (1 + tanh))

    x = weights["embedding.weight"][tokens_BT]
    if network.positions == "learned":
        x = x + weights["positions.weight"][: x.shape[1]]
    for layer in range(network.layers):
        x = x + attention(f"layers.{layer}.attention", norm(f"layers.{layer}.attention_norm", x))
        x = x + mlp(f"layers.{layer}.mlp", norm(f"layers.{layer}.mlp_norm", x))
    head = weights["embedding.weight" if network.tied else "head.weight"]
    return norm("final_norm", x) @ head.T


@pytest.mark.parametrize("network", VARIANTS)
def test_parameters_are_the_catalogs_tensors(network):
    """Plans speak of tensors by the catalog's names: a parameter that differs is placed wrongly."""
    with torch.device("meta"):
        decoder = Decoder(network, KeyedRandom())
    expected = [(tensor.name, tensor.shape) for tensor in network.tensors()]
    assert [(name, tuple(p.shape)) for name, p in decoder.named_parameters()] == expected
    assert [(name, tuple(value.shape)) for name, value in decoder.state_dict().items()] == expected


@pytest.mark.parametrize("network", VARIANTS)
def test_logits_and_gradients_are_those_of_the_plain_network(network):
    """Weights from elsewhere would give another model if one operation were off."""
    decoder = built(network)
    with torch.no_grad():
        for p in decoder.parameters():  # away from zeros and ones, so that every parameter matters
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())), alpha=0.1)
    weights = {name: p.detach().double().requires_grad_() for name, p in decoder.named_parameters()}
    logits, expected = decoder(tokens()), reference_logits(network, weights, tokens())
    torch.testing.assert_close(logits.double(), expected, rtol=1e-5, atol=1e-5)
    logits.logsumexp(-1).sum().backward()
    expected.logsumexp(-1).sum().backward()
    largest = max(value.grad.abs().max().item() for value in weights.values())
    for name, p in decoder.named_parameters():
        # The gradient of a key's bias is zero but for rounding: the model's largest sets the scale.
        torch.testing.assert_close(
            p.grad.double(),
            weights[name].grad,
            rtol=1e-4,
            atol=1e-6 * largest,
            msg=lambda m, n=name: f"{n}: {m}",
        )


def test_the_scaled_variant_has_kept_slowed_and_blended_frequencies():
    """A test in which every frequency falls into one branch says nothing about the others."""
    plain, scaled = rotation_table(replace(STRETCHED, rope_scaling=None)), rotation_table(STRETCHED)
    angles = [table[1, 1, 0].asin() for table in (plain, scaled)]
    ratios = angles[0] / angles[1]
    assert ratios[0].item() == pytest.approx(1.0)
    assert ratios[-1].item() == pytest.approx(8.0, rel=1e-4)
    assert any(1.01 < ratio < 7.99 for ratio in ratios.tolist())


def test_what_can_be_planned_and_not_computed_is_refused():
    """A dense network trained in place of the one asked for would be found out weeks later."""
    with pytest.raises(InputError, match=r"moe-3m has 8 experts in each layer(.|\n)*model.experts: 0"):
        Decoder(network("moe-3m"), KeyedRandom())


@pytest.mark.parametrize("full_layers", [0, 1])
def test_a_query_sees_its_window_and_no_further(full_layers):
    """Token 3 reaches the logits of token 9 through two windows of 4, not those of token 10; a full layer lets it through."""
    decoder = built(network("llama-3m", layers=2, window=4, full_layers=full_layers))
    changed = tokens().clone()
    changed[:, 3] = (changed[:, 3] + 1) % decoder.network.vocab
    with torch.no_grad():
        moved = (decoder(changed) != decoder(tokens())).any(-1).any(0)
    reached = torch.zeros_like(moved)
    reached[3 : 10 if not full_layers else None] = True
    assert torch.equal(moved, reached)


def test_a_window_as_wide_as_the_context_is_no_window():
    """Mistral's first model, in samples of 4096 tokens, is full attention."""
    assert built(network("llama-3m", layers=1, window=32, context=32)).network.window == 32


@pytest.mark.parametrize("preset", [QWEN2, QWEN3])
def test_normalised_queries_and_biases_run_under_autocast(preset):
    """bf16 queries meet fp32 norms there; a warning is an error in whoever has made it one."""
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = loss_sum(built(preset), tokens(), tokens())
    loss.backward()
    assert math.isfinite(loss.item())


@pytest.mark.parametrize("network", VARIANTS)
def test_no_token_sees_a_later_one(network):
    """A leak of the future gives a loss that no use of the model can reach."""
    decoder, before = built(network), tokens()
    after = before.clone()
    after[:, 10] = (after[:, 10] + 1) % 256
    changed = (decoder(before) != decoder(after)).any(-1).any(0)
    assert not changed[:10].any()
    assert changed[10:].all()


def test_the_loss_is_a_sum_over_valid_targets():
    """A mean in each microbatch would weigh tokens by the padding beside them."""
    decoder, targets = built(GPT), tokens().roll(-1, 1)
    targets[:, -1] = targets[0, :12] = IGNORED_TARGET
    loss, num_targets = loss_sum(decoder, tokens(), targets)
    log_p = decoder(tokens()).double().log_softmax(-1)
    valid = targets != IGNORED_TARGET
    picked = log_p.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)[valid]
    assert num_targets == valid.sum().item() == 3 * 20 - 12 - 3
    assert loss.dtype is torch.float32
    assert loss.item() == pytest.approx(-picked.sum().item(), rel=1e-5)


def test_a_microbatch_without_targets_gives_zeros():
    """nan from an empty microbatch would spoil the whole step."""
    decoder = built(GPT)
    loss, num_targets = loss_sum(decoder, tokens(), torch.full((3, 20), IGNORED_TARGET))
    loss.backward()
    assert (loss.item(), num_targets) == (0.0, 0)
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in decoder.parameters())


def test_bf16_logits_are_summed_in_fp32():
    """Token losses added in bf16 lose what a token contributes after some hundred tokens."""
    logits = torch.randn(4, 128, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
    targets = torch.zeros(4, 128, dtype=torch.long)
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = token_loss_sum(logits, targets)
    expected = functional.cross_entropy(logits.double().flatten(0, 1), targets.flatten(), reduction="sum")
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)


def test_initial_values_depend_on_seed_and_name_alone():
    """A rank that draws only its own tensors must draw those of the whole model."""
    decoder = built(GPT, seed=4)
    for name, p in decoder.named_parameters():
        assert torch.equal(p, initial_tensor(GPT, name, tuple(p.shape), seed=4)), name
    assert not torch.equal(built(GPT, seed=5).embedding.weight, decoder.embedding.weight)
    layers = [layer.attention.wq.weight for layer in decoder.layers]
    assert not torch.equal(*layers)


def test_initial_values_are_gpt2s():
    """Residual projections left unscaled make deep networks diverge early."""
    deep = network("gpt-3m", layers=8)
    deviations = {t.name: initial_tensor(deep, t.name, t.shape, seed=0) for t in deep.tensors()}
    assert deviations["layers.3.mlp.up.weight"].std().item() == pytest.approx(0.02, rel=0.02)
    assert deviations["layers.3.mlp.down.weight"].std().item() == pytest.approx(0.005, rel=0.02)
    assert deviations["layers.3.attention.wo.weight"].std().item() == pytest.approx(0.005, rel=0.02)
    assert torch.equal(deviations["final_norm.weight"], torch.ones(256))
    assert not deviations["layers.0.mlp_norm.bias"].any()
    assert not deviations["layers.0.mlp.up.bias"].any()


def test_dropout_repeats_for_a_microbatch_and_rests_in_evaluation():
    """A recomputed share with other masks gives other bits; evaluation with masks gives another loss."""
    keyed = KeyedRandom()
    decoder = Decoder(network("gpt-3m", layers=2, embed=64, heads=4, mlp=96, dropout=0.2), keyed)
    decoder.initialize(0)

    def logits(share: int) -> torch.Tensor:
        keyed.start_microbatch(seed=0, step=0, share=share, microbatch=0)
        return decoder(tokens())

    assert torch.equal(logits(0), logits(0))
    assert not torch.equal(logits(0), logits(1))
    decoder.eval()
    assert torch.equal(logits(0), logits(1))


@pytest.mark.process
def test_a_microbatch_gives_the_same_bits_in_any_process():
    """Survivors recompute a lost share: another bit in one gradient and the run is another run."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", SAME_BITS, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for arguments in ((1, 0), (4, 48))
    ]
    assert outputs[0].count("\n") == 4
    assert outputs[0] == outputs[1]
