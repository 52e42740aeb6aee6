"""Questions and constants."""

from collections.abc import Callable
from typing import Any

import pytest

from trimtab.catalog import cluster, network
from trimtab.cost.calibration import published_fits
from trimtab.cost.closed_form import THIS_RUNTIME, Values
from trimtab.cost.search import Question, fabric_of


@pytest.fixture
def question() -> Callable[..., Question]:
    """Llama 2 7B on eight A100, changed."""

    def made(**changes: Any) -> Question:
        name = changes.pop("network", "llama2-7b")
        where = changes.pop("cluster", "64xA100")
        asked: dict[str, Any] = {
            "network": network(name),
            "sequence": 4096,
            "batch": 64,
            "fabric": fabric_of(cluster(where), "bf16"),
            "devices": (8,),
            "compute": "bf16",
            "shares": None,
            **changes,
        }
        return Question(**asked)

    return made


@pytest.fixture(scope="session")
def values() -> tuple[Values, Values]:
    """Constants of time, as published stacks say, and of memory, as this runtime needs it."""
    time = published_fits().time_belief()
    return time.values(time.means), THIS_RUNTIME
