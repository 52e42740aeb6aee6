"""Every engine by the name that job files use."""

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from trimtab.engines.engine import Engine

ENGINES: Mapping[str, str] = {
    "local": "trimtab.engines.local.engine:LocalEngine",
    "torchrun": "trimtab.engines.torchrun.engine:TorchrunEngine",
}
"""Where each engine's class stands; its module is loaded when it is asked for."""


def load_engine(name: str) -> Engine:
    """The engine of this name, which must be one of ``ENGINES``."""
    module, _, class_name = ENGINES[name].partition(":")
    return cast("Engine", getattr(import_module(module), class_name)())
