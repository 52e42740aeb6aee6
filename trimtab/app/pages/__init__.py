"""An explanation as a page and as a graph, each whole in one text."""

from trimtab.app.pages.explain_dot import render_dot
from trimtab.app.pages.explain_html import render_html

__all__ = ["render_dot", "render_html"]
