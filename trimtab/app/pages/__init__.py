"""An explanation as a page, whole in one text."""

from trimtab.app.pages.explain_html import render_html

__all__ = ["render_html"]
