"""A network and a text that run anywhere, for files that name none."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from trimtab.spec.migration.layouts import Layout

TEXT = "python-stdlib"

_DENSE, _WITH_EXPERTS = "gpt-3m", "moe-3m"


def stand_in(
    layout: Layout,
    networks: Mapping[str, Mapping[str, Any]],
    *,
    has_experts: bool = False,
    fewest_layers: int = 1,
) -> Mapping[str, Any]:
    """The keys of ``model`` of a small network that can be divided in a layout.

    Args:
        layout: Into how many parts.
        networks: The fields of every preset; without them the preset stands as it is.
        has_experts: Whether what it stands in for has experts.
        fewest_layers: Layers that the stages of a pipeline need.
    """
    preset = _WITH_EXPERTS if has_experts or layout.experts_over else _DENSE
    fields = networks.get(preset)
    changes = dict(_changes(fields, layout, fewest_layers)) if fields else {}
    return {"model.preset": preset, **{f"model.{key}": value for key, value in changes.items()}}


def _changes(fields: Mapping[str, Any], layout: Layout, fewest_layers: int) -> Iterator[tuple[str, int]]:
    """The sizes that do not fall into equal parts, raised to the next that do."""
    if fields["layers"] < fewest_layers:
        yield "layers", fewest_layers
    kv_heads = math.lcm(fields["kv_heads"], layout.tp * layout.cp)
    heads = math.lcm(fields["heads"], kv_heads)
    if kv_heads != fields["kv_heads"]:
        yield "kv_heads", kv_heads
    if heads != fields["heads"]:
        yield "heads", heads
        yield "embed", heads * fields["head_size"]
    experts = math.lcm(fields["experts"], layout.expert_parts)
    if experts != fields["experts"]:
        yield "experts", experts
