"""EXPLAIN as text for people; what a change does stands in ``comparisons``."""

from trimtab.app.explanation_text.lines import Line, plain
from trimtab.app.explanation_text.sections import explanation_lines

__all__ = ["Line", "explanation_lines", "plain"]
