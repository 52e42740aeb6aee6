"""In which order do a rank's operators run, and which values does nobody read any more after each?"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from trimtab.plan.physical import Update
from trimtab.plan.program import Block, Operator, OperatorKind

FORWARD_OF = {
    kind: OperatorKind(kind.value.removesuffix("_grad"))
    for kind in OperatorKind
    if kind.value.endswith("_grad")
}
"""Whose gradient an operator makes, by kind."""


@dataclass(frozen=True, slots=True)
class Turn:
    """An operator, and the values that are let go after it."""

    operator: Operator
    dead: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockTurns:
    """The program of a block as it runs."""

    forward: tuple[Turn, ...]
    recompute: tuple[Turn, ...]
    backward: tuple[Turn, ...]


def turns_of(block: Block) -> BlockTurns:
    """The order of a block's operators: as in the plan, but gradients are added up as soon as they are there."""
    backward = added_up_at_once(block.backward)
    kept = {*block.kept, block.result, block.gradient, "loss"}
    for_gradients = {name for operator in backward for name in read_by(operator, block)}
    return BlockTurns(
        forward=_turns(block.forward, block, kept),
        recompute=_turns(block.recompute, block, kept | for_gradients),
        backward=_turns(backward, block, kept),
    )


def update_turns(update: Update, last: Collection[str]) -> tuple[Turn, ...]:
    """The update in order; ``last`` are values that are read when all has run."""
    return _turns(update.operators, None, {*update.results.values(), *last})


def added_up_at_once(operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """Each gradient is added to those before it as soon as it is made, so that few of them live at once."""
    adding = {
        operator.inputs[0]: operator for operator in operators if operator.kind is OperatorKind.ACCUMULATE
    }
    found: list[Operator] = []
    for operator in operators:
        if operator.kind is not OperatorKind.ACCUMULATE:
            found.append(operator)
            found += [adding[name] for name in operator.outputs if name in adding]
    assert len(found) == len(operators), "what is added up is made in the same pass"
    return tuple(found)


def sums_in_place(update: Update) -> Mapping[str, Operator]:
    """The sums over ranks that take the place of their summands, by summand.

    Gradients that travel together are added up behind each other, in one vector that stays from step to step; those of
    both uses of a tied matrix, where they are one sum, in the place of that sum. Nobody else reads a summand.
    """
    found: dict[str, Operator] = {}
    makers = {name: operator for operator in update.operators for name in operator.outputs}
    for operator in update.operators:
        if not _can_be_in_place(operator, update):
            continue
        found |= dict.fromkeys(operator.inputs, operator)
        for name in operator.inputs:
            if name in makers and update.is_tied_at_once:
                found |= dict.fromkeys(makers[name].inputs, operator)
    return found


def _can_be_in_place(operator: Operator, update: Update) -> bool:
    transfer = operator.transfer
    if operator.kind is not OperatorKind.ALL_REDUCE or transfer is None or len(operator.inputs) == 1:
        return False
    made_by = {name: found.kind for found in update.operators for name in found.outputs}
    read = {name for found in update.operators if found is not operator for name in found.inputs}
    # Only the backend sums in place; our own routes make a vector of what arrives.
    transfers = (transfer, *(found for _, found in operator.variants))
    return (
        all(found.compress == "none" and found.route == "native" for found in transfers)
        and all(made_by.get(name, OperatorKind.SUM) is OperatorKind.SUM for name in operator.inputs)
        and all(update.values[name].dtype == transfer.wire for name in operator.inputs)
        and read.isdisjoint(operator.inputs)
    )


def read_by(operator: Operator, block: Block) -> tuple[str, ...]:
    """What an operator reads: a gradient may find anything that its forward operator took or gave, but for masks."""
    if operator.kind is OperatorKind.DROP_GRAD:
        return operator.inputs
    kind = FORWARD_OF.get(operator.kind)
    forward = (
        found for found in block.forward if found.kind is kind and found.parameters == operator.parameters
    )
    return (*operator.inputs, *(name for found in forward for name in (*found.inputs, *found.outputs)))


def _turns(operators: Sequence[Operator], block: Block | None, kept: Collection[str]) -> tuple[Turn, ...]:
    last: dict[str, int] = {}
    for index, operator in enumerate(operators):
        read: Iterable[str] = operator.inputs if block is None else read_by(operator, block)
        last |= dict.fromkeys((*operator.outputs, *read), index)
    dead: list[list[str]] = [[] for _ in operators]
    for name, index in last.items():
        if name not in kept:
            dead[index].append(name)
    return tuple(Turn(operator, tuple(names)) for operator, names in zip(operators, dead, strict=True))


def norm_piece(elements: int) -> int:
    """Elements of a gradient that are squared in fp64 at once: twice their bytes live meanwhile.

    >>> norm_piece(1000), norm_piece(2**21)
    (65536, 131072)
    """
    return max(2**16, -(-elements // 16))


def gradient_rows(rows: int) -> int:
    """Rows of a matrix's gradient that are made and added at once, where it is added up over tokens: a sixteenth.

    >>> gradient_rows(32000), gradient_rows(67)
    (2000, 5)
    """
    return -(-rows // 16)


def loss_tokens(tokens: int, vocab: int) -> int:
    """Tokens whose logits are looked at together where ranks have a part of the vocabulary each, or none is kept.

    What is made of logits, and where none is kept logits themselves, live for so many tokens only, in fp32: a sixteenth
    of them, or 16384 logits.

    >>> loss_tokens(8192, 32000), loss_tokens(32, 67), loss_tokens(4, 2**20)
    (512, 32, 1)
    """
    return min(tokens, max(-(-tokens // 16), 2**14 // vocab, 1))
