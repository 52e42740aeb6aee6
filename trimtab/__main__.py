"""`python -m trimtab` and the `trimtab` command."""

import sys


def main() -> None:
    """Run the command line."""
    from trimtab.app.cli import run_cli

    sys.exit(run_cli(sys.argv[1:]))


if __name__ == "__main__":
    main()
