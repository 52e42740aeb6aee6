"""The launch of a training that a text describes: its program, its flags, the devices that it asks for."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trimtab.spec.migration.megatron.environment import is_known_variable
from trimtab.spec.migration.megatron.flags import Flag, parse_flags
from trimtab.spec.migration.megatron.shell_script import Script, follow
from trimtab.spec.migration.megatron.topics import is_known_flag
from trimtab.spec.migration.settings import MigrationError, Setting


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One training as it would be started.

    Args:
        program: The script that is trained with, ``pretrain_gpt.py``; empty if only flags were given.
        flags: What stands behind it, in order.
        launcher: The flags of torchrun or another launcher before it, what Slurm is asked for, and exported
            variables as ``export NAME``.
        settled: Settings that are no flags and whose fate is known already.
        notes: What was left out on the way here, and why.
    """

    program: str = ""
    flags: tuple[Flag, ...] = ()
    launcher: tuple[Flag, ...] = ()
    settled: tuple[Setting, ...] = ()
    notes: tuple[str, ...] = ()


def read_launch(text: str) -> Launch:
    """The launch in a shell script, or in a plain list of flags.

    A command that is started counts before flags that are only listed or assigned; of several the one with most
    flags of Megatron-LM, and of those the last.

    Raises: MigrationError if there is no such command.
    """
    script = follow(text)
    program, launcher, words = _best(script)
    return Launch(
        program=program,
        flags=tuple(parse_flags(words)),
        launcher=(*_exported(script), *_launcher(launcher), *_slurm(script, launcher)),
        notes=tuple(script.notes),
    )


_Candidate = tuple[str, list[str], list[str]]  # program, words before it, words behind it


def _best(script: Script) -> _Candidate:
    for find in (_started, _listed, _assigned):
        found = [
            (_num_known(words), place, (program, before, words))
            for place, (program, before, words) in enumerate(find(script))
        ]
        if found and max(found)[0]:
            return max(found)[2]
    raise MigrationError(
        "no flags of Megatron-LM were found; a launch script, a list of flags such as "
        "`--tensor-model-parallel-size 8`, or a YAML configuration is read"
    )


def _started(script: Script) -> Iterator[_Candidate]:
    """Commands that start a Python program."""
    for command in script.commands:
        words = _unglue(command.words)
        for index, word in enumerate(words):
            if word.endswith(".py") and not word.startswith("-"):
                yield word.rpartition("/")[2], words[:index], words[index + 1 :]
                break


def _listed(script: Script) -> Iterator[_Candidate]:
    """The lines of a plain list of flags, as one command."""
    words = [
        word
        for command in script.commands
        if command.words[0].startswith("--")
        for word in _unglue(command.words)
    ]
    if words:
        yield "", [], words


def _assigned(script: Script) -> Iterator[_Candidate]:
    """Variables that hold flags and are used by no other: a script that another one sources."""
    values = {name: " ".join(elements) for name, elements in script.variables.values.items()}
    outermost = [
        text
        for name, text in values.items()
        if "--" in text and not any(text in other for key, other in values.items() if key != name)
    ]
    words = _unglue(" ".join(outermost).split())
    if words:
        yield "", [], words


def _unglue(words: Sequence[str]) -> list[str]:
    """Words such as ``"--fp8-format hybrid"``, an array's quoted element, in their parts."""
    return [
        part for word in words for part in (word.split() if re.match(r"\s*--[a-z][\w-]*\s", word) else [word])
    ]


def _num_known(words: Sequence[str]) -> int:
    return sum(is_known_flag(word.partition("=")[0]) for word in words if word.startswith("--"))


_LAUNCHERS = re.compile(r"(^|/)(torchrun|deepspeed|ft_launcher)$|^torch\.distributed\.(run|launch)$")


def _launcher(words: Sequence[str]) -> Iterator[Flag]:
    """The flags behind the last word that starts processes; srun's and Python's own are not Megatron's."""
    last = max((index for index, word in enumerate(words) if _LAUNCHERS.search(word)), default=len(words))
    for flag in parse_flags(words[last + 1 :]):
        name = flag.name.replace("_", "-")
        yield Flag(name=name, values=flag.values, shown=flag.name if name != flag.name else "")


def _exported(script: Script) -> Iterator[Flag]:
    """Variables handed to the program, those of communication and kernels only."""
    for name in sorted(script.variables.exported & script.variables.values.keys()):
        if is_known_variable(name):
            yield Flag(name=f"export {name}", values=script.variables.values[name])


def _slurm(script: Script, launcher: Sequence[str]) -> Iterator[Flag]:
    """What Slurm is asked for, unless a launcher says it."""
    said = {flag.name for flag in _launcher(launcher)}
    for name, flag, shown in (
        ("SLURM_NNODES", "--nnodes", "#SBATCH --nodes"),
        ("SLURM_GPUS_ON_NODE", "--nproc-per-node", "#SBATCH --gres"),
        ("SLURM_NTASKS_PER_NODE", "--nproc-per-node", "#SBATCH --ntasks-per-node"),
    ):
        if flag not in said and name in script.variables.values:
            said.add(flag)
            yield Flag(name=flag, values=script.variables.values[name], shown=shown)
