"""The verbs ``strategy ls`` and ``strategy show``: presets as the formulas they are."""

from typing import Any

from trimtab.app.output import print_document
from trimtab.spec import parse_strategy, print_program
from trimtab.spec.language import DEFAULTS, Preset, preset, preset_names
from trimtab.terms import ExitCode

_DEFAULTS = "defaults"
"""The name under which the prelude is shown: what holds when nothing is said."""


def list_presets(*, is_json: bool) -> int:
    """Print the presets, one a line; returns the exit code."""
    presets = [preset(name) for name in preset_names()]
    if is_json:
        print_document({"presets": [_document(found) for found in presets]})
        return ExitCode.DONE
    width = max(len(found.name) for found in presets)
    for found in presets:
        print(f"{found.name:{width}}  {found.summary}")
    print(f"{_DEFAULTS:{width}}  What holds when nothing is said.")
    return ExitCode.DONE


def show_preset(name: str, *, is_json: bool) -> int:
    """Print a preset, or the defaults, as formulas that can stand in a job file; returns the exit code.

    Raises: UnknownPresetError if there is no such preset.
    """
    if name == _DEFAULTS:
        document: dict[str, Any] = {"name": name, "formulas": DEFAULTS}
        text = DEFAULTS
    else:
        found = preset(name)
        document = _document(found)
        text = f"-- {document['use']}\n-- {found.summary}\n{document['formulas']}"
    if is_json:
        print_document(document)
    else:
        print(text, end="")
    return ExitCode.DONE


def _document(found: Preset) -> dict[str, Any]:
    """A preset with the formulas that it stands for while every parameter has its default."""
    (first_line, *_) = found.text.splitlines()
    use = first_line.replace("PRESET", "USE", 1)
    return {
        "name": found.name,
        "summary": found.summary,
        "parameters": dict(found.parameters),
        "use": use,
        "formulas": print_program(parse_strategy(use, source=found.name)),
        "text": found.text,
    }
