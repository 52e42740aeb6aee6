"""Why a checkpoint that was asked for is not given; the base is ``trimtab.ledger.manifests``."""

from trimtab.ledger.manifests import CheckpointError
from trimtab.terms import InputError


class UnsafePathError(InputError):
    """A name would lead out of the folder that it must stay in."""


class SignatureError(CheckpointError):
    """A checkpoint that nobody who has the run's key has signed: forged, of another run, or the key is the wrong one."""


class EncryptionError(CheckpointError):
    """An encrypted checkpoint, and the key that is given is none or the wrong one."""


class StateMismatchError(CheckpointError):
    """A whole checkpoint whose tensors are not those of the model that is to continue.

    Attributes:
        missing: Names that the model has and the checkpoint lacks, as ``part/name``.
        extra: Names that the checkpoint has and the model lacks.
        mismatched: Names of both with different shapes: name, shape found, shape expected.
    """

    def __init__(
        self,
        source: str,
        *,
        missing: tuple[str, ...],
        extra: tuple[str, ...],
        mismatched: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...],
    ) -> None:
        self.missing = missing
        self.extra = extra
        self.mismatched = mismatched
        lines = [f"{source}: not the state of this model"]
        lines += [f"  missing: {name}" for name in missing]
        lines += [f"  extra: {name}" for name in extra]
        lines += [
            f"  shape of {name}: found {found}, expected {wanted}" for name, found, wanted in mismatched
        ]
        lines.append("  resume with the job file that the run was started with")
        super().__init__("\n".join(lines))
