import pytest
import torch
from torch import nn
from torch.nn import functional

from trimtab.catalog import network
from trimtab.runtime.decoder import IGNORED_TARGET
from trimtab.runtime.models import Model, build_model, refuse_batch_statistics
from trimtab.runtime.random_keys import KeyedRandom
from trimtab.terms import ComputeType, InputError

SOURCE = """
import torch
from torch import nn
from torch.nn import functional

class Logits(nn.Module):
    def __init__(self, width: int = 8):
        super().__init__()
        self.table = nn.Embedding(256, width)
        self.head = nn.Linear(width, 256, bias=False)
    def forward(self, tokens):
        return self.head(self.table(tokens))

class SumAndCount(Logits):
    def forward(self, tokens, targets):
        logits = super().forward(tokens).float().flatten(0, 1)
        loss = functional.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum")
        return loss, (targets != -100).sum()

class Tied(Logits):
    def __init__(self):
        super().__init__()
        self.head.weight = self.table.weight

class Mean(Logits):
    def forward(self, tokens, targets):
        return super().forward(tokens).mean()

class MeanCount(Logits):
    def forward(self, tokens, targets):
        return super().forward(tokens).sum(), 3.5

class Flat(Logits):
    def forward(self, tokens):
        return super().forward(tokens).flatten(0, 1)

class Greedy(Logits):
    def forward(self, tokens, targets, mask):
        return super().forward(tokens)

class Needy(Logits):
    def __init__(self, width: int, depth: int):
        super().__init__(width)

class Batched(Logits):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))

class Other:
    pass
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / "user_models.py").write_text(SOURCE)
    (tmp_path / "user_broken.py").write_text("import a_package_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)


def build(source, compute=ComputeType.FP32, seed=0, shares=True, **arguments) -> Model:
    return build_model(
        source,
        arguments=arguments,
        seed=seed,
        keyed=KeyedRandom(),
        compute=compute,
        is_cut_into_shares=shares,
    )


def microbatch() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(256, (3, 12), generator=torch.Generator().manual_seed(0))
    targets = tokens.roll(-1, 1)
    targets[:, -1] = IGNORED_TARGET
    return tokens, targets


@pytest.mark.parametrize("name", ["Logits", "SumAndCount", "Tied"])
def test_both_contracts_give_the_sum_and_the_count(user_module, name):
    """Whichever contract a user picks, the loss has one denominator."""
    model = build(f"user_models:{name}")
    tokens, targets = microbatch()
    loss, num_targets = model.loss_sum(tokens, targets)
    table, head = model.module.table.weight, model.module.head.weight
    logits = (table[tokens] @ head.T).flatten(0, 1)
    assert num_targets == 33
    assert type(num_targets) is int
    assert loss.item() == pytest.approx(
        functional.cross_entropy(logits, targets.flatten(), reduction="sum").item(), rel=1e-5
    )


def test_a_tied_parameter_counts_once(user_module):
    """Counted twice, it would be clipped, decayed and saved twice."""
    assert [name for name, _ in build("user_models:Tied").logical_parameters()] == ["table.weight"]
    preset = build(network("gpt-3m", layers=1))
    assert [name for name, _ in preset.logical_parameters()] == [
        tensor.name for tensor in network("gpt-3m", layers=1).tensors()
    ]


def _shares_gradient(model: Model, num_microbatches: int) -> torch.Tensor:
    """Of a tied matrix, over a share."""
    model.module.zero_grad()
    model.begin_share()
    for number in range(num_microbatches):
        tokens, targets = microbatch()
        loss, _ = model.loss_sum((tokens + number) % 256, targets)
        loss.backward()
    model.end_share()
    return model.module.embedding.weight.grad.clone()


TIED = network("gpt-3m", layers=1, embed=32, heads=2, mlp=64, dropout=0.0)


def test_a_tied_matrix_gets_what_both_of_its_uses_add_each_added_up_apart():
    """Ranks of a pipeline have one use each: added microbatch by microbatch, a plan would have other bits."""
    found = _shares_gradient(build(TIED), 3)
    alone = [build(TIED) for _ in range(2)]
    for model in alone:
        model.begin_share()
        for number in range(3):
            tokens, targets = microbatch()
            model.loss_sum((tokens + number) % 256, targets)[0].backward()
    embedding = alone[0].module.embedding.weight.grad
    alone[1].module.embedding.weight.grad.zero_()
    alone[1].end_share()
    head = alone[1].module.embedding.weight.grad
    assert head.abs().sum() > 0
    assert torch.equal(found, embedding + head)


def test_a_share_that_was_broken_off_leaves_nothing():
    """Half of it would be in the next share, and in the weights for ever."""
    model = build(TIED)
    model.begin_share()
    model.loss_sum(*microbatch())[0].backward()
    assert torch.equal(_shares_gradient(model, 2), _shares_gradient(build(TIED), 2))


def test_bf16_computes_products_in_bf16_and_the_loss_in_fp32(user_module):
    """A compute type that is ignored costs the user the speed that was paid for."""
    for source in (network("gpt-3m", layers=1), "user_models:Logits"):
        exact, _ = build(source).loss_sum(*microbatch())
        rounded, _ = build(source, ComputeType.BF16).loss_sum(*microbatch())
        assert rounded.dtype is torch.float32
        assert rounded.item() != exact.item()
        assert rounded.item() == pytest.approx(exact.item(), rel=1e-2)


def test_initial_values_derive_from_the_seed_alone(user_module):
    """Ranks that start from other weights train other models."""
    for source in (network("gpt-3m", layers=1), "user_models:Logits"):
        torch.manual_seed(1)
        first = build(source)
        torch.manual_seed(2)
        state = torch.get_rng_state()
        second = build(source)
        assert torch.equal(torch.get_rng_state(), state)
        for (name, a), (_, b) in zip(first.logical_parameters(), second.logical_parameters(), strict=True):
            assert torch.equal(a, b), name
        other = build(source, seed=1).logical_parameters()[0][1]
        assert not torch.equal(first.logical_parameters()[0][1], other)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("user_models.Logits", "not of the form module:Class"),
        ("user_modles:Logits", "no module 'user_modles'"),
        ("user_models.deeper:Logits", "no module 'user_models.deeper'"),
        ("user_broken:Logits", "imports 'a_package_that_nobody_has', which is not installed"),
        ("user_models:Logit", "Did you mean 'Logits'?"),
        ("user_models:Transformer", "It holds Logits, SumAndCount"),
        ("user_models:Other", "must be a torch.nn.Module class"),
        ("user_models:Needy", r"missing a required argument: 'width'\n  given: nothing; the class takes \(width"),
        ("user_models:Greedy", "must take \\(tokens\\) or \\(tokens, targets\\)"),
        ("user_models:Batched", "block.1: BatchNorm1d"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_used_is_refused_with_its_reason(user_module, name, said):
    """A traceback from inside torch tells a user nothing about the job file."""
    with pytest.raises(InputError, match=said):
        build(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Mean", r"returned a tensor \[\]; it must return logits \[3, 12, vocab\]"),
        ("MeanCount", r"returned \(a tensor \[\], a float\)"),
        ("Flat", r"returned a tensor \[36, 256\]"),
    ],
)
def test_a_result_outside_the_contract_is_refused(user_module, name, said):
    """A mean taken for a sum trains with a learning rate that nobody chose."""
    with pytest.raises(InputError, match=said):
        build(f"user_models:{name}").loss_sum(*microbatch())


def test_batch_statistics_are_allowed_without_shares(user_module):
    """A user who gave up same bits may normalise over the batch."""
    assert isinstance(build("user_models:Batched", shares=False).module, nn.Module)


@pytest.mark.parametrize(
    ("module", "is_refused"),
    [
        (nn.BatchNorm2d(3, track_running_stats=False), True),
        (nn.InstanceNorm1d(3, track_running_stats=True), True),
        (nn.InstanceNorm1d(3), False),
        (nn.GroupNorm(1, 3), False),
    ],
)
def test_only_what_looks_over_the_batch_is_refused(module, is_refused):
    """A norm over one sample is cut into shares without harm; refusing it would be a nuisance."""
    if is_refused:
        with pytest.raises(InputError, match="the model itself"):
            refuse_batch_statistics(module)
    else:
        refuse_batch_statistics(module)
