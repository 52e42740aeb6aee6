"""The command line: verbs in, exit codes out."""


def run_cli(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    print(f"trimtab: no verbs yet, got {arguments}")
    return 2
