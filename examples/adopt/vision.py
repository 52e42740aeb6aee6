"""A small convolutional network learns to read digits, drawn from glyphs of 5 by 7 dots, shifted and full of noise."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, default_collate

import trimtab

GLYPHS = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111",
    "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)


class Digits(Dataset):
    """Images [1, 12, 12] and the digit on each; each is drawn from its number, so nothing is stored."""

    def __init__(self, first, count):
        self.first, self.count = first, count
        rows = [[[int(dot) for dot in row] for row in glyph.split()] for glyph in GLYPHS]
        self.glyphs = torch.tensor(rows, dtype=torch.float32)

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        keyed = torch.Generator().manual_seed(self.first + number)
        digit = int(torch.randint(10, (), generator=keyed))
        top, left = (int(torch.randint(room, (), generator=keyed)) for room in (6, 8))
        image = 0.3 * torch.randn(1, 12, 12, generator=keyed)
        image[0, top : top + 7, left : left + 5] += self.glyphs[digit]
        return image, digit


def convolution(channels_in, channels):
    """A convolution that halves the image; GroupNorm, for BatchNorm would mix the samples of a batch."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels, 3, stride=2, padding=1), nn.GroupNorm(4, channels), nn.GELU()
    )


torch.manual_seed(0)
model = nn.Sequential(convolution(1, 16), convolution(16, 64), nn.Flatten(), nn.Linear(64 * 9, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
training, held_out = Digits(0, 5000), Digits(5000, 500)

session = trimtab.adopt(model, optimizer, "examples/adopt/vision.yaml")
for step in session.steps():
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * (1 - step.number / session.num_steps)
    for images, digits in step.microbatches(training):
        loss = functional.cross_entropy(model(images), digits, reduction="sum")
        step.backward(loss, len(digits))

if session.rank == 0:
    images, digits = default_collate([held_out[number] for number in range(len(held_out))])
    with torch.no_grad():
        right = (model.eval()(images).argmax(1) == digits).float().mean()
    print(f"loss {step.loss:.4f}, {100 * right:.1f} % of held-out digits are read")
