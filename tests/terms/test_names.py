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
    assert nearest_name("", ["llama2-7b", "gpt2-124m"]) is None


def test_a_beginning_finds_the_first_name_that_goes_on_from_it() -> None:
    """People say A100 where the catalog tells several apart; the letters alone are too few to be close."""
    assert nearest_name("a100", ["H100-SXM-80GB", "A100-SXM-40GB", "A100-SXM-80GB"]) == "A100-SXM-40GB"
