"""How many bytes of tensors are alive, and what are they for?

A CPU has no allocator that could be asked. So every operator's outputs are looked at as torch dispatches it: a storage
that was not seen before is counted until it is freed, each one once, however many tensors view it. What a kernel
allocates and frees by itself is not seen.
"""

import time
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trimtab.runtime.compat import TorchDispatchMode

_LETTING_GO_S = 0.001
"""A thread of the backend drops what a finished collective sent when the interpreter is free for it: so long this thread leaves
it free before something counts, or what is gone would be counted now and then."""


@dataclass(kw_only=True, slots=True)
class _Living:
    """A storage that has not been freed."""

    reference: "weakref.ref[torch.UntypedStorage]"
    size_bytes: int
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """The most bytes that lived at once.

    Args:
        total_bytes: Of all storages.
        by_label: What they were for, as far as it was known then.
    """

    total_bytes: int = 0
    by_label: Mapping[str, int] = field(default_factory=dict)


class StorageTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts the storages that are made while it is entered, on one thread, until each is freed.

    ``label`` is what new storages are for, until somebody says otherwise.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.label = "working"
        self.peak = Peak()
        self._living: dict[int, _Living] = {}
        self._by_label: Counter[str] = Counter()
        self._total = 0
        self._fresh: list[int] = []
        self._left_out: dict[int, torch.UntypedStorage] = {}
        self._away: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._is_looking = True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator of torch and look at what comes out."""
        found = func(*args, **(kwargs or {}))
        for tensor in _tensors(found):
            self._see(tensor)
        return found

    def leave_out(self, tensors: Iterable[Tensor]) -> None:
        """Count nothing for the storages of some tensors, whoever views them."""
        self._left_out = {
            id(storage): storage for storage in (tensor.untyped_storage() for tensor in tensors)
        }

    @contextmanager
    def looking_away(self) -> Iterator[None]:
        """A block whose storages count nowhere, as memory of the host beside that of a device."""
        self._is_looking, before = False, self._is_looking
        yield
        self._is_looking = before

    def begin(self) -> None:
        """Forget the peak, and count from what lives now."""
        self.peak = Peak(total_bytes=self._total, by_label=dict(self._by_label))

    def fresh(self) -> list[int]:
        """Keys of storages made since this was asked last, of which some may be freed."""
        found, self._fresh = self._fresh, []
        return found

    def relabel(self, tensors: Iterable[Tensor], label: str) -> None:
        """Say what the storages of some tensors are for; those that were made elsewhere are left out."""
        self.relabel_keys((id(tensor.untyped_storage()) for tensor in tensors), label)

    def relabel_keys(self, keys: Iterable[int], label: str) -> None:
        """The same for storages by their keys."""
        for key in keys:
            living = self._living.get(key)
            if living is not None and living.label != label:
                self._by_label[living.label] -= living.size_bytes
                self._by_label[label] += living.size_bytes
                living.label = label

    def relabel_all(self, label: str) -> None:
        """The same for all that live."""
        self.relabel_keys(list(self._living), label)

    @property
    def bytes_by_label(self) -> Mapping[str, int]:
        """What lives now."""
        time.sleep(_LETTING_GO_S)
        return {label: size for label, size in self._by_label.items() if size}

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._living or key in self._left_out or key in self._away:
            return
        if not self._is_looking:
            self._away[key] = weakref.ref(storage, lambda _: self._away.pop(key))
            return
        size, label = storage.nbytes(), self.label
        reference = weakref.ref(storage, lambda _: self._free(key))
        self._living[key] = _Living(reference=reference, size_bytes=size, label=label)
        self._fresh.append(key)
        self._by_label[label] += size
        self._total += size
        if self._total > self.peak.total_bytes:
            time.sleep(_LETTING_GO_S)
        if self._total > self.peak.total_bytes:
            self.peak = Peak(total_bytes=self._total, by_label=dict(self._by_label))

    def _free(self, key: int) -> None:
        living = self._living.pop(key)
        self._by_label[living.label] -= living.size_bytes
        self._total -= living.size_bytes


def _tensors(found: Any) -> Iterator[Tensor]:
    """The tensors that an operator of torch gives: one, or several in a sequence."""
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, list | tuple):
        for item in found:
            yield from _tensors(item)
