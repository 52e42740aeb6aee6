"""What importing the room costs: every command line pays it."""

import subprocess
import sys

PROBE = """
import sys, time
start = time.perf_counter()
import trimtab.spec
print(f"{(time.perf_counter() - start) * 1e3:.0f} ms")
print([name for name in ("torch", "numpy", "lark", "typer") if name in sys.modules])
"""


def test_import_is_light() -> None:
    """Otherwise --help takes seconds; the time is printed, since a loaded machine makes any limit fail."""
    output = subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True, text=True).stdout
    elapsed, heavy = output.splitlines()
    print(f"import trimtab.spec: {elapsed}")
    assert heavy == "[]"
