"""What would close each leak: one sentence per line of the ledger."""

from trimtab.ledger.accounts import Account, Entry, Label
from trimtab.terms import LedgerClass

ADVICE: dict[Entry, str] = {
    LedgerClass.COMPUTE_GAP: (
        "The kernels do less arithmetic than the declared peak allows: try larger microbatches, bf16 or compile, "
        "and check that peak_flops_per_s is declared and is this device's."
    ),
    LedgerClass.RECOMPUTE: (
        "Activations are computed twice to save memory: recompute fewer layers, or store with less memory per device."
    ),
    LedgerClass.PADDING: "Positions without a target are computed for nothing: use packing: pack in the data card.",
    LedgerClass.HOST_WAIT: (
        "The device waits for Python: use larger microbatches or compile, and move logging and metrics out of the step."
    ),
    LedgerClass.INPUT_WAIT: (
        "The step waits for its batch: cache the tokenized data, prefetch more, or move the data closer."
    ),
    LedgerClass.COMM_TRANSFER: (
        "All ranks were present and the bytes took this long: reduce less often or in bf16, choose another route, "
        "or keep the busiest axis inside one node."
    ),
    LedgerClass.COMM_SKEW: (
        "Ranks wait for a late peer: find the rank with the least comm_skew, which is the late one, and give it fewer "
        "shares or mend what slows it."
    ),
    LedgerClass.BUBBLE: (
        "Pipeline stages wait for each other: use more microbatches, an interleaved schedule, or BALANCE BY time."
    ),
    LedgerClass.CHECKPOINT_STALL: (
        "Training stands still while state is saved: save less often (every: adaptive) or to faster storage."
    ),
    LedgerClass.DETECT: (
        "Failures were noticed late: shorten fault_tolerance.detection, but not below what a slow step needs."
    ),
    LedgerClass.RESTART: (
        "Starting and stopping processes took this long: finish the step without a restart (on_loss: exact), start "
        "fewer attempts, and keep caches warm."
    ),
    LedgerClass.DEGRADED: (
        "Devices were paid for while their process was dead: set replace: true, or release dead devices sooner."
    ),
    LedgerClass.PROBE: (
        "Shares were computed twice and replicas compared, to find wrong numbers: lower fault_tolerance.detection.probe, "
        "or compare less often."
    ),
    LedgerClass.EVALUATION: "Evaluation took this long: evaluate less often or on fewer batches.",
    LedgerClass.QUEUE_IDLE: (
        "Devices were held without a process: allocate all of them at once, and release those without work."
    ),
    LedgerClass.UNATTRIBUTED: (
        "No timer claims this time: it lies between the timers of the step; a trace shows what runs there."
    ),
    Label.LOST_WORK: (
        "Steps were done and thrown away: save more often (every: adaptive), or choose an on_loss that keeps the step."
    ),
}
"""For every line but ``useful``, which is no leak."""


def biggest_leak(account: Account) -> Entry | None:
    """The line, useful aside, that costs the most dollars, or the most time if not all prices are known.

    None if everything was useful, or nothing was held.
    """
    sizes = account.dollars() or account.entries()
    leak = max(ADVICE, key=lambda entry: sizes[entry])
    return leak if account.entries()[leak] else None
