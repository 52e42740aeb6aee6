"""The command line: verbs in, exit codes out.

Each verb imports what it needs when it is called: `trimtab --help` and the verbs that only read answer in a
fraction of a second, because neither torch nor any other room is loaded for them.
"""

from typing import Annotated

import typer

from trimtab.terms import ExitCode, TrimtabError

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key of the job: train.steps=100. Repeatable."
    ),
]
Injections = Annotated[
    list[str] | None,
    typer.Option(
        "--inject", metavar="KIND:KEY=VALUE,...", help="Make a fault happen: kill:rank=1,step=5. Repeatable."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
JobFile = Annotated[str, typer.Argument(metavar="JOB", help="The job file.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's directory or its unique name.")]

app = typer.Typer(
    name="trimtab",
    help="A programmable training system: three cards of YAML steer a run.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def run_cli(arguments: list[str]) -> int:
    """Run one command and return its exit code; what a user did wrong is a message, never a traceback."""
    try:
        code = app(arguments, prog_name="trimtab", standalone_mode=False)
    except TrimtabError as error:
        _report_error(str(error), is_json="--json" in arguments)
        return error.exit_code
    except typer.TyperException as error:
        _report_error(error.format_message(), is_json="--json" in arguments)
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return int(code or 0)


def _report_error(message: str, *, is_json: bool) -> None:
    from trimtab.app.output import print_document, say

    say(message)
    if is_json:
        print_document({"error": message})


@app.command()
def run(
    job: JobFile,
    overrides: Overrides = None,
    injections: Injections = None,
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print exactly what would be started, and start nothing.")
    ] = False,
    is_json: AsJson = False,
) -> int:
    """Train, with a live view; ends with the ledger."""
    from trimtab.app.attempts import Wishes, run_job

    wishes = Wishes(overrides=overrides or (), injections=injections or (), is_json=is_json)
    return run_job(job, wishes, is_dry_run=is_dry_run)


@app.command()
def resume(
    name: RunName, overrides: Overrides = None, injections: Injections = None, is_json: AsJson = False
) -> int:
    """Continue a run from its newest checkpoint."""
    from trimtab.app.attempts import Wishes, resume_run

    return resume_run(name, Wishes(overrides=overrides or (), injections=injections or (), is_json=is_json))


@app.command()
def explain(job: JobFile, overrides: Overrides = None, is_json: AsJson = False) -> int:
    """Say before a run what each rank holds, sends and waits for, and which line decided it."""
    from trimtab.app.explaining import explain_job

    return explain_job(job, overrides or (), is_json=is_json)
