"""Trimtab: a programmable training system.

    trimtab.run(job)        train what a job file or a mapping says
    trimtab.adopt(model, optimizer, job)        train in a loop of one's own

Importing it costs next to nothing; each name loads what it needs when it is first asked for, torch included.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.app.python_runs import RunResult, run
    from trimtab.runtime.adopting import Session, Step, adopt
    from trimtab.terms import InfeasibleError, InputError, RunError, TrimtabError
    from trimtab.terms.version import __version__

__all__ = [
    "InfeasibleError",
    "InputError",
    "RunError",
    "RunResult",
    "Session",
    "Step",
    "TrimtabError",
    "__version__",
    "adopt",
    "run",
]

_HOMES = {
    "InfeasibleError": "trimtab.terms",
    "InputError": "trimtab.terms",
    "RunError": "trimtab.terms",
    "RunResult": "trimtab.app.python_runs",
    "Session": "trimtab.runtime.adopting",
    "Step": "trimtab.runtime.adopting",
    "TrimtabError": "trimtab.terms",
    "__version__": "trimtab.terms.version",
    "adopt": "trimtab.runtime.adopting",
    "run": "trimtab.app.python_runs",
}
"""The module that each public name stands in."""


def __getattr__(name: str) -> Any:  # each name is typed above
    """A public name, from the module that it stands in (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'trimtab' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
