"""A small GPT of torch's own layers, with one product for queries, keys and values."""

from torch import Tensor, nn
from torch.nn import functional


class Gpt(nn.Module):
    """Tokens [samples, sequence] to logits of bytes. Learned positions, LayerNorm before each part, a tied head."""

    def __init__(
        self, *, layers: int, embed: int, heads: int, mlp: int, context: int, vocab: int = 256
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, embed)
        self.positions = nn.Embedding(context, embed)
        self.blocks = nn.ModuleList(Block(embed, heads, mlp) for _ in range(layers))
        self.norm = nn.LayerNorm(embed)
        self.head = nn.Linear(embed, vocab, bias=False)
        self.head.weight = self.embedding.weight
        for parameter in self.parameters():
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next byte at each position."""
        x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Block(nn.Module):
    """Attention and MLP, each on the normalised stream."""

    def __init__(self, embed: int, heads: int, mlp: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(embed), nn.LayerNorm(embed)
        self.qkv, self.out = nn.Linear(embed, 3 * embed), nn.Linear(embed, embed)
        self.up, self.down = nn.Linear(embed, mlp), nn.Linear(mlp, embed)

    def forward(self, x: Tensor) -> Tensor:
        """The stream after this block."""
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        y: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return y
