"""The errors of the ledger.

InputError
├── JournalError     a journal holds an event that lacks what its kind must have
└── ClockFileError   these bytes are not a clock file of this version
RunError
└── AccountError     the records contradict each other: time cannot be put into classes
"""

from trimtab.terms import InputError, RunError


class JournalError(InputError):
    """An event lacks a field that its kind must have, or holds one of another type."""


class ClockFileError(InputError):
    """The bytes are not a clock file, or one of another version."""


class AccountError(RunError):
    """Two records of one device contradict each other, so its time has no exact account."""
