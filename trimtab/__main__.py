"""`python -m trimtab` and the `trimtab` command."""

import gc
import os
import sys


def main() -> None:
    """Run the command line.

    Until the verb is known nothing looks for garbage in cycles: loading modules makes none, and the search takes a
    tenth of the time of ``explain``. The command line turns it on for verbs that go on for long. The search at the end
    of the process, a fifth, is spared too: the system takes back everything at once.
    Nor are plugins of pydantic looked for, which takes some 10 ms, unless the environment says which.
    """
    gc.disable()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from trimtab.app.cli import run_cli

    code = run_cli(sys.argv[1:])
    gc.freeze()
    sys.exit(code)


if __name__ == "__main__":
    main()
