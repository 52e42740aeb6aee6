"""Is what a rank has built the network whose FLOPs and tokens it reports?"""

from collections.abc import Iterable, Mapping

from torch import Tensor

from trimtab.catalog import Network
from trimtab.runtime.errors import RankError

_SHOWN = 3
"""Tensors that are named; the rest is counted."""


def refuse_another_network(network: Network, built: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse to report utilisation of a network that is not the one in memory.

    Args:
        network: Whose FLOPs are reported.
        built: The parameters that are trained, with their names in the catalog.

    Raises: RankError with the tensors that are missing, additional or of another shape.
    """
    expected = {tensor.name: tuple(tensor.shape) for tensor in network.tensors()}
    found = {name: tuple(tensor.shape) for name, tensor in built}
    wrong = [_difference(name, expected, found) for name in sorted({*expected, *found})]
    told = [difference for difference in wrong if difference]
    if told:
        more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
        raise RankError(
            f"the module that was built is not {network.name}: {'; '.join(told[:_SHOWN])}{more}\n"
            "  its FLOPs would be reported for another network: change the job's model, not the module"
        )


def _difference(
    name: str, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]
) -> str:
    if name not in found:
        return f"{name} is missing"
    if name not in expected:
        return f"{name} has no place in it"
    if found[name] != expected[name]:
        return f"{name} is {found[name]} and should be {expected[name]}"
    return ""
