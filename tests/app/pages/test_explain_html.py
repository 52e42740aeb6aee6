"""The page of an explanation: what stands in it, and what can never stand in it."""

import base64
import copy
import hashlib
import itertools
import re
from string import hexdigits

import pytest

from trimtab.app.pages import render_html

PLANS = ["ddp", "zero3", "expert-parallel", "mixed", "quickstart", "llama3-405b-4d", "megatron-3d"]
COMPARISONS = ["zero3-to-hsdp.diff", "megatron-3d-to-llama3-405b-4d.diff", "quickstart-to-quickstart.diff"]

TAGS = {
    "a", "b", "body", "code", "dd", "details", "div", "dl", "dt", "fieldset", "figcaption", "figure", "g", "h1", "h2",
    "h3", "head", "header", "html", "i", "input", "label", "legend", "li", "line", "main", "meta", "ol", "p", "page",
    "path", "rect", "script", "section", "small", "span", "strong", "style", "summary", "svg", "table", "tbody", "td",
    "text", "th", "thead", "title", "tr", "ul",
}  # fmt: skip
"""Everything that a page is made of."""

PAYLOADS = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "</title><img src=x onerror=alert(1)>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "'><iframe src=javascript:alert(1)></iframe>",
    '" onmouseover="alert(1)',
    "' onfocus='alert(1)' autofocus='",
    "javascript:alert(1)",
    "<a href=javascript:alert(1)>x</a>",
    "<!--<script>alert(1)//-->",
    "]]><script>alert(1)</script>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;alert(1)",
    "<svg><title><style><!--</style><img src=x onerror=alert(1)>",
    "<math><mtext></p><style><img title='</style><img src=x onerror=alert(1)>'>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "\u202egnp.exe\u202c<script>\x00alert(1)</script>",
    "${alert(1)}{{alert(1)}}<%=alert(1)%>",
    "\\u003cscript\\u003ealert(1)\\u003c/script\\u003e",
)
"""Names and messages that become markup where somebody forgets to escape."""

STRUCTURE = {"ranks", "nodes", "shares", "level", "moment", "peak", "actions", "unit"}
"""Keys whose words the page reads rather than shows: lists of numbers, parts of a step, units."""


def poisoned(value, payload, key=""):
    """A document with a payload after every text that somebody could have written."""
    if isinstance(value, dict):
        return {name: poisoned(item, payload, name) for name, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item, payload, key) for item in value]
    if isinstance(value, str) and key not in STRUCTURE:
        return value + payload
    return value


@pytest.mark.parametrize("name", ["ddp", "mixed", "zero3-to-hsdp.diff"])
def test_a_page_as_before(name, explanation, matches_golden):
    """A page changes only when somebody means it to; style and script have tests of their own."""
    page = re.sub(r"(<(style|script)>).*?(</\2>)", r"\1\3", render_html(explanation(name)), flags=re.DOTALL)
    page = re.sub(r"sha256-[\w+/=]+", "sha256-", page)
    matches_golden(f"{name}.html", page.replace("><", ">\n<"))


@pytest.mark.parametrize("name", PLANS + COMPARISONS)
def test_a_page_is_whole(name, explanation, read):
    """Every element ends, every name is given once, every link inside leads somewhere."""
    page = read(render_html(explanation(name)))
    names = [element.attributes["id"] for element in page.all() if "id" in element.attributes]
    assert len(names) == len(set(names))
    links = [element.attributes["href"] for element in page.all("a")]
    assert {link.removeprefix("#") for link in links} <= set(names)
    assert {element.tag for element in page.all()} <= TAGS


@pytest.mark.parametrize("name", PLANS + COMPARISONS)
def test_a_page_runs_and_loads_nothing_but_its_own(name, explanation, read):
    """It is opened from a mail and from a shared drive: nothing else may run, nothing may be fetched."""
    text = render_html(explanation(name))
    page = read(text)
    policy = page.one("meta", http_equiv="Content-Security-Policy").attributes["content"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    for tag in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(page.one(tag).text.encode()).digest()).decode()
        assert rules.pop(f"{tag}-src") == f"'sha256-{digest}'"
    assert rules == {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'"}
    for element in page.all():
        assert not {"src", "style", "srcdoc", "action", "formaction", "xlink:href"} & set(element.attributes)
        assert not [attribute for attribute in element.attributes if attribute.startswith("on")]
    assert "http://" not in text
    assert "https://" not in re.sub(r"<li>[^<]*</li>", "", text)


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("name", ["mixed", "ddp", "zero3-to-hsdp.diff"])
def test_markup_in_names_stays_text(name, payload, explanation, read):
    """A run that is called like a script must not act with the rights of who opens its page."""
    clean = read(render_html(explanation(name)))
    text = render_html(poisoned(explanation(name), payload))
    page = read(text)
    assert len(list(page.all("script"))) == len(list(page.all("style"))) == 1
    assert {element.tag for element in page.all()} <= TAGS
    own = {attribute for element in clean.all() for attribute in element.attributes}
    assert {attribute for element in page.all() for attribute in element.attributes} <= own
    assert all(element.attributes["href"].startswith("#") for element in page.all("a"))
    shown = payload.replace("\x00", "\ufffd").replace("\u202e", "\ufffd").replace("\u202c", "\ufffd")
    assert shown in page.one("h1").text
    assert page.one("script").text == clean.one("script").text
    text.encode()


def test_every_text_of_a_document_is_poisoned_somewhere(explanation):
    """The payloads must reach what a user writes: its run, its network, its formulas, its axes' lines."""
    found = poisoned(explanation("mixed"), "<x>")
    assert found["run"].endswith("<x>")
    assert found["model"]["network"].endswith("<x>")
    assert found["formulas"][0]["text"].endswith("<x>")
    assert found["groups"][0]["collectives"][0]["reason"].endswith("<x>")
    assert found["warnings"][0]["message"].endswith("<x>")


@pytest.mark.parametrize("name", ["llama3-405b-4d", "megatron-3d"])
def test_a_page_of_512_ranks_is_small(name, explanation):
    """It is mailed, and opened on a phone."""
    document = explanation(name)
    assert document["where"]["num_devices"] == 512
    assert len(render_html(document).encode()) < 400_000


def test_a_page_of_sixteen_thousand_ranks_is_small(explanation, read):
    """Beyond a thousand ranks a node is one piece: squares that no one can tell apart would only cost."""
    document = copy.deepcopy(explanation("zero3"))
    document["mesh"]["axes"] = [{"axis": "dp", "size": 16384}]
    document["where"] |= {"num_devices": 16384, "num_nodes": 2048}
    document["where"]["nodes"] = [document["where"]["nodes"][0] | {"ranks": "0-16383", "nodes": "0-2047"}]
    document["groups"][0] |= {"ranks": "0-16383", "num_ranks": 16384, "nodes": "0-2047"}
    text = render_html(document)
    assert len(text.encode()) < 600_000
    assert len(list(read(text).all(class_="node"))) == 2048


def test_every_line_says_what_it_decided(explanation, read):
    """Without a script the page must still tell who decided what."""
    document = explanation("mixed")
    program = read(render_html(document)).one("ol")
    told = [element.text for element in program.all("ul")]
    assert len(told) == len(document["formulas"])
    assert "split tp: 30 params (vocab, heads, kv_heads, mlp)" in told[3]
    assert "2 stages over pp, 1f1b" in told[1]
    assert "no stronger rule than rollback when a rank is lost" in told[4]


def test_what_a_line_decided_names_its_number(explanation, read):
    """The script marks by these numbers: one that is missing hides a consequence."""
    document = explanation("mixed")
    page = read(render_html(document))
    rows = [element for element in page.all("tr") if "4" in (element.attributes.get("data-by") or "").split()]
    operations = [row for row in rows if "tensor parallelism" in row.text]
    by_line = {(f["block"], f["phase"], f["tensors"]) for g in document["groups"] for f in g["collectives"]
               if f["decided_by"] == document["formulas"][3]["at"]}  # fmt: skip
    assert len(operations) == len(by_line) > 0


def test_collectives_of_several_groups_are_one_row_with_their_sums(explanation, read):
    """Eight stages that do the same would hide the one that does not."""
    document = explanation("llama3-405b-4d")
    page = read(render_html(document))
    sent = sum(group["group_bytes"]["site"] for group in document["groups"])
    assert sent == document["sent_bytes"]["site"]
    (row,) = (
        row for row in page.all("tr") if "layers 0-125forward" in row.text and "params stored" in row.text
    )
    assert "all" in row.text


def test_a_plan_that_does_not_fit_says_so_first(explanation, read):
    """Who overlooks it pays for a run that dies in its first step."""
    document = copy.deepcopy(explanation("zero3"))
    memory = document["groups"][0]["memory"]
    document["where"]["device_bytes"] = memory["peak_bytes"] // 2
    document["fits"] = memory["fits"] = False
    page = read(render_html(document))
    verdict = next(page.all(class_="verdict bad"))
    assert verdict.text.startswith("Does not fit: ")
    assert list(page.all("line", class_="limit"))


def test_a_class_of_the_users_own_has_a_page(explanation, read):
    """Only torch knows its shapes: the page says so, and shows what is known."""
    document = copy.deepcopy(explanation("quickstart"))
    document |= {"groups": [], "stages": [], "decisions": [], "work": None, "pipeline": None, "fits": None}
    document |= {"replicated": None}
    document["where"]["nodes"] = []
    document["model"] |= {"parameters": None, "active_parameters": None, "layers": None}
    page = read(render_html(document))
    assert "Only torch knows the shapes" in page.text
    assert not list(page.all("table"))


def test_what_can_scroll_can_be_reached_by_keyboard(explanation, read):
    """A box that scrolls only under a finger is closed to who has none on it."""
    page = read(render_html(explanation("megatron-3d")))
    boxes = [element for element in page.all() if "scroll" in (element.attributes.get("class") or "").split()]
    assert boxes
    for box in boxes:
        assert box.attributes["tabindex"] == "0"
        assert box.attributes["role"] == "region"
        assert box.attributes["aria-label"]


@pytest.mark.parametrize("name", PLANS + COMPARISONS)
def test_tables_and_pictures_speak(name, explanation, read):
    """Who hears the page gets heads for cells and words for pictures, and headings without a gap."""
    page = read(render_html(explanation(name)))
    for table in page.all("table"):
        assert table.attributes["aria-label"]
        assert {head.attributes["scope"] for head in table.all("th")} <= {"col", "row"}
        width = len(list(next(table.all("thead")).all("th")))
        for row in next(table.all("tbody")).all("tr"):
            assert len([cell for cell in row.all() if cell.tag in ("th", "td")]) == width
    for picture in page.all(role="img"):
        assert picture.attributes["aria-label"]
    levels = [int(element.tag[1]) for element in page.all() if element.tag in ("h1", "h2", "h3")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(level - before <= 1 for before, level in itertools.pairwise(levels))


def test_bars_of_a_lane_do_not_overlap_and_stay_inside(explanation, read):
    """A bar beyond the border is cut off; two on each other hide a wait."""
    page = read(render_html(explanation("llama3-405b-4d")))
    picture = page.one("svg", class_="timeline")
    outlines = [path.attributes["d"] for path in picture.all("path")]
    lanes = {}
    for left, top, width in re.findall(r"M([\d.]+) (\d+)h([\d.]+)v", "".join(outlines)):
        lanes.setdefault(int(top), []).append((float(left), float(left) + float(width)))
    lane = next(picture.all("rect", class_="lane")).attributes
    start, end = int(lane["x"]), int(lane["x"]) + int(lane["width"])
    assert len(lanes) == 8
    for bars in lanes.values():
        bars.sort()
        assert bars[0][0] >= start
        assert bars[-1][1] <= end + 0.2
        assert all(second[0] - first[1] > -0.2 for first, second in itertools.pairwise(bars))


def test_a_comparison_shows_both_sides(explanation, read):
    """What a change does stands beside the line that does it."""
    document = explanation("zero3-to-hsdp.diff")
    page = read(render_html(document))
    assert page.one("h1").text == "hsdp against zero3"
    lines = [element.attributes["data-line"] for element in page.all("a", class_="line")]
    assert lines == ["-1", "-2", "-3", "+1", "+2", "+3", "+4"]
    (row,) = (row for row in page.all("tr") if row.text.startswith("paramskeep"))
    assert row.attributes["data-by"] == "+4"
    (step,) = (row for row in page.all("tr") if row.text.startswith("step"))
    figure = next(figure for figure in document["figures"] if figure["subject"] == "step")
    assert f"{100 * (figure['after'] / figure['before'] - 1):+.1f} %" in step.text


def test_equal_jobs_say_so(explanation, read):
    """An empty page would leave the reader in doubt."""
    page = read(render_html(explanation("quickstart-to-quickstart.diff")))
    assert "Both are the same plan." in page.text


def test_digits_of_the_digest_are_those_of_the_job(explanation, read):
    """A page must say which job it is about, to the byte."""
    document = explanation("mixed")
    page = read(render_html(document))
    shown = [
        code.text for code in page.all("code") if len(code.text) >= 16 and set(code.text) <= set(hexdigits)
    ]
    assert shown
    assert all(document["digest"].startswith(digits) for digits in shown)
