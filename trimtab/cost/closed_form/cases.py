"""Plans as numbers: what network, what step, what layout, on what devices; each field an array over the plans."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cases:
    """Plans to be priced together, arrays that broadcast against each other; counts and sizes are floats.

    Flags are 0 or 1. Degrees are those of mesh axes; data parallelism is what is left of the devices.
    """

    layers: Floats
    embed: Floats
    """Width of the residual stream, in elements."""
    heads: Floats
    kv_heads: Floats
    head_size: Floats
    mlp: Floats
    """Inner width of the MLP, or of one expert, in elements."""
    mlp_inputs: Floats
    """Matrices from the residual stream to that width: 1, or 2 with a gate."""
    vocab: Floats
    """Tokens of the embedding, as padded."""
    is_tied: Floats
    experts: Floats
    """Of a layer; 0: dense."""
    top_k: Floats
    shared_mlp: Floats
    """Inner width of what every token passes beside its experts; 0: nothing."""

    sequence: Floats
    """Tokens of a sample."""
    batch: Floats
    """Samples of a step."""
    microbatch: Floats
    """Samples of one pass on one replica."""

    devices: Floats
    tensor: Floats
    pipeline: Floats
    virtual: Floats
    """Pieces of the network that a rank of the pipeline holds; 1: not interleaved."""
    fill: Floats
    """Time in which a pipeline fills and drains over that of one-forward-one-backward with as many pieces."""
    keeps_all: Floats
    """1: the activations of all microbatches are kept before the first is used."""
    ends_together: Floats
    """1: the first rank of the pipeline holds the last stage too."""
    flushes: Floats
    """Times that a pipeline fills and drains in a step."""
    context: Floats
    expert: Floats
    whole_experts: Floats
    """1: where experts are spread, a rank of the tensor axis holds whole ones and has a part of the tokens."""
    store: Floats
    """What is stored in pieces over data parallelism: 0 nothing, 1 states, 2 gradients too, 3 parameters too."""
    recompute: Floats
    """Share of the layers that are computed again in the backward pass."""
    recompute_scores: Floats
    """1: attention is, and cheap operators."""
    sequence_parallel: Floats
    """1: residual stream and norms are split over the tensor axis."""
    is_asynchronous: Floats
    """1: collectives of the tensor axis run piece by piece beside the products."""

    product_flops_per_s: Floats
    """Of the best matrix product in the type that products compute in."""
    attention_flops_per_s: Floats
    """Of the best matrix product in 16 bits, in which attention computes."""
    memory_bytes_per_s: Floats
    multiprocessors: Floats
    """Of a device: tiles of a product that are computed at once."""
    island_devices: Floats
    """Devices that share the fast links."""
    island_bytes_per_s: Floats
    """Of one device inside its island, in one direction."""
    site_bytes_per_s: Floats
    """Of one device between islands, in one direction."""

    is_fused_attention: Floats
    """1: scores are never written to memory."""
    is_fine_scaled: Floats
    """1: 8-bit products with a scale for each row."""
    weight_bytes: Floats
    """Kept of a parameter; divided where parameters are stored in pieces, as the next two are with their tables."""
    gradient_bytes: Floats
    state_bytes: Floats
    """Of the optimizer, a master copy among them where the parameter itself is kept in 16 bits."""
    exchanged_bytes: Floats
    """Of a parameter or its gradient, on the wire."""
    keeps_gathered: Floats
    """1: a pipeline gathers stored parameters once a step, and keeps them and their gradients whole until its end."""

    @property
    def data(self) -> Floats:
        """Replicas of the network, each on a part of the batch."""
        return self.devices / (self.tensor * self.pipeline * self.context)

    @property
    def microbatches(self) -> Floats:
        """Passes of one replica in a step."""
        return self.batch / (self.data * self.microbatch)

    @property
    def local_tokens(self) -> Floats:
        """Tokens of a microbatch on one rank."""
        return self.sequence * self.microbatch / self.context

    def take(self, index: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> "Cases":
        """Those with these indices; fields that hold for all stay."""
        return Cases(
            **{
                name: array[index] if array.ndim else array
                for name, array in ((field.name, getattr(self, field.name)) for field in fields(self))
            }
        )

    @classmethod
    def of(cls, columns: Mapping[str, npt.ArrayLike]) -> "Cases":
        """From columns by the names of the fields."""
        return cls(**{name: np.asarray(column, dtype=np.float64) for name, column in columns.items()})
