"""Nothing in the repository points at the place where somebody works on it."""

import re

from tests.house.markdown import ROOT, tracked_files

FORBIDDEN = (
    r"(?<![\w.])/(?:(?:work|tmp|root|Users|mnt)/\w|home/(?!ada\b)\w)",
    r"[\w-]+\.(?:internal|corp|lan)\b",
    r"https?://[\w.-]*(?:artifact|nexus|proxy|mirror|devpi|pypi)[\w.-]*",
    r"--(?:extra-)?index-url",
)
"""Folders of one machine, hosts of one network, registries of packages. Ada is the user of examples."""

NOT_TEXT = (".safetensors", ".csv", ".gz", ".png")


def test_no_file_names_a_machine_a_host_or_a_registry() -> None:
    """A path that exists on one machine is noise on every other, and says more than it should."""
    pattern = re.compile("|".join(FORBIDDEN))
    found = []
    for name in tracked_files():
        if name == "tests/house/test_words.py" or name.endswith(NOT_TEXT):
            continue
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), start=1):
            if match := pattern.search(line):
                found.append(f"{name}:{number}: {match[0]}")
    assert found == []


def test_the_pattern_finds_what_it_is_for() -> None:
    """A pattern that matches nothing forbids nothing."""
    pattern = re.compile("|".join(FORBIDDEN))
    for text in ("see /tmp/x", "cd /work/main", "https://pypi.example.org/simple", "build.corp"):
        assert pattern.search(text), text
    for text in ("torch/tmp/x", "docs/work.md", "a/home/b", "https://github.com/x"):
        assert not pattern.search(text), text
