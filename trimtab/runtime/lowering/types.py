"""The types of a plan as torch spells them."""

from collections.abc import Mapping

import torch

DTYPES: Mapping[str, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int64": torch.int64,
}
"""By the name that a plan uses."""
