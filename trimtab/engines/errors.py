"""Errors of the engines.

RunError
└── LaunchError    a process could not be started
"""

from trimtab.terms import RunError


class LaunchError(RunError):
    """A process could not be started; the message names the command and the system's reason."""
