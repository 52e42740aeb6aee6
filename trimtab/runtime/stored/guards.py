"""What a class that is stored in pieces must not do, found out before it gives wrong numbers."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from trimtab.plan.module_storage import ModuleStorage
from trimtab.plan.tables import Table
from trimtab.runtime import compat
from trimtab.runtime.stored.unit import Unit
from trimtab.terms import InputError


def refuse_aliases(unit: Unit, output: object) -> None:
    """Refuse what a layer returns if it is one of its parameters.

    Raises: InputError.
    """
    memory = compat.storage_of(unit.full)
    if any(compat.storage_of(tensor) == memory for tensor in tensors_of(output)):
        raise InputError(
            f"{unit.label} returns its own parameter, which lies in pieces once the layer is done.\n"
            "  Return what is computed with it, or leave it whole: STORE params WHERE …"
        )


def tensors_of(output: Any) -> Iterator[Tensor]:
    """The tensors in what a forward pass returns."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for each in output.values():
            yield from tensors_of(each)
    elif isinstance(output, list | tuple):
        for each in output:
            yield from tensors_of(each)


class BufferGuard:
    """Refuses buffers that a forward pass writes: they are neither checkpointed nor equal on ranks.

    Args:
        module: Before its first forward pass.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._before: Mapping[str, tuple[int, int]] | None = self._seen()

    def check(self) -> None:
        """Call it after the first forward pass; afterwards it does nothing.

        Raises: InputError naming the buffers.
        """
        if self._before is None:
            return
        after = self._seen()
        written = sorted(name for name, seen in self._before.items() if after.get(name) != seen)
        self._before = None
        if written:
            raise InputError(
                f"forward writes the buffers {', '.join(written)}: where tensors are stored in pieces they would differ "
                "from rank to rank and be saved nowhere.\n  Keep such state out of the class, or take STORE out."
            )

    def _seen(self) -> Mapping[str, tuple[int, int]]:
        """Which tensor each buffer that is saved is, and how often it was written."""
        saved = self._module.state_dict(keep_vars=True).keys()
        return {
            name: (id(buffer), compat.num_writes(buffer))
            for name, buffer in self._module.named_buffers()
            if name in saved
        }


def explained(error: RuntimeError, storage: ModuleStorage) -> Exception:
    """An error of the user's model, with the reason if it used parameters that lay in pieces."""
    if not storage.keeps_in_pieces(Table.PARAMS) or "meta" not in str(error):
        return error
    return InputError(
        "a parameter of a layer was used while it lay in pieces, outside of the layer's forward.\n"
        "  Use it inside, or leave it whole: STORE params WHERE …\n"
        f"  Torch said: {str(error).splitlines()[0]}"
    )
