"""Layouts in few words."""

from collections import Counter

from trimtab.cost.search import WAYS, Candidate


def degrees(candidate: Candidate) -> str:
    """A layout in one line."""
    layout = candidate.layout
    stored = ("", ", states stored", ", grads and states stored", ", all stored")[layout.store]
    again = f", {layout.recompute_quarters}/4 computed again" if layout.recompute_quarters else ""
    if layout.recompute:
        ways = [
            f"{WAYS[way]} of {count} layers"
            for way, count in sorted(Counter(layout.recompute).items())
            if way
        ]
        again = f", {' and '.join(ways)} computed again" if ways else ""
    pipe = f" {layout.schedule.value}({layout.pieces})" if layout.pipeline > 1 else ""
    return (
        f"dp {layout.data} tp {layout.tensor} pp {layout.pipeline}{pipe} cp {layout.context}"
        + (f" ep {layout.expert}" if layout.expert > 1 else "")
        + f", microbatch {layout.microbatch}{stored}{again}"
        + (f", {layout.first_layers} layers on the first devices" if layout.first_layers else "")
    )
