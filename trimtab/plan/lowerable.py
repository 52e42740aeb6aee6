"""What a plan may have and a lowered one cannot compute."""

from trimtab.catalog import Network
from trimtab.terms import InputError


def refuse_unlowerable(network: Network) -> None:
    """Refuse a network that a plan may have and a lowered one cannot compute.

    Raises: InputError that names what it has and what would do.
    """
    if network.dropout:
        raise InputError(
            f"{network.name} has dropout {network.dropout:g}: a lowered plan draws no masks, for a mask belongs to whole "
            "rows and ranks hold parts of them. Set model.dropout: 0."
        )
