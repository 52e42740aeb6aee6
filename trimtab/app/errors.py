"""Errors of the command line.

InputError
├── JobReadError      the job file cannot be read at all, or names what does not exist
├── UnknownRunError   no run, or several runs, have the name that was given
├── RunStateError     the run is not in the state that the verb needs
├── StudyError        the file of a study cannot be read or written
└── QueryError        a question to the tables of a plan or a run is wrong, or asks for too much

RunError
└── FailedRunError    a run that Python asked for has failed
"""

from trimtab.terms import InputError, RunError


class JobReadError(InputError):
    """The job file cannot be read at all, or names what does not exist; the message says where."""


class UnknownRunError(InputError):
    """No run, or several runs, have the name that was given; the message lists what there is."""


class RunStateError(InputError):
    """The run is not in the state that the verb needs: it is alive, it is not, it has no such step."""


class StudyError(InputError):
    """The file of a study cannot be read or written."""


class QueryError(InputError):
    """A question in SQL is wrong, does more than read, or asks for too much; the message points into it."""


class FailedRunError(RunError):
    """A run that Python asked for has failed; the message is the first cause, and where its reports are."""
