"""The command line: verbs in, exit codes out.

Each verb imports what it needs when it is called: `trimtab --help` and the verbs that only read answer in a
fraction of a second, because neither torch nor any other room is loaded for them.
"""

import gc
from pathlib import Path
from typing import Annotated

import typer

from trimtab.app.answer_formats import AnswerFormat
from trimtab.app.export_formats import ExportFormat
from trimtab.terms import ExitCode, InputError, TrimtabError, WeightType

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
System = Annotated[
    str, typer.Argument(metavar="SYSTEM", help="The other system, such as megatron or deepspeed.")
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's directory or its unique name.")]

app = typer.Typer(
    name="trimtab",
    help="A programmable training system: three cards of YAML steer a run.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
checkpoints = typer.Typer(
    name="checkpoints",
    help="What is saved, is it whole, give it to others.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(checkpoints)
strategy = typer.Typer(
    name="strategy",
    help="Presets of the strategy language, as the formulas they are.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(strategy)


MAKE_VALUES_AND_END = frozenset({"explain", "schema", "strategy"})
"""Verbs that never look for garbage in cycles: they make none, and loading what they need is most of their time."""

SELDOM = {"plan": 200_000}
"""Objects that a verb makes before it looks for garbage: plans are many objects and few cycles, and looking as often as usual is
a sixth of the time."""


def run_cli(arguments: list[str]) -> int:
    """Run one command and return its exit code; what a user did wrong is a message, never a traceback."""
    if not MAKE_VALUES_AND_END.intersection(arguments[:1]):
        gc.set_threshold(SELDOM.get(next(iter(arguments), ""), gc.get_threshold()[0]))
        gc.enable()
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
def agent(
    address: Annotated[
        str, typer.Option("--join", metavar="ADDRESS:PORT", help="Where the run's first host listens.")
    ],
    token_file: Annotated[
        Path, typer.Option("--token-file", metavar="FILE", help="The file with the run's token.")
    ],
    interface: Annotated[
        str | None,
        typer.Option(
            "--interface", metavar="NAME", help="Network interface that this host's ranks talk over."
        ),
    ] = None,
) -> int:
    """Make this machine a host of a run that was started on another one."""
    from trimtab.app.joining import join_run

    return join_run(address, token_file, interface=interface)


@app.command()
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB | ARGS", help="The job file; behind --script, what the script is called with."
        ),
    ] = None,
    script: Annotated[
        str | None,
        typer.Option(
            "--script",
            metavar="FILE",
            help="Run a program of your own; put -- before ARGS that begin with -.",
        ),
    ] = None,
    overrides: Overrides = None,
    injections: Injections = None,
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print exactly what would be started, and start nothing.")
    ] = False,
    is_json: AsJson = False,
) -> int:
    """Train, with a live view; ends with the ledger."""
    from trimtab.app.attempts import Wishes, run_job, run_script

    wishes = Wishes(overrides=overrides or (), injections=injections or (), is_json=is_json)
    if script is not None:
        return run_script(script, words or (), wishes, is_dry_run=is_dry_run)
    if not words or len(words) > 1:
        raise InputError(f"run takes one job file, or --script FILE, not {len(words or ())} names")
    return run_job(words[0], wishes, is_dry_run=is_dry_run)


@app.command()
def simulate(
    path: JobFile,
    failures: Annotated[
        str,
        typer.Option(
            "--failures",
            metavar="NAME|FILE",
            help="What fails how often: llama3, all-causes, or a TOML file.",
        ),
    ],
    days: Annotated[float, typer.Option("--days", help="How long to train.")] = 30.0,
    seeds: Annotated[int, typer.Option("--seeds", help="How many sets of faults.")] = 20,
    step_s: Annotated[
        float | None,
        typer.Option("--step-seconds", metavar="S", help="Of a step; else what explain estimates."),
    ] = None,
    spares: Annotated[
        int | None, typer.Option("--spares", metavar="N", help="Spare nodes; else a fiftieth of the others.")
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option(
            "--events", metavar="FILE", help="Write what happened under the first set, as JSON lines."
        ),
    ] = None,
    overrides: Overrides = None,
    is_json: AsJson = False,
) -> int:
    """Say what is left of weeks of training when things fail, under this job's policies and under others."""
    from trimtab.app.simulating import Asked, simulate_job

    asked = Asked(
        failures=failures,
        days=days,
        num_seeds=seeds,
        step_s=step_s,
        num_spares=spares,
        events=events,
        is_json=is_json,
    )
    return simulate_job(path, overrides or (), asked)


@app.command()
def chaos(
    paths: Annotated[list[str], typer.Argument(metavar="FILE...", help="Scenario files.")],
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", min=0, help="Of the faults; else from the clock.")
    ] = None,
    times: Annotated[
        int,
        typer.Option("--times", metavar="N", min=1, help="Runs of each scenario, each with its own seed."),
    ] = 1,
    is_json: AsJson = False,
) -> int:
    """Make things go wrong for real, and say whether the bits are those of an undisturbed run."""
    from trimtab.app.chaos import run_scenarios

    return run_scenarios(paths, seed=seed, times=times, is_json=is_json)


@app.command()
def resume(
    name: RunName, overrides: Overrides = None, injections: Injections = None, is_json: AsJson = False
) -> int:
    """Continue a run from its newest checkpoint."""
    from trimtab.app.attempts import Wishes
    from trimtab.app.resuming import resume_run

    return resume_run(name, Wishes(overrides=overrides or (), injections=injections or (), is_json=is_json))


@app.command()
def explain(
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="The job file.")] = None,
    overrides: Overrides = None,
    other: Annotated[
        str | None, typer.Option("--diff", metavar="JOB2", help="Say what a second job would do otherwise.")
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", metavar="FORMAT", help="text (default), json, dot or html.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write to a file instead of standard output.")
    ] = None,
    is_json: AsJson = False,
    is_analyzed: Annotated[
        bool, typer.Option("--analyze", help="Run real steps on this machine and compare with the figures.")
    ] = False,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Of --analyze, to be timed.")] = 3,
    is_schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of the document that --json gives.")
    ] = False,
    is_traced: Annotated[
        bool, typer.Option("--trace", help="Run the plan's program without numbers and count what it does.")
    ] = False,
) -> int:
    """Say what each rank would hold, compute, send and cost, and which line decided it."""
    from trimtab.app.explaining import answer_of, explain_job, print_schema

    if is_schema:
        return print_schema()
    analyzed_steps = steps if is_analyzed else None
    answer = answer_of(
        form, other=other, out=out, is_json=is_json, analyzed_steps=analyzed_steps, is_traced=is_traced
    )
    return explain_job(job, overrides or (), answer)


@app.command()
def tune(
    target: Annotated[
        str,
        typer.Argument(metavar="JOB | STUDY", help="The job file; or the folder of a study to go on with."),
    ],
    space: Annotated[
        Path | None,
        typer.Option("--space", metavar="FILE", help="What may vary, and what it may cost, as YAML."),
    ] = None,
    overrides: Overrides = None,
    is_json: AsJson = False,
) -> int:
    """Find by short real runs what only they can tell, within a budget."""
    from trimtab.app.tuning.verb import tune

    return tune(target, space, overrides or (), is_json=is_json)


@app.command()
def plan(
    job: JobFile,
    overrides: Overrides = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", metavar="NAME[@PROVIDER]", help="Where to train; default: the job's cluster."
        ),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option("--devices", metavar="N,...", help="Numbers of devices to compare; default: all."),
    ] = None,
    is_cheapest: Annotated[bool, typer.Option("--cheapest", help="Order by dollars, not by time.")] = False,
    headroom: Annotated[
        float, typer.Option("--headroom", min=0.0, max=0.9, help="Share of the memory that stays free.")
    ] = 0.08,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="TIME", help="For all steps of the job: 12h.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", metavar="USD", min=0.0, help="For all steps of the job.")
    ] = None,
    price: Annotated[
        float | None,
        typer.Option("--price", metavar="USD", min=0.0, help="Of a device and hour; default: the catalog's."),
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option("--prices", metavar="FILE", help="Prices of your own, as CSV, before the catalog's."),
    ] = None,
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="Strategies to show.")] = 3,
    other: Annotated[
        str | None,
        typer.Option(
            "--why-not", metavar="LAYOUT", help="Explain a layout of yours: tp=8,pp=4,store=states."
        ),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option("--measured", metavar="FILE", help="Runs of your own to calibrate on, as CSV."),
    ] = None,
    growing: Annotated[
        str | None,
        typer.Option("--fit", metavar="WHAT", help="The largest that fits: sequence, microbatch or layers."),
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            "--beside", metavar="NAME[@PROVIDER]", help="Another place to compare with. Repeatable."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw what each number of devices costs, as SVG."),
    ] = None,
    probed: Annotated[
        Path | None,
        typer.Option("--probe", metavar="FILE", help="Plan for the machine that trimtab probe measured."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the first one's formulas to a file.")
    ] = None,
    is_json: AsJson = False,
) -> int:
    """Find the best strategies for a job on some cards, as formulas, and say why not others."""
    from trimtab.app.plan_questions import Asked, growing_of
    from trimtab.app.planning import plan_job
    from trimtab.cost.search import Limits, Objective
    from trimtab.terms import parse_seconds

    return plan_job(
        job,
        overrides or (),
        Asked(
            cluster=cluster,
            devices=devices,
            limits=Limits(
                headroom=headroom,
                deadline_s=None if deadline is None else parse_seconds(deadline),
                budget_usd=budget,
            ),
            objective=Objective.DOLLARS if is_cheapest else Objective.TIME,
            price=price,
            prices=prices,
            top=top,
            other=other,
            measured=measured,
            probe=probed,
            growing=growing_of(growing),
            beside=beside or (),
            plot=plot,
            out=out,
            is_json=is_json,
        ),
    )


@app.command()
def probe(
    devices: Annotated[
        int | None, typer.Option("--devices", metavar="N", help="Ranks; default: one a core, at most 8.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write it as JSON, for plan --probe.")
    ] = None,
    is_json: AsJson = False,
) -> int:
    """Measure this machine: products, memory, collectives, pairs of ranks, and a few real steps."""
    from trimtab.app.deciding import probe_file
    from trimtab.app.probing import probe_machine

    probe_file().parent.mkdir(parents=True, exist_ok=True)
    places = [probe_file(), *([out] if out is not None else [])]
    return probe_machine(devices=devices, places=places, is_json=is_json)


@app.command()
def query(
    subject: Annotated[
        str, typer.Argument(metavar="JOB|RUN", help="The job file, or a run's directory or its unique name.")
    ],
    sql: Annotated[
        str | None,
        typer.Argument(metavar="[SQL]", help="One statement; read from standard input if left out."),
    ] = None,
    overrides: Overrides = None,
    format_: Annotated[
        AnswerFormat | None,
        typer.Option("--format", help="Of the answer; else as the file's name says, or a table."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where the answer goes; else standard output."),
    ] = None,
    is_listing: Annotated[
        bool, typer.Option("--tables", help="List the tables that can be asked, with their columns.")
    ] = False,
    is_json: AsJson = False,
) -> int:
    """Ask a plan, or a run, in SQL."""
    from trimtab.app.querying import Asked, answer, list_tables

    if is_listing:
        return list_tables(subject, overrides or (), is_json=is_json)
    return answer(
        Asked(subject=subject, sql=sql, overrides=overrides or (), format=format_, file=file, is_json=is_json)
    )


@app.command("verify")
def verify_job(
    job: JobFile,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option("--steps", metavar="K", min=1, help="Steps to take.")] = 2,
    is_quick: Annotated[
        bool, typer.Option("--quick", help="Shrink network and mesh, keep the structure.")
    ] = False,
    is_json: AsJson = False,
) -> int:
    """Say whether the parallel run is the same computation as one device."""
    from trimtab.app.verifying import Asked, verify

    return verify(job, overrides or (), Asked(steps=steps, is_quick=is_quick, is_json=is_json))


@app.command()
def stop(name: RunName, is_json: AsJson = False) -> int:
    """End a run cleanly, with a checkpoint."""
    from trimtab.app.stopping import stop_run

    return stop_run(name, is_json=is_json)


@app.command()
def resize(
    name: RunName,
    devices: Annotated[int, typer.Option("--devices", metavar="N", min=1, help="To go on with.")],
    wait: Annotated[str, typer.Option("--wait", metavar="TIME", help="How long to wait for it.")] = "120s",
    is_json: AsJson = False,
) -> int:
    """Go on with fewer devices, or with more, from the next step border."""
    from trimtab.app.resizing import resize_run
    from trimtab.terms import parse_seconds

    return resize_run(name, devices, wait_s=parse_seconds(wait), is_json=is_json)


@app.command()
def rollback(
    name: RunName,
    step: Annotated[int, typer.Option("--to", metavar="STEP", help="The checkpoint to go back to.")],
    is_json: AsJson = False,
) -> int:
    """Go back to a checkpoint; newer ones are set aside."""
    from trimtab.app.stopping import roll_back

    return roll_back(name, step, is_json=is_json)


@app.command()
def report(name: RunName, is_json: AsJson = False) -> int:
    """Show where device time and dollars went."""
    from trimtab.app.reports import report_run

    return report_run(name, is_json=is_json)


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="The run that the other is measured against.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The other run.")],
    is_json: AsJson = False,
) -> int:
    """Show what differs between two runs, and what it did."""
    from trimtab.app.reports import compare_runs

    return compare_runs(first, second, is_json=is_json)


@app.command()
def doctor(is_json: AsJson = False) -> int:
    """Say whether this machine is fit to train."""
    from trimtab.app.doctor import examine

    return examine(is_json=is_json)


@app.command()
def schema() -> int:
    """Print the JSON schema of a job file, for editors."""
    from trimtab.app.output import print_document
    from trimtab.spec import job_schema

    print_document(job_schema())
    return ExitCode.DONE


@app.command()
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Where to; made if it is not there.")
    ] = Path(),
    is_json: AsJson = False,
) -> int:
    """Write a commented job file that runs."""
    from trimtab.app.starting import write_first_job

    return write_first_job(folder, is_json=is_json)


@app.command("import")
def import_(
    system: System,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE] [-- FLAGS]", help="Its settings: a script, a configuration, flags."),
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--out", metavar="JOB", help="The job file to write; default: print it.")
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option("--devices", min=1, metavar="N", help="Devices, where the settings leave them open."),
    ] = None,
    is_json: AsJson = False,
) -> int:
    """Turn settings of another system into a job file."""
    from trimtab.app.migrating import import_file

    return import_file(system, words or (), target=target, devices=devices, is_json=is_json)


@app.command("export")
def export_(
    system: System,
    job: JobFile,
    overrides: Overrides = None,
    target: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The file to write; default: print it.")
    ] = None,
    is_json: AsJson = False,
) -> int:
    """Write a job as another system's settings."""
    from trimtab.app.migrating import export_file

    return export_file(system, job, overrides or (), target=target, is_json=is_json)


@checkpoints.command("ls")
def list_checkpoints(name: RunName, is_json: AsJson = False) -> int:
    """List what is saved."""
    from trimtab.app.checkpoint_verbs import list_saved

    return list_saved(name, is_json=is_json)


@checkpoints.command()
def verify(name: RunName, is_json: AsJson = False) -> int:
    """Read every byte; name each file that is not whole."""
    from trimtab.app.checkpoint_verbs import verify_saved

    return verify_saved(name, is_json=is_json)


@checkpoints.command()
def pin(
    name: RunName,
    step: Annotated[int, typer.Argument(metavar="STEP", help="The step of the checkpoint.")],
    is_removed: Annotated[bool, typer.Option("--remove", help="Pin it no more.")] = False,
    is_json: AsJson = False,
) -> int:
    """Keep a checkpoint whatever else is removed."""
    from trimtab.app.checkpoint_marks import pin_saved

    return pin_saved(name, step, is_removed=is_removed, is_json=is_json)


@checkpoints.command()
def mark(
    name: RunName,
    step: Annotated[int, typer.Argument(metavar="STEP", help="The step of the checkpoint.")],
    reason: Annotated[
        str | None, typer.Option("--suspect", metavar="REASON", help="Why its state may be spoilt.")
    ] = None,
    is_clean: Annotated[bool, typer.Option("--clean", help="Take the mark back.")] = False,
    is_json: AsJson = False,
) -> int:
    """Mark a checkpoint as suspect: a resume passes over it as long as there is another."""
    from trimtab.app.checkpoint_marks import mark_saved

    return mark_saved(name, step, reason=reason, is_clean=is_clean, is_json=is_json)


@checkpoints.command()
def rewrap(
    name: RunName,
    new: Annotated[
        str, typer.Option("--new", metavar="KEY", help="The new project key: env:NAME or file:PATH.")
    ],
    old: Annotated[
        str | None,
        typer.Option("--old", metavar="KEY", help="The key that opens them now; default: the job's."),
    ] = None,
    is_json: AsJson = False,
) -> int:
    """Have encrypted checkpoints opened by a new key; the files stay as they are."""
    from trimtab.app.checkpoint_verbs import rewrap_saved

    return rewrap_saved(name, old, new, is_json=is_json)


@checkpoints.command("import")
def import_checkpoint(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A torch distributed checkpoint, also of Megatron-LM.")
    ],
    job: JobFile,
    target: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="The folder to write.")],
    dtype: Annotated[
        WeightType | None, typer.Option("--dtype", help="Type of the weights in it; default: fp32.")
    ] = None,
    is_json: AsJson = False,
) -> int:
    """Make a Hugging Face folder of another system's checkpoint, to begin a training with."""
    from trimtab.app.checkpoint_verbs import import_saved

    return import_saved(folder, job, target, dtype, is_json=is_json)


@checkpoints.command()
def export(
    name: RunName,
    target: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="PATH", help="The file or folder to write; default: named after the run."
        ),
    ] = None,
    form: Annotated[
        ExportFormat,
        typer.Option("--format", help="One file of logical tensors, or a folder that transformers loads."),
    ] = ExportFormat.SAFETENSORS,
    dtype: Annotated[
        WeightType | None,
        typer.Option("--dtype", help="Type of the weights in a Hugging Face folder; default: fp32."),
    ] = None,
    is_json: AsJson = False,
) -> int:
    """Give the newest weights to others: a safetensors file, or a Hugging Face folder."""
    from trimtab.app.checkpoint_verbs import export_saved

    return export_saved(name, target, form, dtype, is_json=is_json)


@strategy.command("ls")
def list_strategies(is_json: AsJson = False) -> int:
    """List the presets, one sentence each."""
    from trimtab.app.strategies import list_presets

    return list_presets(is_json=is_json)


@strategy.command("show")
def show_strategy(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A preset, or defaults: what holds when nothing is said.")
    ],
    is_json: AsJson = False,
) -> int:
    """Print a preset as formulas."""
    from trimtab.app.strategies import show_preset

    return show_preset(name, is_json=is_json)
