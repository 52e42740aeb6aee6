"""What Hugging Face fills in where a configuration says ``auto``.

Its Trainer replaces ``auto`` by its own arguments; a configuration alone cannot tell them. They may be given as words
of a command line, ``--learning_rate 2e-5 --bf16``; the others have the defaults of TrainingArguments, which is said.

Source: transformers, src/transformers/integrations/deepspeed.py and training_args.py (read in July 2026).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.spec.migration.deepspeed.layers import RECOMPUTE
from trimtab.spec.migration.drafts import AUTO, Draft, WrittenNumber
from trimtab.spec.migration.settings import MigrationError
from trimtab.terms import nearest_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Fill:
    """What fills in one setting.

    Args:
        arguments: The arguments of the Trainer: one, or one for each item of a list.
        default: What the setting is if nobody sets them.
    """

    arguments: tuple[str, ...]
    default: Any

    @property
    def reason(self) -> str:
        """Why the job has the default."""
        items = self.default if isinstance(self.default, list) else [self.default]
        shown = " and ".join(str(item).lower() for item in items)
        return f"auto is Hugging Face's {' and '.join(self.arguments)}, {shown} unless set there"


FILLS: Mapping[str, Fill] = {
    "train_micro_batch_size_per_gpu": Fill(arguments=("per_device_train_batch_size",), default=8),
    "gradient_accumulation_steps": Fill(arguments=("gradient_accumulation_steps",), default=1),
    "gradient_clipping": Fill(arguments=("max_grad_norm",), default=1.0),
    "optimizer.params.lr": Fill(arguments=("learning_rate",), default=5e-5),
    "optimizer.params.betas": Fill(arguments=("adam_beta1", "adam_beta2"), default=[0.9, 0.999]),
    "optimizer.params.eps": Fill(arguments=("adam_epsilon",), default=1e-8),
    "optimizer.params.weight_decay": Fill(arguments=("weight_decay",), default=0.0),
    "scheduler.params.warmup_max_lr": Fill(arguments=("learning_rate",), default=5e-5),
    "scheduler.params.warmup_num_steps": Fill(arguments=("warmup_steps",), default=0),
    "fp16.enabled": Fill(arguments=("fp16",), default=False),
    "bf16.enabled": Fill(arguments=("bf16",), default=False),
}
"""Settings that may be ``auto``, and what they are then."""

_ADAM = "optimizer.params."

_ALONE: Mapping[str, str] = {
    "max_steps": "train.steps",
    "seed": "train.seed",
    "gradient_checkpointing": RECOMPUTE,
}
"""Arguments that say something of a job whatever the file says."""


def read_arguments(words: Sequence[str]) -> dict[str, Any]:
    """Arguments by name, from the words of a command line; the last of several counts.

    Raises: MigrationError for a word that is none.
    """
    found: dict[str, Any] = {}
    position = 0
    while position < len(words):
        name, has_value, value = words[position].partition("=")
        position += 1
        if not name.startswith("--"):
            raise MigrationError(
                f"{name} is no argument of Hugging Face's Trainer; write --learning_rate 2e-5"
            )
        if not has_value and position < len(words) and not words[position].startswith("--"):
            has_value, value = "=", words[position]
            position += 1
        found[name.removeprefix("--").replace("-", "_")] = _typed(value) if has_value else True
    return found


def fill_in(settings: Iterable[tuple[str, Any]], arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings with every ``auto`` that an argument was given for filled in, then the arguments themselves."""
    for flag, value in settings:
        fill = FILLS.get(flag)
        is_given = fill is not None and any(name in arguments for name in fill.arguments)
        yield flag, _filled(fill, arguments) if fill and is_given and value == AUTO else value
    yield from ((f"--{name}", value) for name, value in arguments.items())


def answer_arguments(draft: Draft) -> None:
    """Give the arguments their fate, once every setting has its own."""
    given = {flag.removeprefix("--"): draft.value(flag) for flag in draft.unanswered("--")}
    for flag in draft.unanswered("--"):
        name = flag.removeprefix("--")
        filled = [setting for setting, fill in FILLS.items() if name in fill.arguments]
        agreed = [setting for setting in filled if draft.value(setting) == _filled(FILLS[setting], given)]
        targets = [target for setting in agreed for target in draft.targets(setting)]
        if name in _ALONE:
            _answer_alone(draft, flag, _ALONE[name])
        elif targets:
            draft.carried(flag, *dict.fromkeys(targets))
        elif "optimizer.type" not in draft and any(setting.startswith(_ADAM) for setting in filled):
            _answer_own_optimizer(draft, flag, next(s for s in filled if s.startswith(_ADAM)))
        elif filled:
            draft.irrelevant(flag, "the file leaves nothing open that it fills in")
        else:
            nearest = nearest_name(
                name, [*_ALONE, *(name for fill in FILLS.values() for name in fill.arguments)]
            )
            draft.impossible(flag, f"not read here{f'; did you mean --{nearest}?' if nearest else ''}")


def _filled(fill: Fill, arguments: Mapping[str, Any]) -> Any:
    if not isinstance(fill.default, list):
        return arguments.get(fill.arguments[0], fill.default)
    return [arguments.get(name, default) for name, default in zip(fill.arguments, fill.default, strict=True)]


def _answer_alone(draft: Draft, flag: str, becomes: str) -> None:
    if " " in becomes:
        if draft.switch(flag):
            draft.carried(flag, becomes)
        else:
            draft.irrelevant(flag, "off, as without it")
    elif (draft.integer(flag) or 0) < 0:
        draft.irrelevant(flag, "as many as the epochs give; set train.epochs")
    else:
        draft.carried(flag, {becomes: draft.integer(flag)})


def _answer_own_optimizer(draft: Draft, flag: str, setting: str) -> None:
    """Without an optimizer in the file the Trainer makes its AdamW of its arguments."""
    target = "train.optimizer.adamw."
    for key in ("lr", "betas", "eps", "weight_decay"):
        fill = FILLS[f"{_ADAM}{key}"]
        given = {name: draft.value(f"--{name}") for name in fill.arguments if f"--{name}" in draft}
        note = "Hugging Face's default" if not given else ""
        draft.put({f"{target}{key}": _filled(fill, given) if given else fill.default}, note=note)
    draft.carried(flag, f"{target}{setting.removeprefix(_ADAM)}")


def _typed(text: str) -> Any:
    if text.casefold() in ("true", "false"):
        return text.casefold() == "true"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return WrittenNumber(text)
    except ValueError:
        return text
