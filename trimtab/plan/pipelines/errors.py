"""Errors about pipelines.

InputError
└── PipelineError
    ├── RefusedShapeError   a stage schedule cannot run these numbers
    ├── LayersError         layers cannot be given to stages so
    └── DeadlockError       an action waits for what never comes
"""

from trimtab.terms import InputError


class PipelineError(InputError):
    """A pipeline that cannot be."""


class RefusedShapeError(PipelineError):
    """A stage schedule cannot run with these ranks, stages and microbatches."""


class LayersError(PipelineError):
    """Layers cannot be given to stages as asked."""


class DeadlockError(PipelineError):
    """The ranks wait for each other, or for an action that no rank has."""
