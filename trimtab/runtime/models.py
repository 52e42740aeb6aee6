"""Which model does a run train, and what does it ask of a model that a user wrote?

A user's class is named ``module:Class`` and follows one of two contracts:

    forward(tokens) -> logits [B, T, V]
    forward(tokens, targets) -> logits [B, T, V], or (sum of token losses, number of targets)

Targets are -100 where nothing is to be predicted. A sum and a count, not a mean: microbatches and shares
hold different numbers of targets, and one denominator for the whole step is what makes them add up.
"""

import contextlib
import difflib
import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from trimtab.catalog import Network
from trimtab.runtime.decoder import Decoder, GradientSum, token_loss_sum
from trimtab.runtime.random_keys import KeyedRandom
from trimtab.runtime.weights.reading import Weights
from trimtab.terms import ComputeType, InputError


class Model(Protocol):
    """What a step needs of a model."""

    @property
    def module(self) -> nn.Module:
        """The module that holds the parameters."""

    def loss_sum(self, tokens_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, int]:
        """The sum of token losses (a scalar with a graph) and the number of targets in it.

        Runs under autocast where the run computes in bf16. Without a target: 0, and gradients of zero.
        """

    def begin_share(self) -> None:
        """Backward passes from here on are of one share, and may leave gradients elsewhere than in the parameters.

        What those of a share that was broken off have left is forgotten.
        """

    def end_share(self) -> None:
        """All backward passes of a share have run: what they have left elsewhere joins the parameters' gradients."""

    def logical_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Every parameter once, tied ones under the name that comes first, frozen ones included."""


def build_model(
    source: Network | str,
    *,
    arguments: Mapping[str, Any],
    seed: int,
    keyed: KeyedRandom,
    compute: ComputeType,
    is_cut_into_shares: bool,
    weights: Weights | None = None,
) -> Model:
    """A model with its initial values, on the CPU, in training mode.

    Args:
        source: A network of the catalog, or a user's class as ``module:Class``.
        arguments: Keyword arguments of a user's class; empty for a network.
        seed: What initial values derive from; equal on all ranks.
        keyed: Where a network's dropout masks come from.
        compute: The type that matrix products run in.
        is_cut_into_shares: False if the job says ``shares: off``.
        weights: Initial values of a network in place of random ones.

    Raises: InputError if a user's class cannot be found, built, or cut into shares.
    """
    if isinstance(source, Network):
        decoder = Decoder(source, keyed)
        if weights is None:
            decoder.initialize(seed)
        else:
            decoder.fill(weights.read)
        return PresetModel(decoder, compute)
    module = build_class(source, arguments=arguments, seed=seed)
    if is_cut_into_shares:
        refuse_batch_statistics(module)
    return UserModel(module, compute, source)


class PresetModel:
    """A network of the catalog; see Model.

    What head and embedding add to a matrix that they share is added up apart over a share, and put together at its end:
    the order of ranks of a pipeline, which have one of the two each.
    """

    def __init__(self, decoder: Decoder, compute: ComputeType) -> None:
        self.module = decoder
        self._compute = compute

    def loss_sum(self, tokens_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, int]:
        """See Model."""
        with _autocast(self._compute, tokens_BT.device):
            return token_loss_sum(self.module(tokens_BT), targets_BT)

    def begin_share(self) -> None:
        """See Model."""
        self.module.head_gradient = GradientSum() if self.module.network.tied else None

    def end_share(self) -> None:
        """See Model."""
        if self.module.head_gradient is not None:
            self.module.head_gradient.add_to(self.module.embedding.weight)
        self.module.head_gradient = None

    def logical_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """See Model."""
        return list(self.module.named_parameters())


class UserModel:
    """A user's own class; see Model.

    Raises: InputError at construction if ``forward`` cannot take tokens, and from ``loss_sum`` if it returns
        something that the contract does not know.
    """

    def __init__(self, module: nn.Module, compute: ComputeType, name: str) -> None:
        self.module = module
        self._compute = compute
        self._name = name
        self._takes_targets = takes_targets(module.forward, name)

    def loss_sum(self, tokens_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, int]:
        """See Model."""
        with _autocast(self._compute, tokens_BT.device):
            if self._takes_targets:
                returned = self.module(tokens_BT, targets_BT)
            else:
                returned = self.module(tokens_BT)
            if _is_loss_and_count(returned):
                loss, num_targets = returned
                return loss, int(num_targets)
            if isinstance(returned, Tensor) and returned.shape[:-1] == tokens_BT.shape:
                return token_loss_sum(returned, targets_BT)
        raise InputError(
            f"{self._name}: forward returned {_described(returned)}; it must return logits"
            f" [{tokens_BT.shape[0]}, {tokens_BT.shape[1]}, vocab] or (sum of token losses, number of targets).\n"
            "  A mean will not do: return its sum and what it was divided by."
        )

    def begin_share(self) -> None:
        """See Model; all gradients stand in the parameters."""

    def end_share(self) -> None:
        """See Model."""

    def logical_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """See Model."""
        return list(self.module.named_parameters())


def import_class(name: str) -> type[nn.Module]:
    """The class named ``module:Class``; the module is looked for as ``import`` does.

    Raises: InputError if there is no such module, something that it imports is missing, it holds no such
        class, or that is no ``torch.nn.Module``. What else the module raises on import passes through.
    """
    module_name, colon, class_name = name.partition(":")
    if not (colon and module_name and class_name):
        raise InputError(f"model {name!r} is not of the form module:Class, such as my_project.models:Small")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise _not_found(name, module_name, error) from error
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise _no_class(name, module.__dict__, module_name, class_name)
    return found


def build_class(name: str, *, arguments: Mapping[str, Any], seed: int) -> nn.Module:
    """A module of the user's class ``module:Class``, its initial values drawn from a seed of their own.

    Under ``torch.device("meta")`` no value is drawn.

    Raises: InputError if the class cannot be found, or does not take the arguments.
    """
    model_class = import_class(name)
    signature = inspect.signature(model_class)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise InputError(
            f"model {name!r} cannot be built from model.args: {error}\n"
            f"  given: {', '.join(arguments) or 'nothing'}; the class takes {signature}"
        ) from error
    digest = hashlib.blake2b(f"{seed}:initial".encode(), digest_size=8).digest()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(digest, "little") >> 1)
        return model_class(**arguments)


def refuse_batch_statistics(module: nn.Module) -> None:
    """Refuse what normalises over the batch: its result would depend on how the batch is cut.

    Raises: InputError naming every such submodule.
    """
    paths = [
        f"{path or '(the model itself)'}: {type(child).__name__}"
        for path, child in module.named_modules()
        if isinstance(child, nn.modules.batchnorm._BatchNorm)
        or (isinstance(child, nn.modules.batchnorm._NormBase) and child.track_running_stats)
    ]
    if paths:
        raise InputError(
            "the model takes statistics over the batch, which shares cut into parts:\n"
            + "".join(f"  {path}\n" for path in paths)
            + "  Normalise each sample (LayerNorm, GroupNorm), or set fault_tolerance.shares: off."
        )


def takes_targets(forward: Callable[..., Any], name: str) -> bool:
    """Whether ``forward`` wants targets: it names them, or it cannot do with tokens alone.

    Raises: InputError if it can take neither tokens nor tokens and targets.
    """
    signature = inspect.signature(forward)
    wants_targets = "targets" in signature.parameters or not _takes(signature, 1)
    if not _takes(signature, 2 if wants_targets else 1):
        raise InputError(f"{name}: forward takes {signature}; it must take (tokens) or (tokens, targets)")
    return wants_targets


def _not_found(name: str, module_name: str, error: ModuleNotFoundError) -> InputError:
    missing = error.name or ""
    if module_name == missing or module_name.startswith(f"{missing}."):
        searched = ", ".join(path or "(the working directory)" for path in sys.path)
        return InputError(
            f"model {name!r}: there is no module {missing!r}\n"
            f"  searched: {searched}\n"
            "  Install the package that holds it, or add its folder to PYTHONPATH."
        )
    return InputError(
        f"model {name!r}: its module {module_name!r} imports {missing!r}, which is not installed here"
    )


def _no_class(name: str, members: Mapping[str, object], module_name: str, class_name: str) -> InputError:
    if class_name in members:
        return InputError(
            f"model {name!r} is {_described(members[class_name])}; it must be a torch.nn.Module class"
        )
    classes = [
        key for key, value in members.items() if isinstance(value, type) and issubclass(value, nn.Module)
    ]
    near = difflib.get_close_matches(class_name, classes, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"It holds {', '.join(classes) or 'no nn.Module class'}."
    return InputError(f"model {name!r}: module {module_name!r} holds no class {class_name!r}.  {hint}")


def _takes(signature: inspect.Signature, num_arguments: int) -> bool:
    try:
        signature.bind(*range(num_arguments))
    except TypeError:
        return False
    return True


def _is_loss_and_count(returned: object) -> bool:
    """Whether this is (scalar tensor, whole number), the number as an int or a tensor of integers."""
    if not (isinstance(returned, tuple) and len(returned) == 2):
        return False
    loss, count = returned
    is_whole = isinstance(count, int) or (
        isinstance(count, Tensor) and count.dim() == 0 and not count.is_floating_point()
    )
    return isinstance(loss, Tensor) and loss.dim() == 0 and is_whole


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_described, value))})"
    return f"a {type(value).__name__}"


def _autocast(compute: ComputeType, device: torch.device) -> contextlib.AbstractContextManager[None]:
    if compute is ComputeType.BF16:
        return torch.autocast(device.type, torch.bfloat16)
    return contextlib.nullcontext()
