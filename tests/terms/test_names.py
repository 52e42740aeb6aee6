from trimtab.terms import nearest_name


def test_a_typing_error_finds_the_name_that_was_meant() -> None:
    """Without it a user with one wrong letter reads the whole list."""
    assert nearest_name("lama2-7b", ["llama2-7b", "gpt2-124m"]) == "llama2-7b"


def test_case_does_not_matter_and_the_known_spelling_comes_back() -> None:
    """Names of accelerators are written in capitals; users type them in small letters."""
    assert nearest_name("h100-sxm-80gb", ["A100-SXM-80GB", "H100-SXM-80GB"]) == "H100-SXM-80GB"


def test_a_name_that_resembles_nothing_gets_no_suggestion() -> None:
    """A far-fetched suggestion is worse than the list alone."""
    assert nearest_name("zzz", ["llama2-7b", "gpt2-124m"]) is None
