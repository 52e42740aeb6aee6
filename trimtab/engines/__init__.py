"""Start and stop processes."""

from trimtab.engines.engine import Engine, Observer, Outcome, Request
from trimtab.engines.registry import ENGINES, load_engine

__all__ = ["ENGINES", "Engine", "Observer", "Outcome", "Request", "load_engine"]
