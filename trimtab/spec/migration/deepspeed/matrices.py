"""The matrices of known models by the last part of their name: which dim tensor parallelism cuts, and on which side.

Column-parallel cuts a weight [out, in] along its outputs, row-parallel along its inputs.
"""

from collections.abc import Mapping
from enum import StrEnum


class Side(StrEnum):
    """How a matrix is cut; the values are DeepSpeed's partition types."""

    COLUMN = "column"
    ROW = "row"


_LAYERS: Mapping[tuple[str, Side], tuple[str, ...]] = {
    ("heads", Side.COLUMN): ("q_proj", "qkv_proj", "query_key_value", "query", "c_attn", "q_b_proj", "wq"),
    ("heads", Side.ROW): ("o_proj", "out_proj", "dense", "wo"),
    ("kv_heads", Side.COLUMN): ("k_proj", "v_proj", "key", "value", "kv_b_proj", "wk", "wv"),
    ("mlp", Side.COLUMN): (
        "gate_proj", "up_proj", "gate_up_proj", "dense_h_to_4h", "fc1", "fc_in", "c_fc", "w1", "w3",
    ),
    ("mlp", Side.ROW): ("down_proj", "dense_4h_to_h", "fc2", "fc_out", "w2"),
    ("embed", Side.COLUMN): ("embed_tokens", "word_embeddings", "embed_in", "wte"),
    ("embed", Side.ROW): ("lm_head", "embed_out"),
    ("vocab", Side.COLUMN): ("lm_head", "embed_out"),
}  # fmt: skip


def dim_of(pattern: str, side: Side) -> str | None:
    """The dim that is cut in the matrix that a LIKE pattern names; None if the name is not known.

    A matrix whose name says what it is is cut along that dim, whatever the side.

    >>> dim_of("%.o_proj.weight", Side.ROW), dim_of("%lm_head%", Side.ROW), dim_of("%.wte.weight", Side.ROW)
    ('heads', 'embed', 'embed')
    """
    layer = _layer(pattern)
    found = {known: dim for (dim, known), layers in _LAYERS.items() if layer in layers}
    return found.get(side) or next(iter(found.values()), None)


def side_of(pattern: str, dim: str) -> Side | None:
    """The side of the matrix that a LIKE pattern names, where a dim of it is cut; None if the name is not known."""
    layer = _layer(pattern)
    return next((side for (known, side), layers in _LAYERS.items() if known == dim and layer in layers), None)


def _layer(pattern: str) -> str:
    return pattern.strip("%").removesuffix(".weight").rpartition(".")[2].strip("%")
