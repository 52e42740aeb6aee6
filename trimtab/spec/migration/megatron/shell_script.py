"""A shell script followed, never run: what it assigns, and the commands it would start.

Variables, arrays, arithmetic, defaults, ``if`` and ``case`` are followed as far as the text decides them. A
loop is followed once. What the environment or an argument decides is left out, and said.
"""

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from trimtab.spec.migration.megatron.shell_tests import holds
from trimtab.spec.migration.megatron.shell_tokens import Document, Mark, PieceKind, Token, Word, tokenize
from trimtab.spec.migration.megatron.shell_values import Variables


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One command as it would be started.

    Args:
        words: Its name and arguments, variables filled in.
        line: Where it stands; in a text that another command runs, counted from that text's beginning.
    """

    words: tuple[str, ...]
    line: int


@dataclass(slots=True)
class Script:
    """What following a script gave.

    Args:
        variables: What it assigned.
        commands: What it would start, in order.
        notes: Which parts were left out, and why.
    """

    variables: Variables = field(default_factory=Variables)
    commands: list[Command] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def follow(text: str, script: Script | None = None) -> Script:
    """The script that a text is; a second text goes on where the first ended.

    Raises: MigrationError for a quote or bracket that is never closed.
    """
    script = script or Script()
    _define_allocation(text, script.variables)
    _Follower(tokens=tokenize(_PLACEHOLDER.sub("$placeholder", text)), script=script, depth=0).run(())
    return script


_PLACEHOLDER = re.compile(r"(?<!<)<(?=\w)[^<>\n]*\w>")
"""``<path to the data>``, which stands for a value in many a published script and would be read as a redirection."""


_SBATCH = re.compile(r"^#SBATCH\s+--?([a-zA-Z-]+)[=\s]\s*(\S+)", re.MULTILINE)
_NODES, _TASKS, _GPUS = "SLURM_NNODES", "SLURM_NTASKS_PER_NODE", "SLURM_GPUS_ON_NODE"
_ALLOCATED = {
    "nodes": (_NODES, "SLURM_JOB_NUM_NODES"),
    "N": (_NODES, "SLURM_JOB_NUM_NODES"),
    "ntasks-per-node": (_TASKS,),
    "gres": (_GPUS,),
    "gpus-per-node": (_GPUS,),
}


def _define_allocation(text: str, variables: Variables) -> None:
    """What Slurm would set for the resources that the script asks for."""
    for option, value in _SBATCH.findall(text):
        count = re.search(r"(\d+)$", value)
        for name in _ALLOCATED.get(option, ()) if count else ():
            assert count is not None
            variables.assign(name, (count[1],), is_added=False)


_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^]]*\])?(\+?)=")
_DECLARE = frozenset({"export", "declare", "local", "readonly", "typeset"})
_SHELLS = frozenset({"bash", "sh", "zsh", "/bin/bash", "/bin/sh"})
_READS_SCRIPTS = frozenset({"sbatch", "bash", "sh", "ssh", "srun"})
_SEPARATORS = frozenset({";", "\n", "&&", "||", "|", "&", ")", "("})
_MAX_DEPTH = 4


@dataclass(slots=True)
class _Follower:
    """Reads tokens from left to right; a branch that is not taken is read without effect."""

    tokens: Sequence[Token]
    script: Script
    depth: int
    at: int = 0
    is_active: bool = True

    def run(self, stop: Sequence[str]) -> str:
        """Follow statements up to one of the words or marks in `stop`, which is read too; "" at the end."""
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            text = token.text if isinstance(token, Mark) else token.plain if isinstance(token, Word) else None
            if text in stop:
                self.at += 1
                return str(text)
            if isinstance(token, Word):
                self._statement(token)
            else:
                self.at += 1
        return ""

    def _statement(self, word: Word) -> None:
        keyword = word.plain
        if keyword == "if":
            self._if()
        elif keyword in ("while", "until"):
            self._while(is_until=keyword == "until")
        elif keyword in ("for", "select"):
            self._for()
        elif keyword == "case":
            self._case()
        elif keyword in ("{", "}", "!", "time", "then", "do", "function"):
            self.at += 1
        else:
            self._simple()

    def _if(self) -> None:
        was_active, is_open = self.is_active, True
        line = self._line()
        self.at += 1
        while True:
            self.is_active = was_active
            verdict = self._condition("then", is_asked=is_open)
            if verdict is None and was_active and is_open:
                self._note(
                    line, "a condition depends on what the script does not say: its branch is left out"
                )
            self.is_active = was_active and is_open and bool(verdict)
            is_open = is_open and not verdict
            ended = self.run(("elif", "else", "fi"))
            if ended == "else":
                self.is_active = was_active and is_open
                ended = self.run(("fi",))
            if ended != "elif":
                self.is_active = was_active
                return

    def _while(self, *, is_until: bool) -> None:
        was_active, line = self.is_active, self._line()
        self.at += 1
        verdict = self._condition("do", is_asked=True)
        self.is_active = was_active and (verdict is None or verdict != is_until)
        if self.is_active:
            self._note(line, "a loop is followed once")
        self.run(("done",))
        self.is_active = was_active

    def _for(self) -> None:
        line = self._line()
        self.at += 1
        words = self._words_until(("do",))
        name = words[0].plain if words and isinstance(words[0], Word) else None
        items = [item for word in words[2:] if isinstance(word, Word) for item in self._fields(word)]
        if name and items and self.is_active:
            self.script.variables.assign(name, (items[0],), is_added=False)
        if self.is_active and len(items) != 1:
            self._note(line, f"the loop over {name or 'numbers'} is followed once")
        self.run(("done",))

    def _case(self) -> None:
        was_active, line = self.is_active, self._line()
        self.at += 1
        subject_tokens = self._words_until(("in",))
        subject = subject_tokens[0] if subject_tokens else None
        value = self.script.variables.known(subject) if isinstance(subject, Word) else None
        is_open, start = was_active and value is not None, self.at
        while (patterns := self._patterns()) is not None:
            is_chosen = is_open and any(fnmatch.fnmatchcase(value or "", pattern) for pattern in patterns)
            is_open = is_open and not is_chosen
            self.is_active = is_chosen
            if self.run((";;", "esac")) != ";;":
                break
        self.is_active = was_active
        if value is None and was_active and self._says_something(start):
            self._note(line, "a choice depends on what the script does not say: all of it is left out")

    def _patterns(self) -> list[str] | None:
        """The patterns before one branch of a case; None at its end."""
        patterns: list[str] = []
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            if isinstance(token, Mark) and token.text == ")":
                return patterns
            if isinstance(token, Word):
                if token.plain == "esac":
                    return None
                patterns.append(self.script.variables.text(token))
        return None

    def _says_something(self, start: int) -> bool:
        """Whether the tokens since a place assign a variable or name a flag."""
        words = [token for token in self.tokens[start : self.at] if isinstance(token, Word)]
        texts = [word.pieces[0].text for word in words if word.pieces[0].kind is PieceKind.TEXT]
        return any(text.startswith("--") or _ASSIGNMENT.match(text) for text in texts)

    def _condition(self, end: str, *, is_asked: bool) -> bool | None:
        """Read a condition up to a word; whether it holds, None if nobody asks or the text does not tell."""
        tokens = self._words_until((end,))
        return holds(tokens, self.script.variables) if self.is_active and is_asked else None

    def _simple(self) -> None:
        """One command: assignments before it, then its words; with the here-document that follows."""
        line, words, is_declaration = self._line(), list[str](), False
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if isinstance(token, Mark) and token.text in _SEPARATORS | {";;"}:
                break
            self.at += 1
            if isinstance(token, Document):
                continue
            assert isinstance(token, Word)
            is_declaration = is_declaration or (not words and token.plain in _DECLARE)
            if (not words or is_declaration) and self._assigns(token, is_exported=is_declaration):
                continue
            words += self._fields(token)
        self._start(words, line)

    def _assigns(self, word: Word, *, is_exported: bool) -> bool:
        """Whether a word is an assignment, which is then made; an array's elements are read with it."""
        first = word.pieces[0]
        match = (
            _ASSIGNMENT.match(first.text) if first.kind is PieceKind.TEXT and not first.is_quoted else None
        )
        if match is None:
            return False
        name, is_added = match[1], match[2] == "+"
        rest = (
            *((type(first)(kind=first.kind, text=first.text[match.end() :], is_quoted=False),)),
            *word.pieces[1:],
        )
        value = Word(pieces=tuple(piece for piece in rest if piece.text or piece.is_quoted), line=word.line)
        elements: tuple[str, ...] = (self.script.variables.text(value),)
        if not value.pieces and self._is_glued_bracket():
            elements = self._array()
        if self.is_active:
            self.script.variables.assign(name, elements, is_added=is_added)
            self.script.variables.exported |= {name} if is_exported else set()
        return True

    def _is_glued_bracket(self) -> bool:
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        return isinstance(token, Mark) and token.text == "(" and token.is_glued

    def _array(self) -> tuple[str, ...]:
        self.at += 1
        elements: list[str] = []
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            if isinstance(token, Mark) and token.text == ")":
                break
            if isinstance(token, Word):
                elements += self._fields(token)
        return tuple(elements)

    def _start(self, words: list[str], line: int) -> None:
        document = self._document()
        if not self.is_active or not words:
            return
        if inner := _inner_script(words):
            self._follow_inside(inner, line)
        elif document and words[0] in _READS_SCRIPTS:
            self._follow_inside(document, line)
        elif words[0] in ("source", "."):
            self._note(line, f"{' '.join(words[1:])} was not read: what it sets is not known")
        else:
            self.script.commands.append(Command(words=tuple(words), line=line))

    def _document(self) -> str:
        """The here-document of the command just read: it stands behind the next line end."""
        following = self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else None
        return following.text if isinstance(following, Document) else ""

    def _follow_inside(self, text: str, line: int) -> None:
        if self.depth == _MAX_DEPTH:
            self._note(line, "scripts inside scripts inside scripts were left out")
            return
        _Follower(tokens=tokenize(text), script=self.script, depth=self.depth + 1).run(())

    def _words_until(self, stop: Sequence[str]) -> list[Token]:
        """The tokens before one of the words in `stop`, which is read too."""
        found: list[Token] = []
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            if isinstance(token, Word) and token.plain in stop:
                break
            found.append(token)
        return found

    def _fields(self, word: Word) -> list[str]:
        return self.script.variables.fields(word) if self.is_active else []

    def _line(self) -> int:
        return self.tokens[self.at].line

    def _note(self, line: int, sentence: str) -> None:
        if self.depth == 0:
            self.script.notes.append(f"line {line}: {sentence}")


def _inner_script(words: Sequence[str]) -> str:
    """The text that a command runs as a script of its own: behind ``eval``, or behind the -c of a shell."""
    if words[0] == "eval":
        return " ".join(words[1:])
    for index, word in enumerate(words[:-1]):
        if word in _SHELLS:
            options = words[index + 1 :]
            for place, option in enumerate(options[:-1]):
                if re.fullmatch(r"-[a-z]*c", option):
                    return options[place + 1]
    return ""
