"""What the language can say of the activations of one layer."""

WAYS = ("nothing", "norms", "attention", "attention and norms", "all")
"""What is computed again of a layer, by the numbers in ``Layout.recompute``."""

CONDITIONS = ("", "kind = 'norm'", "kind = 'attention'", "kind IN ('attention', 'norm')", "")
"""Of the rows of a layer's activations, for each way."""

ALL = len(WAYS) - 1
