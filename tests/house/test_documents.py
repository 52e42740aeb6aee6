"""The documents say what is there: examples load, commands run, links lead somewhere, tables list every key."""

import doctest
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.house.markdown import ROOT, Block, blocks, documents, links, read, table_after, tracked_files
from trimtab.app.cli import run_cli
from trimtab.app.migrating import network_fields
from trimtab.catalog import network, network_names
from trimtab.catalog.hugging_face import family_names
from trimtab.plan import COLUMNS, Table, rows_of
from trimtab.spec import FaultKind, StrategyError, load_job, parse_strategy, resolve_layout
from trimtab.spec.fields import all_paths, meaning_at, phrase_of
from trimtab.spec.language import preset_names
from trimtab.spec.language.grammar import GRAMMAR
from trimtab.spec.language.vocabulary import (
    AVERAGES,
    BALANCES,
    COMPRESSIONS,
    DIMS,
    HOMES,
    LEVELS,
    ROUTES,
    SEQUENCE_WAYS,
    STAGE_SCHEDULES,
    TABLE_COLUMNS,
    TABLES,
    TYPES,
    VERBS,
)
from trimtab.spec.migration import Fate, Source, importer_for
from trimtab.spec.tunings import load_tuning
from trimtab.terms import ExitCode, LedgerClass, OnLoss, Phase

HARMLESS = {"explain", "plan", "schema", "strategy", "import", "export", "--help"}
"""Commands that start no training and, without --out, write nothing."""


def name_of(block: Block) -> str:
    return str(block)


def jobs() -> list[Block]:
    return [block for block in blocks("yaml") if re.search(r"^run:", block.text, re.MULTILINE)]


def commands() -> list[tuple[str, list[str], list[str]]]:
    """Place, arguments and printed lines of every harmless command in a console block."""
    found = []
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, *printed = part.splitlines()
            program, *arguments = shlex.split(command)
            assert program == "trimtab", f"{block}: {command}"
            if arguments[0] in HARMLESS or "--dry-run" in arguments or "--help" in arguments:
                found.append((str(block), arguments, printed))
    return found


def test_there_are_examples_of_each_sort() -> None:
    """A pattern that finds nothing would let every other test here pass."""
    assert len(jobs()) >= 2
    assert len(commands()) >= 3
    assert len(blocks("trim")) >= 8


@pytest.mark.parametrize("block", jobs(), ids=name_of)
def test_every_job_in_a_document_loads(block: Block) -> None:
    """A reader's first job file is copied from a document."""
    load_job(block.text, source=str(block), read=lambda path: read(path))


def test_the_example_files_load() -> None:
    """`make run` is one of them."""
    for path in tracked_files():
        if path.startswith("examples/tune/"):
            load_tuning(read(path), source=path)
        elif path.startswith("examples/") and path.endswith(".yaml"):
            load_job(read(path), source=path, read=lambda path: read(path))


@pytest.mark.parametrize(("place", "arguments", "printed"), commands())
def test_every_command_that_starts_nothing_runs(
    place: str,
    arguments: list[str],
    printed: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a document shows must be what the reader sees; `...` stands for lines that are left out."""
    monkeypatch.chdir(ROOT)
    assert run_cli(arguments) == ExitCode.DONE, place
    said = capsys.readouterr()
    actual = [line.rstrip() for line in (said.out + said.err).splitlines()]
    shown = [line for line in printed if line.strip() not in ("", "...")]
    missing = [line for line in shown if line.rstrip() not in actual]
    assert not missing, f"{place} shows what trimtab does not print: {missing}"


def test_the_schema_on_the_command_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Editors read it."""
    assert run_cli(["schema"]) == ExitCode.DONE
    assert "properties" in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("block", blocks("trim"), ids=name_of)
def test_every_formula_means_what_its_first_line_says(block: Block) -> None:
    """`-- on N devices` is accepted there; `-- on N devices, refused: words` is refused with these words."""
    match = re.match(r"-- (?:\S+ )?on ([0-9]+) devices(?: of \S+)?(?:, refused: (.*))?\n", block.text)
    assert match is not None, f"{block}: the first line must be a comment that names the devices"
    devices, refusal = int(match[1]), match[2]
    if refusal is None:
        resolve_layout(parse_strategy(block.text, source=str(block)), devices)
        return
    with pytest.raises(StrategyError) as caught:
        resolve_layout(parse_strategy(block.text, source=str(block)), devices)
    assert refusal in str(caught.value)


def test_the_grammar_in_the_document_is_the_parsers() -> None:
    """Who writes formulas by the page must not be surprised by the parser."""
    shown = [block.text for block in blocks("text") if block.document == "docs/language.md"]
    assert GRAMMAR.strip() in [text.strip() for text in shown]


def test_every_statement_of_the_language_has_a_section_with_an_example() -> None:
    """Who meets a statement in a preset looks it up here."""
    sections = re.split(r"^### ", read("docs/language.md"), flags=re.MULTILINE)[1:]
    assert [section.split("\n")[0] for section in sections] == list(VERBS)
    for section in sections:
        verb = section.split("\n")[0]
        examples = re.findall(r"^```trim\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        assert any(re.search(rf"^{verb} ", example, re.MULTILINE) for example in examples), verb


def test_every_word_of_the_language_is_listed() -> None:
    """A word that nobody lists is a word that nobody finds."""
    listed = {
        row[0].strip("`"): re.findall(r"`([^`]+)`", row[1])
        for row in table_after("docs/language.md", "## Words")
    }
    assert listed == {
        "tables": list(TABLES),
        "dims": list(DIMS),
        "types": list(TYPES),
        "levels": list(LEVELS),
        "SPLIT sequence … USING": [str(function) for function in SEQUENCE_WAYS],
        "SPLIT layers … USING": [str(function) for function in STAGE_SCHEDULES],
        "REDUCE … USING": [str(function) for function in ROUTES],
        "AVERAGE … USING": [str(function) for function in AVERAGES],
        "COMPRESS": [str(function) for function in COMPRESSIONS],
        "BALANCE BY": list(BALANCES),
        "OFFLOAD … TO": list(HOMES),
    }
    columns = [row[0].strip("`") for row in table_after("docs/language.md", "## Conditions")]
    assert columns == list(TABLE_COLUMNS)


def test_every_preset_is_listed() -> None:
    """The list is what `strategy ls` prints; a new preset belongs there."""
    lines = read("docs/language.md").splitlines()
    assert [name for name in preset_names() if not any(line.startswith(f"{name} ") for line in lines)] == []


@pytest.mark.parametrize("block", blocks("pycon"), ids=name_of)
def test_every_python_session_gives_what_it_shows(block: Block) -> None:
    """A reader types it in."""
    session = doctest.DocTestParser().get_doctest(block.text, {}, str(block), block.document, block.line)
    told: list[str] = []
    failed, tried = doctest.DocTestRunner(verbose=False).run(session, out=told.append)
    assert tried
    assert not failed, "".join(told)


def test_the_tables_of_a_network_are_explained() -> None:
    """A word of a formula that no page explains is a guess."""
    page = "docs/networks.md"
    assert [row[0].strip("`") for row in table_after(page, "## Tables")] == list(Table)
    assert tuple(row[0].strip("`") for row in table_after(page, "## Columns")) == COLUMNS
    assert {row[0].strip("`") for row in table_after(page, "### Families of configurations")} == set(
        family_names()
    )


@pytest.mark.parametrize("preset", ["gpt-3m", "llama-3m", "moe-3m", "qwen3-30b-a3b"])
def test_every_kind_and_dim_of_a_row_is_explained(preset: str) -> None:
    """As above, for what a WHERE compares and a SPLIT names."""
    page = "docs/networks.md"
    kinds = {
        table: set(re.findall(r"`(\w+)`", kinds))
        for tables, kinds in table_after(page, "## Kinds")
        for table in re.findall(r"`(\w+)`", tables)
    }
    dims = {row[0].strip("`") for row in table_after(page, "## Dims")}
    for row in rows_of(network(preset), batch=1, sequence=8, num_states=2, compute="fp32"):
        assert row.kind in kinds[row.table]
        assert dims >= set(row.dims)


def documented_keys() -> dict[str, list[str]]:
    """Cells of every row of the tables of keys, by key."""
    rows = re.findall(r"^\| `([\w.]+)` \|(.*)\|$", read("docs/job-file.md"), re.MULTILINE)
    return {key: [cell.strip() for cell in cells.split("|")] for key, cells in rows}


def test_every_key_of_the_job_file_is_documented_and_no_other() -> None:
    """A key that is not in the table does not exist for its readers; one too many is a promise."""
    keys = {
        ".".join(path)
        for path in all_paths()
        if not phrase_of(path).startswith("a mapping with keys such as")
    }
    assert documented_keys().keys() == keys


@pytest.mark.parametrize("key", documented_keys())
def test_the_row_of_a_key_says_what_the_schema_says(key: str) -> None:
    """What a key takes, and its default, stand in two places; they must not drift apart."""
    takes, default, meaning = documented_keys()[key]
    path = tuple(key.split("."))
    assert takes == phrase_of(path), "copy this phrase into the table"
    assert meaning
    docstring = " ".join(meaning_at(path).split())
    if docstring.endswith("Required."):
        assert default == "required"
    elif "Default: " in docstring:
        assert docstring.partition("Default: ")[2].startswith(default.strip("`")), docstring


@pytest.mark.parametrize("document", documents())
def test_every_relative_link_leads_to_a_file(document: str) -> None:
    """A dead link is a promise that nobody kept."""
    here = (ROOT / document).parent
    relative = [link.partition("#")[0] for link in links(document) if "://" not in link]
    assert [link for link in relative if link and not (here / link).exists()] == []


@pytest.mark.parametrize("document", documents())
def test_every_file_that_a_document_names_exists(document: str) -> None:
    """Code moves; the documents must notice."""
    named = re.findall(r"`((?:trimtab|tests|docs|examples|changelog\.d)/[\w./-]*\w)`", read(document))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_rule_of_on_loss_is_explained() -> None:
    """Who chooses a rule must find what it guarantees."""
    rows = table_after("docs/failures.md", "## `on_loss`")
    assert {row[0].strip("`") for row in rows} == set(OnLoss)


def test_every_planted_fault_and_phase_is_explained() -> None:
    """Faults are for trying out; who tries looks here first."""
    rows = table_after("docs/failures.md", "## Trying it")
    assert {row[0].strip("`") for row in rows} == set(FaultKind)
    last = read("docs/failures.md").rstrip().splitlines()[-1]
    assert re.findall(r"`(\w+)`", last) == list(Phase)


def test_every_class_of_the_ledger_is_explained_in_its_layer() -> None:
    """A line of the report that nobody explains is a line that nobody acts on."""
    rows = table_after("docs/ledger.md", "## Classes")
    assert [(row[1].strip("`"), row[0]) for row in rows] == [
        (kind.value, kind.layer.value) for kind in LedgerClass
    ]


def test_every_exit_code_is_explained() -> None:
    """Scripts around a run depend on them."""
    rows = table_after("docs/engines.md", "## Exit codes")
    assert [int(row[0]) for row in rows] == list(ExitCode)


def test_every_decision_is_listed_and_has_its_parts() -> None:
    """A decision without alternatives is a habit."""
    pages = sorted(path.name for path in (ROOT / "docs/decisions").glob("2*.md"))
    listed = list(links("docs/decisions/README.md"))
    assert sorted(listed) == pages
    for page in pages:
        text = read(f"docs/decisions/{page}")
        assert f"\n{page[:10]}. Status: " in text, page
        for part in ("Problem", "Choice", "Alternatives", "What would change our mind"):
            assert f"\n## {part}\n" in text, f"{page} lacks {part}"


def test_changelog_fragments_are_named_after_a_room_and_a_kind() -> None:
    """A release gathers them by name."""
    rooms = {path.parent.name for path in (ROOT / "trimtab").glob("*/__init__.py")}
    for path in sorted((ROOT / "changelog.d").iterdir()):
        if path.name == "README.md":
            continue
        match = re.fullmatch(r"(\w+)(-\w+)+\.(added|changed|fixed|removed)\.md", path.name)
        assert match is not None, path.name
        assert match[1] in rooms, path.name
        assert path.read_text(encoding="utf-8").strip(), path.name


def test_the_readme_is_short_and_begins_with_the_two_commands() -> None:
    """It is the first page that anybody sees."""
    lines = read("README.md").splitlines()
    assert len(lines) < 120
    head = "\n".join(lines[:10])
    assert "make run" in head
    assert "make test" in head
    assert Path(ROOT / "Makefile").is_file()


MOVING = "docs/migrating.md"


def settings_of(section: str) -> list[tuple[str, list[str]]]:
    """Each row of the table of a system: a setting with its value, and the formulas that it becomes."""
    rows = table_after(MOVING, section)
    return [(row[0].strip("`"), re.findall(r"`([^`]+)`", row[1])) for row in rows]


@pytest.mark.parametrize(("setting", "formulas"), settings_of("### What becomes of settings"))
def test_a_setting_of_deepspeed_becomes_what_the_page_says(setting: str, formulas: list[str]) -> None:
    """Who moves in looks up his settings there."""
    flag, value = setting.split(" ", 1)
    *sections, key = flag.split(".")
    file: dict[str, Any] = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3}}
    place = file
    for section in sections:
        place = place.setdefault(section, {})
    place[key] = json.loads(value)
    assert_becomes("deepspeed", json.dumps(file), formulas)


@pytest.mark.parametrize(("setting", "formulas"), settings_of("## torchtitan"))
def test_a_setting_of_torchtitan_becomes_what_the_page_says(setting: str, formulas: list[str]) -> None:
    """As above."""
    flag, value = setting.split(" ", 1)
    assert_becomes("torchtitan", f"{flag} = {value}", formulas)


def assert_becomes(system: str, text: str, formulas: list[str]) -> None:
    migration = importer_for(system)(Source(text=text, name="settings", devices=8))
    assert formulas
    assert set(formulas) <= set(migration.formulas.splitlines())


def test_flags_of_megatron_become_the_formulas_that_are_listed() -> None:
    """Who moves in looks up the flags of their own script here."""
    rows = table_after("docs/migrating.md", "## Flags and formulas")
    assert len(rows) >= 20
    networks = {name: network_fields(network(name)) for name in network_names()}
    shape = (
        "--num-layers",
        "8",
        "--hidden-size",
        "256",
        "--num-attention-heads",
        "8",
        "--global-batch-size",
        "64",
    )
    for flags, formula in rows:
        words = flags.strip("`").split()
        source = Source(text="", name="flags", flags=(*shape, *words), devices=16, networks=networks)
        migration = importer_for("megatron")(source)
        assert formula.strip("`") in migration.formulas.splitlines(), flags
        assert not [found for found in migration.settings if found.fate is Fate.IMPOSSIBLE], flags
