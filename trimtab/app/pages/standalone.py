"""The frame of a page that stands alone: no network, no fonts from outside, readable without its script."""

import base64
import hashlib
from importlib.resources import files

from trimtab.app.pages.markup import Markup, element, trusted


def standalone_page(title: str, body: Markup) -> str:
    """A whole page; its policy lets the browser run and load nothing but its own style and script."""
    style, script = _own("explain.css"), _own("explain.js")
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    )
    page = element(
        "html",
        element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=policy),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("title", title),
            element("style", trusted(style)),
        ),
        element(
            "body",
            element("a", "Skip to the plan", href="#plan", class_="skip"),
            element("div", body, class_="page"),
            element("script", trusted(script)),
        ),
        lang="en",
    )
    return f"<!doctype html>\n{page}\n"


def _own(name: str) -> str:
    return files("trimtab.app.pages").joinpath(name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    """As a content security policy names an inline style or script."""
    digest = hashlib.sha256(source.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
