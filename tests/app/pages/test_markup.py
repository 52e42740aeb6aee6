from trimtab.app.pages.markup import Markup, element, joined, text, trusted, visible


def test_text_is_escaped_in_content_and_in_attributes():
    """A name is never markup, wherever it stands."""
    found = element("a", "<b>&", title='"><script>', href="#x")
    assert found == '<a title="&quot;&gt;&lt;script&gt;" href="#x">&lt;b&gt;&amp;</a>'


def test_markup_is_not_escaped_twice():
    """Elements hold elements."""
    assert element("p", element("b", "x & y"), " z") == "<p><b>x &amp; y</b> z</p>"
    assert text(text("&")) == "&amp;"


def test_markup_joined_to_a_text_is_text_again():
    """Only the builder makes markup: what is pasted together from it must be escaped, not trusted."""
    assert not isinstance(trusted("<b>") + "<i>", Markup)
    assert element("p", trusted("<b>") + "<i>") == "<p>&lt;b&gt;&lt;i&gt;</p>"


def test_attributes_that_are_off_are_left_out():
    """``open=""`` would open what ``open=False`` keeps shut."""
    assert element("details", open=False, id=None) == "<details></details>"
    assert (
        element("details", open=True, class_="x", aria_label=3)
        == '<details open class="x" aria-label="3"></details>'
    )


def test_nothing_is_left_out_but_none():
    """A zero is a figure."""
    assert joined([0, None, "", 1]) == "01"


def test_characters_that_hide_or_turn_the_text_are_shown():
    """A name that reads backwards, or holds half a character, looks like another one or stops the page."""
    assert visible("a\u202eb\u200bc\x00d\ud800e") == "a\ufffdb\ufffdc\ufffdd\ufffde"
    assert visible("zwölf 日本 a\u00a0b\n") == "zwölf 日本 a\u00a0b\n"
    element("p", "\ud800", title="\ud800").encode()
