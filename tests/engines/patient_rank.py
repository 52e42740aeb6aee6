"""A rank without tensors: it leaves its ticket where a test finds it, and waits to be ended."""

import sys
import time
from pathlib import Path

if __name__ == "__main__":
    ticket = sys.stdin.readline()
    unfinished = Path("ticket.tmp")
    unfinished.write_text(ticket, encoding="utf-8")
    unfinished.rename("ticket.json")
    time.sleep(60)
