"""What calibration finds out: for each constant what is expected, how far it may lie, and what physics allows.

Where no source is named, expectation and spread are judgements, made before anything was fitted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.cost.closed_form.cases import Floats

Values = Mapping[str, Floats]
"""A value, or one for each case, by the name of a constant; what broadcasts against ``Cases`` may stand here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """One constant of a model.

    Args:
        name: By which formulas ask for it.
        unit: Of its value; empty for a ratio.
        expected: Before a measurement.
        spread: Standard deviation of its logarithm, before a measurement.
        low, high: Outside is not physical.
        meaning: What it multiplies, and where the expectation comes from.
    """

    name: str
    unit: str = ""
    expected: float
    spread: float
    low: float
    high: float
    meaning: str


def expected(constants: Sequence[Constant]) -> Values:
    """Every constant as it is expected before a measurement."""
    return {constant.name: np.asarray(constant.expected) for constant in constants}


_ROOF = "of the best measured matrix product"

TIME_CONSTANTS = (
    Constant(
        name="product_share",
        expected=0.80,
        spread=0.15,
        low=0.3,
        high=1.0,
        meaning=f"rate of a large, well-shaped product, as a share {_ROOF}: clocks fall under a whole network's load",
    ),
    Constant(
        name="wave_power",
        expected=0.7,
        spread=0.4,
        low=0.05,
        high=1.2,
        meaning="power of the share of tiles that the last wave leaves idle; 1 would be a library with one tile size "
        "(NVIDIA, Matrix Multiplication Background: wave quantisation)",
    ),
    Constant(
        name="half_depth",
        unit="elements",
        expected=96,
        spread=0.7,
        low=1,
        high=2000,
        meaning="inner size at which a product reaches half of its rate",
    ),
    Constant(
        name="odd_width",
        expected=0.15,
        spread=0.6,
        low=5e-4,
        high=0.8,
        meaning="time that a product takes longer when an inner or outer size is no multiple of 64 (BigScience "
        "chronicles: width 14400 over 8 ranks 94 TFLOP/s where 13824 has 120)",
    ),
    Constant(
        name="fine_scaling",
        expected=1.4,
        spread=0.3,
        low=1.0,
        high=2.5,
        meaning="time of an 8-bit product with a scale for each row over one with a single scale",
    ),
    Constant(
        name="attention_share",
        expected=0.45,
        spread=0.35,
        low=0.05,
        high=0.95,
        meaning=f"rate of fused attention over the causal triangle, as a share {_ROOF} (30 to 75 % by head size)",
    ),
    Constant(
        name="odd_head",
        expected=0.5,
        spread=0.6,
        low=0.01,
        high=5,
        meaning="time that unfused scores take longer when a head's size is no multiple of 8 (head size 108: 110 "
        "TFLOP/s where 216 has 157, the same source)",
    ),
    Constant(
        name="score_passes",
        expected=6,
        spread=0.5,
        low=1,
        high=30,
        meaning="times that unfused attention moves all scores through memory, forward: scale, mask, softmax, dropout",
    ),
    Constant(
        name="elementwise_passes",
        expected=28,
        spread=0.5,
        low=4,
        high=120,
        meaning="times that norms, residuals, activations and dropout of a layer move the residual stream through "
        "memory, forward (Korthikanti et al. 2022 count 34 bytes an element kept)",
    ),
    Constant(
        name="kernel_s",
        unit="s",
        expected=7e-6,
        spread=0.5,
        low=5e-7,
        high=6e-5,
        meaning="between the launches of two kernels, 24 a layer and pass: small layers take no less",
    ),
    Constant(
        name="expert_kernels",
        expected=3,
        spread=0.6,
        low=0.8,
        high=30,
        meaning="launches of a layer with experts over those of a dense one",
    ),
    Constant(
        name="expert_work",
        expected=1.3,
        spread=0.3,
        low=1.0,
        high=4.0,
        meaning="time of expert products over that of balanced ones without routing and permutation",
    ),
    Constant(
        name="backward_products",
        expected=2.0,
        spread=0.06,
        low=1.7,
        high=2.6,
        meaning="products of the backward pass over those of the forward pass",
    ),
    Constant(
        name="recompute_work",
        expected=1.0,
        spread=0.1,
        low=0.7,
        high=1.5,
        meaning="computing a layer again over computing it",
    ),
    Constant(
        name="head_passes",
        expected=1.2,
        spread=0.5,
        low=0.3,
        high=8,
        meaning="times six that logits move through memory in fp32, forward and backward",
    ),
    Constant(
        name="collective_s",
        unit="s",
        expected=30e-6,
        spread=0.6,
        low=2e-6,
        high=4e-4,
        meaning="of a collective before its first byte (all-reduces of 32 KiB to 1 MiB on 8 H200: 39 to 46 us)",
    ),
    Constant(
        name="tensor_bandwidth",
        expected=0.7,
        spread=0.3,
        low=0.1,
        high=1.0,
        meaning="share of the link's rate that collectives of the tensor axis reach (235 of 300 GB/s on 8 A100)",
    ),
    Constant(
        name="tensor_exposed",
        expected=0.7,
        spread=0.4,
        low=0.05,
        high=1.2,
        meaning="share of them that nothing hides, with sequence parallelism; without, all",
    ),
    Constant(
        name="asynchronous_exposed",
        expected=0.6,
        spread=0.4,
        low=0.05,
        high=1.0,
        meaning="what of that is left when they run beside the products",
    ),
    Constant(
        name="expert_bandwidth",
        expected=0.5,
        spread=0.5,
        low=0.05,
        high=1.0,
        meaning="share of the link's rate that all-to-alls of experts reach",
    ),
    Constant(
        name="expert_exposed",
        expected=0.6,
        spread=0.6,
        low=0.02,
        high=1.2,
        meaning="share of them that nothing hides",
    ),
    Constant(
        name="context_exposed",
        expected=0.5,
        spread=0.6,
        low=0.05,
        high=1.5,
        meaning="share of the exchange of keys and values that nothing hides",
    ),
    Constant(
        name="data_bandwidth",
        expected=0.6,
        spread=0.4,
        low=0.05,
        high=1.0,
        meaning="share of the links' rate that collectives of gradients and stored parameters reach",
    ),
    Constant(
        name="congestion",
        expected=0.05,
        spread=0.8,
        low=1e-3,
        high=0.5,
        meaning="power with which that share falls with the number of islands",
    ),
    Constant(
        name="data_exposed",
        expected=0.4,
        spread=0.6,
        low=0.02,
        high=1.2,
        meaning="share of the exchange of gradients that the backward pass does not hide",
    ),
    Constant(
        name="pieces_exposed",
        expected=1.1,
        spread=0.3,
        low=0.7,
        high=5.0,
        meaning="exchange of gradients whose states are stored in pieces, a sum before and a gather behind the update, over "
        "that of whole ones (gloo's reduce-scatter alone sends what an all-reduce does)",
    ),
    Constant(
        name="stored_exposed",
        expected=0.25,
        spread=0.8,
        low=0.01,
        high=1.2,
        meaning="share of gathers of stored parameters, and of the sums of their gradients, that nothing hides",
    ),
    Constant(
        name="hop_s",
        unit="s",
        expected=60e-6,
        spread=1.0,
        low=1e-6,
        high=1e-2,
        meaning="of a hop of the pipeline before its first byte",
    ),
    Constant(
        name="hop_exposed",
        expected=0.4,
        spread=0.7,
        low=0.01,
        high=1.2,
        meaning="share of the hops of a pipeline that nothing hides",
    ),
    Constant(
        name="microbatch_s",
        unit="s",
        expected=2e-4,
        spread=1.0,
        low=1e-6,
        high=2e-2,
        meaning="of the host, for each microbatch",
    ),
    Constant(
        name="step_s",
        unit="s",
        expected=0.015,
        spread=0.8,
        low=1e-4,
        high=0.5,
        meaning="of each step whatever its size: data, clipping, logging",
    ),
    Constant(
        name="optimizer_passes",
        expected=1.5,
        spread=0.5,
        low=0.3,
        high=8,
        meaning="times that the optimizer moves 16 bytes of state a parameter, and 4 replicated ones, through memory",
    ),
    Constant(
        name="straggling",
        expected=0.01,
        spread=0.8,
        low=1e-4,
        high=0.1,
        meaning="time that a step takes longer for each e-fold of devices: the slowest decides",
    ),
)
"""What time depends on beside sizes, degrees and rates."""

MEMORY_CONSTANTS = (
    Constant(
        name="base_gb",
        unit="GB",
        expected=2.5,
        spread=0.5,
        low=0.3,
        high=8,
        meaning="of context, libraries and communication buffers on each device (1.5 to 3 GB are usual)",
    ),
    Constant(
        name="bucket_gb",
        unit="GB",
        expected=0.3,
        spread=1.0,
        low=0.01,
        high=4,
        meaning="of buckets as soon as there is more than one device",
    ),
    Constant(
        name="fragmentation",
        expected=1.05,
        spread=0.05,
        low=1.0,
        high=1.3,
        meaning="what the allocator holds over what is used (3 to 10 % are usual)",
    ),
    Constant(
        name="state",
        expected=1.0,
        spread=0.1,
        low=0.75,
        high=1.3,
        meaning="parameters, gradients and states over what their types and sharding say",
    ),
    Constant(
        name="activations",
        expected=1.0,
        spread=0.2,
        low=0.5,
        high=2.0,
        meaning="activations that a layer keeps over Korthikanti et al. 2022, equation 2",
    ),
    Constant(
        name="borders",
        expected=1.0,
        spread=0.2,
        low=0.5,
        high=2.0,
        meaning="inputs of layers that are kept where layers are computed again, over one copy",
    ),
    Constant(
        name="working_set",
        expected=1.0,
        spread=0.4,
        low=0.2,
        high=4,
        meaning="what a layer needs while it is computed again, over what it would have kept",
    ),
    Constant(
        name="logit_bytes",
        unit="bytes",
        expected=14,
        spread=0.3,
        low=2,
        high=24,
        meaning="of one logit at the peak: 2 as computed, 4 in fp32, 4 for softmax, 4 for its gradient",
    ),
)
"""What peak memory depends on beside sizes, degrees and types."""

THIS_RUNTIME: Values = {
    "base_gb": np.asarray(0.0),
    "bucket_gb": np.asarray(0.0),
    "fragmentation": np.asarray(1.0),
    "state": np.asarray(1.59),
    "activations": np.asarray(1.69),
    "borders": np.asarray(2.93),
    "working_set": np.asarray(0.56),
    "logit_bytes": np.asarray(14.5),
    "posted": np.asarray(2.16),
}
"""Of memory, for the software that runs Trimtab's own plans: least squares over the logarithms of 500 layouts of five networks in
fp32 and bf16, each weighed as ``cost.run_memory`` does. Half of them lie between 0.84 and 1.17 times what was weighed, nine of ten
between 0.58 and 1.41: a filter for a search that weighs what it shows. Context and gaps are left to the head-room."""
