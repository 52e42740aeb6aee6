"""The base error of the package.

    TrimtabError
    ├── InputError        the user's input is wrong                 exit 2
    ├── InfeasibleError   nothing satisfies the constraints         exit 3
    └── RunError          the run failed                            exit 1

Each room derives its own errors from one of the three in its ``errors.py``.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a process of Trimtab says when it ends."""

    DONE = 0
    RUN_FAILED = 1
    INPUT_WRONG = 2
    INFEASIBLE = 3
    CUT_OFF = 75
    INTERRUPTED = 130
    TERMINATED = 143


class TrimtabError(Exception):
    """Something that a user of Trimtab is told.

    The message says what was found, what was required, where, and what to do next.
    """

    exit_code: ExitCode = ExitCode.RUN_FAILED


class InputError(TrimtabError):
    """The input is wrong; nothing was started and nothing was changed."""

    exit_code = ExitCode.INPUT_WRONG


class InfeasibleError(TrimtabError):
    """The input is well formed, but nothing satisfies it."""

    exit_code = ExitCode.INFEASIBLE


class RunError(TrimtabError):
    """A run that had started could not go on."""

    exit_code = ExitCode.RUN_FAILED
