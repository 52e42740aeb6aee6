"""What can be wrong with training text.

InputError
└── DataError      the text, the tokenizer or the cache folder cannot be used

UserWarning
└── DataWarning    the data can be used, but not quite as asked
"""

from trimtab.terms import InputError


class DataError(InputError):
    """The text, the tokenizer or the cache folder named by the job file cannot be used."""


class DataWarning(UserWarning):
    """Something was skipped, replaced or rebuilt; training goes on."""
