"""The keys of a job one by one, as a writer of another system's settings meets them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.spec.cards import Job
from trimtab.spec.job_files import LoadedJob
from trimtab.spec.resolved import plain_values

_DEFAULT = "default"
_FORMULAS = "parallelism"


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """A key with its value, and the job that it belongs to.

    Args:
        path: Its dotted path: ``train.optimizer.adamw.lr``.
        value: Its value; what was ``auto`` is resolved.
        is_default: Whether nobody wrote it.
        job: The whole job.
    """

    path: str
    value: Any
    is_default: bool
    job: Job

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def text(self) -> str:
        """The value as text."""
        return text_of(self.value)


def keys_of(loaded: LoadedJob) -> Iterator[Key]:
    """Every key of a job but its formulas, written or not."""
    for path, value in _leaves(plain_values(loaded.job), ()):
        if path != _FORMULAS:
            origin = loaded.origins.get(path, _DEFAULT)
            yield Key(path=path, value=value, is_default=_DEFAULT in origin, job=loaded.job)


def text_of(value: Any) -> str:
    """A value as a command line would have it.

    >>> text_of(True), text_of(6e-05), text_of([0.9, 0.95])
    ('true', '6e-05', '0.9 0.95')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, list | tuple):
        return " ".join(text_of(item) for item in value)
    return str(value)


def _leaves(values: Mapping[str, Any], prefix: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*prefix, key))
        else:
            yield ".".join((*prefix, key)), value
