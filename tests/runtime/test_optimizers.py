import itertools

import pytest
import torch

from trimtab.plan import ALIGNMENT
from trimtab.runtime.optimizers import OPTIMIZERS, AdamW, Sgd, build_optimizer, is_decayed

SETTINGS = [
    AdamW(lr=1e-2, weight_decay=0.1),
    Sgd(lr=0.1),
    Sgd(lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
]


def vector(numel: int, seed: int) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("numel", [17, 1000, 40_003])
def test_a_cut_vector_gets_the_bits_of_the_whole(settings, numel):
    """Storing states over more ranks would change the weights."""
    whole, pieces = vector(numel, 0), vector(numel, 0)
    cuts = [0, *(cut for cut in (ALIGNMENT, 5 * ALIGNMENT, 63 * ALIGNMENT) if cut < numel), numel]
    spans = list(itertools.pairwise(cuts))
    one = build_optimizer(settings, decayed=[whole], undecayed=[])
    many = build_optimizer(settings, decayed=[pieces[a:b] for a, b in spans], undecayed=[])
    for step in range(3):
        gradient = vector(numel, step + 1)
        one.step([gradient], lr=0.01 * (step + 1))
        many.step([gradient[a:b] for a, b in spans], lr=0.01 * (step + 1))
    assert torch.equal(whole, pieces)
    for name, (state,) in one.state_tensors().items():
        assert torch.equal(state, torch.cat(many.state_tensors()[name])), name


@pytest.mark.parametrize("settings", SETTINGS)
def test_weights_are_those_of_torchs_own_optimizer(settings):
    """A user who compares with a loop of their own must find the same weights."""
    matrix, bias = vector(64, 0), vector(32, 1)
    ours = build_optimizer(settings, decayed=[matrix], undecayed=[bias])
    theirs = [torch.nn.Parameter(vector(64, 0)), torch.nn.Parameter(vector(32, 1))]
    groups = [
        {"params": theirs[:1], "weight_decay": settings.weight_decay},
        {"params": theirs[1:], "weight_decay": 0.0},
    ]
    if isinstance(settings, AdamW):
        reference = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-8, fused=True)
    else:
        reference = torch.optim.SGD(
            groups, lr=0.01, momentum=settings.momentum, nesterov=settings.nesterov, fused=True
        )
    for step in range(4):
        gradients = [vector(64, 10 + step), vector(32, 20 + step)]
        ours.step(gradients, lr=0.01)
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()
        reference.step()
    assert torch.equal(matrix, theirs[0].detach())
    assert torch.equal(bias, theirs[1].detach())


@pytest.mark.parametrize("settings", SETTINGS)
def test_an_optimizer_with_loaded_states_goes_on_with_the_same_bits(settings):
    """A resumed run that forgets its step count corrects Adam's bias twice."""
    straight = vector(100, 0)
    first = build_optimizer(settings, decayed=[straight], undecayed=[])
    for step in range(2):
        first.step([vector(100, step + 1)], lr=0.01)
    resumed = straight.clone()
    second = build_optimizer(settings, decayed=[resumed], undecayed=[])
    for name, (state,) in first.state_tensors().items():
        second.state_tensors()[name][0].copy_(state)
    second.num_steps = first.num_steps
    for optimizer in (first, second):
        optimizer.step([vector(100, 3)], lr=0.01)
    assert first.num_steps == second.num_steps == 3
    assert torch.equal(straight, resumed)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_rank_without_elements_takes_the_step(settings):
    """With more ranks than pieces a rank owns nothing and must still follow."""
    optimizer = build_optimizer(settings, decayed=[torch.empty(0)], undecayed=[])
    optimizer.step([torch.empty(0)], lr=0.1)
    assert optimizer.num_steps == 1


def test_only_matrices_decay():
    """Decaying norms and biases pulls them from one and from zero for nothing."""
    assert is_decayed((256, 64))
    assert not is_decayed((256,))
    matrix, bias = torch.ones(16), torch.ones(16)
    optimizer = build_optimizer(AdamW(lr=0.1, weight_decay=0.5), decayed=[matrix], undecayed=[bias])
    optimizer.step([torch.zeros(16), torch.zeros(16)], lr=0.1)
    assert torch.equal(bias, torch.ones(16))
    assert matrix.max().item() == pytest.approx(0.95)


def test_every_optimizer_has_the_job_files_name():
    """A name that the job file accepts and nothing reads would fail after the launch."""
    assert set(OPTIMIZERS.values()) == {type(settings) for settings in SETTINGS}
