"""The words of the strategy language: those that this release understands, and those that it only knows."""

VERBS = ("MESH", "SPLIT", "REDUCE")
"""Statements of this release."""

LATER_VERBS = ("PLACE", "STORE", "AVERAGE", "RECOMPUTE", "OFFLOAD", "KEEP", "COMPUTE", "SEAL", "USE")
"""Statements of the language that this release refuses by name."""

LATER_CLAUSES = (
    "OF", "WHERE", "BETWEEN", "ON", "WITHIN", "MICROBATCHES", "BALANCE", "BUCKET", "COMPRESS", "IN", "EVERY", "TO", "IF",
)  # fmt: skip
"""Clauses of the language that this release refuses by name."""

DIMS = ("batch", "sequence", "embed", "heads", "kv_heads", "mlp", "vocab", "layers", "experts")
"""Dims of tensors; this release splits the batch only."""

TABLES = ("params", "grads", "states", "activations", "layers", "experts")
"""What statements speak of; this release reduces grads only."""

LATER_ROUTES = ("ring", "hierarchical", "default")
"""Routes of the language that this release refuses by name."""
