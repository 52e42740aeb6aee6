"""Where ``plan`` looks: a cluster of the catalog, perhaps at one provider, whose prices hold there."""

from dataclasses import dataclass

from trimtab.terms import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A cluster somewhere.

    Args:
        cluster: Its name; None: the job's.
        provider: Whose prices hold; None: the newest offer's.
    """

    cluster: str | None
    provider: str | None = None

    @property
    def overrides(self) -> tuple[str, ...]:
        """What has a job stand there."""
        return () if self.cluster is None else (f"orchestration.cluster={self.cluster}",)


def place_of(text: str | None) -> Place:
    """The place that a user writes as ``CLUSTER``, ``CLUSTER@PROVIDER`` or ``@PROVIDER``, for the job's cluster.

    >>> place_of("512xH100@Lambda")
    Place(cluster='512xH100', provider='Lambda')

    Raises: InputError if no provider follows.
    """
    if text is None:
        return Place(cluster=None)
    cluster, at, provider = text.partition("@")
    if at and not provider:
        raise InputError(f"{text}: no provider follows the @; write {cluster or 'CLUSTER'}@PROVIDER")
    return Place(cluster=cluster or None, provider=provider or None)
