"""What happened, and what did it cost?"""

from trimtab.ledger.accounts import ENTRIES, Account, DeviceTime, Entry, Label, account, layer_of
from trimtab.ledger.clocks import CLOCK_FILE_BYTES, ClockFile, ClockReading, read_clocks
from trimtab.ledger.digests import weights_digest
from trimtab.ledger.errors import AccountError, ClockFileError, JournalError
from trimtab.ledger.events import EventKind, Incarnation, RunRecords
from trimtab.ledger.journal import Event, Journal, encode_event, read_events, read_journal

__all__ = [
    "CLOCK_FILE_BYTES",
    "ENTRIES",
    "Account",
    "AccountError",
    "ClockFile",
    "ClockFileError",
    "ClockReading",
    "DeviceTime",
    "Entry",
    "Event",
    "EventKind",
    "Incarnation",
    "Journal",
    "JournalError",
    "Label",
    "RunRecords",
    "account",
    "encode_event",
    "layer_of",
    "read_clocks",
    "read_events",
    "read_journal",
    "weights_digest",
]
