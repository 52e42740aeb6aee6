"""What happened, and what did it cost?"""

from trimtab.ledger.clocks import CLOCK_FILE_BYTES, ClockFile, ClockReading, read_clocks
from trimtab.ledger.errors import AccountError, ClockFileError, JournalError
from trimtab.ledger.journal import Event, Journal, encode_event, read_events, read_journal

__all__ = [
    "CLOCK_FILE_BYTES",
    "AccountError",
    "ClockFile",
    "ClockFileError",
    "ClockReading",
    "Event",
    "Journal",
    "JournalError",
    "encode_event",
    "read_clocks",
    "read_events",
    "read_journal",
]
