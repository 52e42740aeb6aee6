"""An explanation, or the comparison of two, as one page that stands alone."""

from trimtab.app.pages.facts import Facts
from trimtab.app.pages.formula_lines import FormulaLines
from trimtab.app.pages.markup import Markup, element, joined
from trimtab.app.pages.merged_collectives import merged_collectives
from trimtab.app.pages.sections.comparison import comparison
from trimtab.app.pages.sections.decisions import decisions
from trimtab.app.pages.sections.formulas import formulas
from trimtab.app.pages.sections.headline import headline
from trimtab.app.pages.sections.memory import memory
from trimtab.app.pages.sections.mesh import mesh
from trimtab.app.pages.sections.shares import shares
from trimtab.app.pages.sections.storage import storage
from trimtab.app.pages.sections.time import time
from trimtab.app.pages.sections.timeline import timeline
from trimtab.app.pages.sections.traffic import traffic
from trimtab.app.pages.sections.work import assumptions, work
from trimtab.app.pages.standalone import standalone_page


def render_html(document: Facts) -> str:
    """The page of an explanation or of a comparison.

    Args:
        document: As ``document_of`` gives it, or as it is read back from JSON.
    """
    if "is_same" in document:
        return standalone_page(f"{document['after']} against {document['before']}", comparison(document))
    model, where = document["model"]["network"], document["where"]["cluster"]
    return standalone_page(f"{document['run']}: {model} on {where}", _explanation(document))


def _explanation(document: Facts) -> Markup:
    lines = FormulaLines(document["formulas"])
    collectives = merged_collectives(document["groups"])
    sections = (
        mesh(document, lines),
        memory(document),
        storage(document, lines),
        time(document),
        timeline(document, lines),
        traffic(document, lines, collectives),
        decisions(document, lines),
        shares(document),
        work(document, lines),
        assumptions(document),
    )
    return joined(
        (
            headline(document, lines),
            element(
                "div",
                formulas(document, lines, collectives),
                element("main", *sections, id="plan"),
                class_="columns",
            ),
        )
    )
