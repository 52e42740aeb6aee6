"""Flags by name, and what is known of those that become nothing."""

import pytest

from tests.spec.migration.conftest import fates
from trimtab.spec.migration import Fate, MigrationError
from trimtab.spec.migration.megatron.flags import Flags, parse_flags
from trimtab.spec.migration.megatron.topics import (
    gatherers,
    is_known_flag,
    nearest_flag,
    read_flags,
    switches,
    topic_of,
    topics,
)


def test_values_of_a_flag():
    """A value that begins with a minus is a value, and a flag without one is a switch."""
    flags = Flags(
        parse_flags(
            [
                "--lr=1e-4",
                "--min-lr",
                "-1",
                "--bf16",
                "--split",
                "1",
                "2",
                "3",
                "--data",
                "a=b",
                "--x=",
                "--y",
            ]
        )
    )
    assert flags.number("--lr") == 1e-4
    assert flags.number("--min-lr") == -1
    assert flags.texts("--split") == ("1", "2", "3")
    assert "--bf16" in flags
    assert flags.text("--bf16") is None
    assert flags.text("--data") == "a=b"


def test_the_last_of_two_counts(migrate):
    """argparse takes the last; a table without the first would hide why it had no effect."""
    migration = migrate("--seed 1 --seed 2")
    assert migration.job["train"]["seed"] == 2
    seeds = [setting for setting in migration.settings if setting.flag == "--seed"]
    assert [(setting.value, setting.fate) for setting in seeds] == [
        ("1", Fate.IRRELEVANT),
        ("2", Fate.CARRIED),
    ]


def test_underscores_are_hyphens(migrate):
    """Launchers of both spellings are in use."""
    assert "tp 2" in migrate("--tensor_model_parallel_size 2").formulas


def test_an_open_value_is_told(migrate):
    """A variable of the environment must not pass for a number that was carried."""
    setting = fates(migrate("--lr $LR"))["--lr"]
    assert setting.fate is Fate.IMPOSSIBLE
    assert "a variable that nothing sets here" in setting.reason


def test_variables_that_may_hold_flags_are_told(migrate):
    """A file that another one sources holds half of the flags; someone who is not told misses them later."""
    text = "torchrun $LAUNCH pretrain_gpt.py $MODEL --num-layers 2 --hidden-size 64 --num-attention-heads 2 "
    text += "$MORE --bf16 $OTHER --lr $LR --log-throughput ${EXTRA_ARGS} --data-path $A $B\n"
    found = fates(migrate(text=text))
    for name in ("$LAUNCH", "$MODEL", "$MORE", "$OTHER", "$EXTRA_ARGS"):
        assert found[name].fate is Fate.IMPOSSIBLE
        assert "give them behind the file" in found[name].reason
    assert found["--bf16"].fate is found["--num-attention-heads"].fate is Fate.CARRIED
    assert (found["--lr"].value, found["--data-path"].value) == ("$LR", "$A $B")


def test_an_unknown_flag_is_named_with_its_nearest(migrate):
    """argparse refuses a misspelt flag; here it must at least be seen."""
    setting = fates(migrate("--tensor-model-paralell-size 2"))["--tensor-model-paralell-size"]
    assert setting.fate is Fate.IMPOSSIBLE
    assert setting.reason.endswith("the nearest that is known is --tensor-model-parallel-size")


def test_every_flag_has_one_answer():
    """A flag that is read and listed under a topic too would have two fates, and the reader sees one."""
    exact = [flag for topic in topics() for flag in topic.flags if "*" not in flag]
    assert not set(exact) & set(read_flags())
    assert {*switches(), *gatherers()} <= set(read_flags())
    assert not set(switches()) & set(gatherers())
    assert len(exact) == len(set(exact))
    assert len({*read_flags()}) == len(read_flags())
    assert all(topic.reason and topic.fate in (Fate.IMPOSSIBLE, Fate.IRRELEVANT) for topic in topics())


@pytest.mark.parametrize(
    ("flag", "topic"),
    [
        ("--log-interval", "logging"),
        ("--moe-router-score-function", "router_variants"),
        ("--mtp-num-layers", "multi_token"),
        ("--q-lora-rank", "attention_variants"),
        ("--init-method-std", "initialisation"),
    ],
)
def test_topics(flag, topic):
    """The reason has to be that of the flag, not of one that begins alike."""
    found = topic_of(flag)
    assert found is not None
    assert found.name == topic


def test_nearest():
    """A hint for something that is no typing error misleads."""
    assert nearest_flag("--hiden-size") == "--hidden-size"
    assert nearest_flag("--zzzzzzzzzzzzzz") is None
    assert is_known_flag("--tensor-model-parallel-size")
    assert not is_known_flag("--tensor-model")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999", "0x10", "1,5", ""])
def test_numbers_that_are_none(value):
    """nan as a learning rate trains nothing."""
    with pytest.raises(MigrationError, match=r"it takes a (finite )?number"):
        Flags(parse_flags(["--lr", value])).number("--lr")
