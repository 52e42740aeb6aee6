"""Launch scripts followed without being run: what bash would start, written down by hand."""

import contextlib
import shutil
import subprocess

import pytest

from trimtab.spec.migration import MigrationError
from trimtab.spec.migration.megatron.shell_script import follow


def started(text):
    """The words of the last command of a script."""
    return list(follow(text).commands[-1].words)


AS_BASH = {
    "variable": "A=4\necho --n $A \"$A b\" '$A' ${A}x",
    "default": 'echo ${A:-3} ${B-4} "${C:-5 6}"; ',
    "set default": "A=\necho ${A:-7} ${A-8} ${A:=9}",
    "array": 'A=(--x 1 --y "2 3")\necho ${A[@]} "${A[@]}" ${A[*]}',
    "array grows": "A=(1)\nA+=(2 3)\necho ${A[*]}",
    "text grows": 'A="--x 1"\nA+=" --y 2"\necho $A',
    "unquoted value is split": 'A="1  2   3"\necho $A "$A"',
    "comment": "A=( --x 1 # one\n  # --y 2\n  --z 3 )\necho ${A[@]} # --w",
    "lines go on": "echo --x \\\n  1 \\\n  --y",
    "arithmetic": "N=4; M=$((N*8+2)); echo $((M/5)) $(( M % 5 )) $(( -7/2 )) $((N>3)) $(((1+2)*3))",
    "let": 'A=3\n((B=A))\nif (( A > 2 )); then C="yes"; else C=no; fi\necho $C',
    "if": 'A=x\nif [ "$A" = "x" ]; then B=1; else B=2; fi\necho $B',
    "elif": "A=3\nif [[ $A == 1 ]]; then B=1; elif [ $A -ge 3 ]; then B=3; else B=4; fi\necho $B",
    "nested if": 'A=1\nif [ $A = 1 ]; then if [ -z "$A" ]; then B=2; else B=3; fi; fi\necho $B',
    "not": 'A=""\nif [ ! -n "$A" ]; then B=1; fi\necho $B',
    "and, or": "A=1\nif [ $A = 1 ] && [ $A = 2 ]; then B=1; else B=0; fi; if [[ $A = 2 || $A = 1 ]]; then C=1; fi\necho $B $C",
    "case": "A=7b\ncase $A in\n  7b|8b) L=32 ;;\n  70b) L=80 ;;\n  *) L=1 ;;\nesac\necho $L",
    "case of pattern": "A=llama70b\ncase $A in *7b) L=32;; *70b) L=80;; esac\necho $L",
    "here-document of cat": "cat <<EOF >/dev/null\n--not 1\nEOF\necho --x",
    "export": "export A=1 B=2\necho $A $B",
    "eval": 'A="echo --x 1"\neval $A',
    "bash -c": 'A=3\nbash -c "echo --x $A"',
    "quotes inside": 'A="it\'s"\necho $A \'a"b\' "c\\"d"',
    "one iteration": "for A in 5; do echo --x $A; done",
    "redirections": "echo --x 1 2>&1 >/dev/null",
    "indirect": "A_8=64\nA=$A_8\necho ${A}",
}


@pytest.mark.parametrize("text", AS_BASH.values(), ids=AS_BASH.keys())
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash says what is right")
def test_as_bash(text):
    """A degree that bash makes 8 and this reader 4 is another training. Bash itself says what is right."""
    said = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, timeout=10)
    words = started(text)
    assert words[0] == "echo"
    assert " ".join(words[1:]).split() == (said.stdout + _to_nowhere(text)).split()


def _to_nowhere(text):
    return "--x 1" if "/dev/null" in text and "cat" not in text else ""


def test_what_the_environment_sets_stays_as_written():
    """A value that nobody knows must not become an empty one, and nobody's environment is read."""
    assert started("A=a/b\necho --lr $LR --path ${HOME}/x $(date +%s) ${1} ${A##*/}") == [
        "echo", "--lr", "$LR", "--path", "$HOME/x", "$(date +%s)", "${1}", "${A##*/}",
    ]  # fmt: skip


def test_a_choice_that_is_open_is_left_out_and_told():
    """Two branches that both count would give two degrees."""
    script = follow('if [ "$1" = big ]; then\n  A="--x 1"\nfi\ncase $1 in\n  a) B=--y ;;\nesac\necho $A $B\n')
    assert script.commands[-1].words == ("echo", "$A", "$B")
    assert [note.split(":")[0] for note in script.notes] == ["line 1", "line 4"]


def test_a_loop_is_followed_once_and_told():
    """A sweep over sizes is many trainings, and one job is written."""
    script = follow("for TP in 1 2 4; do\n  train --tp $TP\ndone\n")
    assert [command.words for command in script.commands] == [("train", "--tp", "1")]
    assert script.notes == ["line 1: the loop over TP is followed once"]


def test_another_script_is_not_read():
    """What it sets is not known: a reader who is not told would look for it in vain."""
    assert follow("source env.sh\n").notes == ["line 1: env.sh was not read: what it sets is not known"]


def test_nothing_is_run(tmp_path):
    """A script that someone sends must be safe to look at."""
    follow(f"touch {tmp_path}/a\nA=$(touch {tmp_path}/b)\n`touch {tmp_path}/c`\neval touch {tmp_path}/d\n")
    assert not list(tmp_path.iterdir())


def test_a_script_handed_to_slurm():
    """Many launches stand in a here-document."""
    text = "A=4\nsbatch <<EOF\n#SBATCH --nodes=2\nsrun python pretrain_gpt.py --x $A\nEOF\n"
    assert started(text)[-2:] == ["--x", "4"]


def test_placeholders_are_no_redirections():
    """Published scripts write <path to the data> where a value belongs."""
    assert started("python train.py --data <path to the data> --lr 1") == [
        "python", "train.py", "--data", "$placeholder", "--lr", "1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo 'a\nb", 'line 1: the quote "\'" is never closed'),
        ('A=1\necho "a $A', "line 2: the quote '\"' is never closed"),
        ("\n\necho $(date", "line 3: the bracket '\\(' is never closed"),
        ("cat <<EOF\nabc\n", "the here-document up to 'EOF' never ends"),
        ("A=xxxxxxxxxxxxxxxx\n" + "A=$A$A\n" * 40, "line 17: a word grows beyond 1000000 characters"),
        ("A=xxxxxxxxxxxxxxxx\n" + "A+=$A\n" * 40, "the variable A grows beyond 1000000 characters"),
    ],
)
def test_scripts_without_end(text, message):
    """A half-read script gives half its flags; a small one must not fill the memory."""
    with pytest.raises(MigrationError, match=message):
        follow(text)


@pytest.mark.parametrize(
    "text", ["", "fi", "done; esac", "if", "case x in", "((", "$", "A=(", "<", ")(", "!", "if if if"]
)
def test_scraps(text):
    """What is no script at all must not end in a traceback."""
    with contextlib.suppress(MigrationError):
        follow(text)
