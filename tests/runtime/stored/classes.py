"""Classes as users write them, each with something that makes storing it in pieces harder."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

VOCAB = 37


class Layer(nn.Module):
    """A residual block; sizes that pieces of 16 elements do not divide, a number alone, biases."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width + 1)
        self.down = nn.Linear(2 * width + 1, width, bias=False)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.down(functional.gelu(self.up(self.norm(x))))


class Plain(nn.Module):
    """Tied head, a buffer that is constant."""

    def __init__(self, width: int = 12, layers: int = 3) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, width)
        self.layers = nn.ModuleList([Layer(width) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCAB, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("shift", torch.linspace(-1, 1, width))

    def run_layers(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) + self.shift
        x = self.run_layers(torch.cumsum(x, dim=1) / 8)
        return self.head(self.norm(x))


class Recomputed(Plain):
    """Activations are computed again in the backward pass."""

    def run_layers(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


class RecomputedReentrant(Plain):
    """The same in torch's older way: a backward pass inside the backward pass."""

    def run_layers(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=True)
        return x


class Repeated(Plain):
    """Every layer is used twice; the second use comes after all the others."""

    def run_layers(self, x: Tensor) -> Tensor:
        for layer in (*self.layers, *self.layers):
            x = layer(x)
        return x


class Tied(Plain):
    """Two layers share a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[2].up.weight = self.layers[0].up.weight


class Routed(Plain):
    """Which layers are used depends on the samples: on some ranks a layer has no gradient."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) + self.shift
        x = self.layers[0](x)
        if int(tokens[0, 0]) % 2:
            x = self.layers[1](x)
        return self.head(self.norm(self.layers[2](x)))


class Adapted(Plain):
    """Frozen matrices with small trained ones beside them."""

    def __init__(self) -> None:
        super().__init__()
        for layer in self.layers:
            layer.up.weight.requires_grad_(False)
            layer.down.weight.requires_grad_(False)


class Named(nn.Module):
    """Layers are dictionaries of parts, which are never called themselves."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, width)
        self.layers = nn.ModuleList(
            [nn.ModuleDict({"norm": nn.LayerNorm(width), "mix": nn.Linear(width, width)}) for _ in range(3)]
        )
        self.head = nn.Linear(width, VOCAB)

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.table(tokens)
        for layer in self.layers:
            x = x + torch.tanh(layer["mix"](layer["norm"](x)))
        logits = self.head(x).flatten(0, 1)
        loss = functional.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum")
        return loss, (targets != -100).sum()


class Peeking(Plain):
    """Uses a layer's matrix outside of the layer."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) + self.layers[1].up.weight.square().sum()


class Counting(Plain):
    """Keeps a running mean, as batch norm does."""

    def forward(self, tokens: Tensor) -> Tensor:
        logits = super().forward(tokens)
        with torch.no_grad():
            self.shift.mul_(0.9)
        return logits


class Balancing(Plain):
    """A layer leaves a second loss on itself, which the backward pass meets before what the layer returned."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[0] = Weighing(12)

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = super().forward(tokens).flatten(0, 1)
        loss = functional.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum")
        return loss + 0.1 * self.layers[0].weighed, (targets != -100).sum()


class Weighing(Layer):
    """A layer with a side output."""

    def forward(self, x: Tensor) -> Tensor:
        self.weighed = self.up(x).square().sum()
        return super().forward(x)


class Recurrent(Plain):
    """Parts that keep their weights a second time."""

    def __init__(self, width: int = 12) -> None:
        super().__init__(width)
        self.layers = nn.ModuleList([Looping(width) for _ in range(2)])


class Looping(nn.Module):
    """A recurrent layer; the tensors of torch's own are listed apart from its parameters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.loop = nn.GRU(width, width, batch_first=True)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.loop(self.norm(x))[0]


class Giving(Plain):
    """A layer returns its own parameter."""

    def run_layers(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            shifted, shift = layer(x)
            x = shifted + shift
        return x

    def __init__(self, width: int = 12) -> None:
        super().__init__(width)
        self.layers = nn.ModuleList([Shifting(width) for _ in range(2)])


class Shifting(nn.Module):
    """Gives a shift back instead of adding it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(self.mix(x)), self.shift


class Overwriting(Plain):
    """Changes in place what its backward pass needs."""

    def run_layers(self, x: Tensor) -> Tensor:
        y = torch.tanh(super().run_layers(x))
        return y.mul_(2)


class Listening(Plain):
    """Halves a gradient before it is accumulated."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[1].up.weight.register_hook(lambda gradient: gradient / 2)


class Stackless(nn.Module):
    """No layers at all."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, 12)
        self.head = nn.Linear(12, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(tokens)))
