"""The forward pass of each piece of the network, with the changes of layout that a plan's cuts demand.

An operator runs where its parameters lie: a matrix cut along its outputs wants whole inputs and gives a cut
output; cut along its inputs it wants cut inputs and gives summands; a whole matrix runs in the layout that the
row of its output asks for. What then differs from the row's own layout is moved there.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimtab.catalog import Network
from trimtab.plan.block_builder import BlockBuilder
from trimtab.plan.placements import (
    PARTIAL,
    REPLICATED,
    VARYING,
    Placement,
    PlacementKind,
    Placements,
    split,
)
from trimtab.plan.program import Because, OperatorKind, Transfer
from trimtab.plan.transitions import Step

DATA_DIMS = ("batch", "sequence", "slots")
"""Dims that run over samples and tokens: ranks that cut them work on different data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockContext:
    """What a block needs to know of the plan.

    Args:
        network: Whose block it is.
        batch: Samples of a microbatch over all ranks.
        sequence: Tokens of a sample.
        activations: By relative row name, how the row shall lie.
        parameters: By relative name, how the parameter lies when it is used, with its dims and shape.
        attention: By axis that cuts the sequence of attention: ulysses, allgather, ring.
        reasons: By axis and dim (or None), the statement behind a cut.
        sizes: Of the axes.
        logits_at_once: Tokens of a rank whose logits exist at once; 0 for all of a microbatch.
    """

    network: Network
    batch: int
    sequence: int
    activations: Mapping[str, Placements]
    parameters: Mapping[str, tuple[tuple[str, ...], tuple[int, ...], Placements]]
    attention: Mapping[str, str]
    reasons: Mapping[tuple[str, str | None], Because]
    sizes: Mapping[str, int]
    logits_at_once: int = 0

    def why(self, step: Step) -> Because:
        """The statement behind a change of layout."""
        for dim in (step.before.dim, step.after.dim, None):
            found = self.reasons.get((step.axes[0], dim))
            if found is not None:
                return found
        return Because(reason="default")

    def size(self, dim: str) -> int:
        """Logical elements along a dim of an activation."""
        match dim:
            case "batch":
                return self.batch
            case "sequence":
                return self.sequence
            case "slots":
                return self.slots
            case "experts" | "routes":
                return self.network.experts
        return self.network.size_of(dim)

    @property
    def slots(self) -> int:
        """Tokens that each expert is given with balanced routing: as many from each rank that routes its own."""
        experts = self.network.experts
        if not experts:
            return 0
        cuts = [axis for axis, placement in self.activations["router"] if placement.dim in DATA_DIMS]
        regions = math.prod(self.sizes[axis] for axis in cuts)
        tokens = self.batch * self.sequence // regions
        return regions * -(-tokens * self.network.top_k // experts)


COMPUTED = Because(reason="the network")
"""Why an operator that computes is there."""


class Forward:
    """Writes forward passes into a builder."""

    def __init__(self, builder: BlockBuilder, context: BlockContext) -> None:
        self.builder = builder
        self.context = context

    def embedding(self) -> None:
        """Tokens to the residual stream: ``tokens`` -> ``out``."""
        builder, target = self.builder, self.context.activations["embedding"]
        table = self._parameter("embedding.weight")
        tokens = target
        found = target
        for axis, placement in table:
            # Each rank looks up every token in the part of the matrix that it has.
            tokens = tokens.put(axis, REPLICATED)
            found = found.put(axis, PARTIAL if placement.dim == "vocab" else placement)
        builder.value("tokens", ("batch", "sequence"), self._shape(("batch", "sequence")), tokens, "int64")
        builder.value("looked_up", _RESIDUAL, self._shape(_RESIDUAL), found)
        builder.add(OperatorKind.EMBED, ["tokens"], ["looked_up"], COMPUTED, parameters=["embedding.weight"])
        out = builder.laid_out("looked_up", target, self.context.why)
        if "positions.weight" in self.context.parameters:
            builder.value("embedding", _RESIDUAL, self._shape(_RESIDUAL), target)
            builder.add(
                OperatorKind.ADD_POSITIONS, [out], ["embedding"], COMPUTED, parameters=["positions.weight"]
            )
            out = "embedding"
        self._finish(self._dropped(out, "embedding.dropped"))

    def layer(self, arriving: Placements) -> None:
        """Attention and MLP, each added to the residual stream: ``in`` -> ``out``.

        Args:
            arriving: How the residual stream of the layer before lies.
        """
        self.builder.value("in", _RESIDUAL, self._shape(_RESIDUAL), arriving)
        attention = self._dropped(self._attention("in"), "attention.dropped")
        after_attention = self._add_to("in", attention, "attention_residual")
        write_mlp = self._experts if self.context.network.experts else self._mlp
        mlp = self._dropped(write_mlp(after_attention), "mlp.dropped", call=1)
        self._finish(self._add_to(after_attention, mlp, "mlp_residual"))

    def head(self, arriving: Placements, matrix: str) -> None:
        """Logits and the sum of token losses: ``in`` -> ``loss``.

        Args:
            arriving: How the residual stream of the last layer lies.
            matrix: The parameter that makes logits; the embedding's if they are tied.
        """
        builder = self.builder
        builder.value("in", _RESIDUAL, self._shape(_RESIDUAL), arriving)
        normed = self._norm("in", "final_norm")
        if self.context.logits_at_once:
            self._head_in_chunks(normed, matrix)
            return
        logits = self._linear(normed, matrix, "logits", _LOGITS)
        placements = builder.values[logits].placements
        data = self._targets(placements)
        inputs = [logits, "targets"]
        vocab_axes = placements.axes_cutting("vocab")
        if vocab_axes:
            inputs += self._vocabulary_sums(logits, data, vocab_axes)
        self._loss(OperatorKind.LOSS, inputs, data)

    def _head_in_chunks(self, normed: str, matrix: str) -> None:
        """The loss without logits that are whole: of some tokens after the others, what the loss needs of them.

        Logits would lie as their matrix does; nothing of them is moved.
        """
        builder, context = self.builder, self.context
        x, found = self._met(normed, matrix, "logits", _LOGITS)
        data = self._targets(found)
        axes = found.axes_cutting("vocab")
        highest, sums = self._sums_values(found)
        builder.add(
            OperatorKind.HEAD_SUMS,
            [x, "targets"],
            [highest, sums],
            COMPUTED,
            parameters=[matrix],
            at_once=context.logits_at_once,
        )
        if axes:
            highest_of_all = builder.laid_out(highest, data, context.why)
            builder.use_maximum()
            summands = builder.like("vocab_sums", sums, builder.values[highest].placements)
            builder.add(OperatorKind.RESCALE, [sums, highest, highest_of_all], [summands], COMPUTED)
            highest, sums = highest_of_all, builder.laid_out(summands, data, context.why)
        self._loss(OperatorKind.LOSS_OF_SUMS, ["targets", highest, sums], data)

    def _sums_values(self, logits: Placements) -> tuple[str, str]:
        """The maximum over the own part of the vocabulary, and sums that only their own maximum makes sense of."""
        name = "vocab_sums.own" if logits.axes_cutting("vocab") else "vocab_sums"
        highest = apart = Placements()
        for axis, placement in logits:
            is_cut = placement.dim == "vocab"
            highest = highest.put(axis, PARTIAL if is_cut else placement)
            apart = apart.put(axis, VARYING if is_cut else placement)
        return (
            self.builder.value("vocab_max", _TOKENS, self._shape(_TOKENS), highest, "fp32"),
            self.builder.value(name, _SUMS, (*self._shape(_TOKENS), 2), apart, "fp32"),
        )

    def _targets(self, logits: Placements) -> Placements:
        """Targets, where ranks have the logits of their tokens; how both are cut along samples and tokens."""
        data = Placements(tuple(item for item in logits if item[1].dim in DATA_DIMS))
        self.builder.value("targets", _TOKENS, self._shape(_TOKENS), data, "int64")
        return data

    def _loss(self, kind: OperatorKind, inputs: Sequence[str], data: Placements) -> None:
        loss = data
        for axis, _ in data:
            loss = loss.put(axis, PARTIAL)
        self.builder.value("loss", (), (), loss, "fp32")
        self.builder.add(kind, inputs, ["loss"], COMPUTED)

    def _vocabulary_sums(self, logits: str, data: Placements, axes: Sequence[str]) -> list[str]:
        """Over the whole vocabulary, per token: the maximum, then the sum of exponentials and the target's logit."""
        builder = self.builder
        partial = data
        for axis in axes:
            partial = partial.put(axis, PARTIAL)
        builder.value("vocab_max", _TOKENS, self._shape(_TOKENS), partial, "fp32")
        builder.add(OperatorKind.VOCAB_MAX, [logits], ["vocab_max"], COMPUTED)
        highest = builder.laid_out("vocab_max", data, self.context.why)
        builder.use_maximum()
        builder.value("vocab_sums", _SUMS, (*self._shape(_TOKENS), 2), partial, "fp32")
        builder.add(OperatorKind.VOCAB_SUMS, [logits, "targets", highest], ["vocab_sums"], COMPUTED)
        return [highest, builder.laid_out("vocab_sums", data, self.context.why)]

    def _attention(self, stream: str) -> str:
        builder = self.builder
        normed = self._norm(stream, "attention_norm")
        names = {
            "q": self._linear(normed, "attention.wq.weight", "attention.q", _QUERIES),
            "k": self._linear(normed, "attention.wk.weight", "attention.k", _KEYS),
            "v": self._linear(normed, "attention.wv.weight", "attention.v", _KEYS),
        }
        for name in ("q", "k"):
            if f"attention.{name}_norm.weight" in self.context.parameters:
                names[name] = self._head_norm(names[name], f"attention.{name}_norm")
        found, kind = self._attention_layouts(builder.values[names["q"]].placements)
        laid = [builder.laid_out(names[name], found[name], self.context.why) for name in ("q", "k", "v")]
        target = self.context.activations["attention.out"]
        out = "attention.out" if found["q"].is_same(target) else "attention.core"
        builder.value(out, _QUERIES, self._shape(_QUERIES), found["q"])
        transfer, because = self._travel(kind, found["q"])
        builder.add(kind, laid, [out], because, transfer=transfer)
        if out == "attention.core":
            out = builder.laid_out(out, target, self.context.why)
        return self._linear(out, "attention.wo.weight", "attention_residual", _RESIDUAL, is_summand=True)

    def _head_norm(self, x: str, norm: str) -> str:
        """A norm over each head of queries or keys: it runs wherever whole heads lie."""
        out = self.builder.like(f"{x}_norm", x, self.builder.values[x].placements)
        self.builder.add(OperatorKind.NORM, [x], [out], COMPUTED, parameters=self._norm_parameters(norm))
        return out

    def _travel(self, kind: OperatorKind, queries: Placements) -> tuple[Transfer | None, Because]:
        """How keys and values go around, where attention is a ring."""
        if kind is not OperatorKind.RING_ATTENTION:
            return None, COMPUTED
        axes = tuple(
            axis for axis in queries.axes_cutting("sequence") if self.context.attention.get(axis) == "ring"
        )
        because = self.context.reasons[axes[0], "sequence"]
        return Transfer(axes=axes, wire=self.builder.dtype), because

    def _attention_layouts(self, queries: Placements) -> tuple[dict[str, Placements], OperatorKind]:
        """Where attention needs queries, keys and values, and which attention it is."""
        q, kind = queries, OperatorKind.ATTENTION
        for axis in queries.axes_cutting("sequence"):
            if self._way(axis) == "ulysses":
                q = q.put(axis, split("heads"))
        keys = q
        for axis, placement in q:  # In the order in which queries are cut, so that heads meet their keys.
            if placement.dim == "heads":
                keys = keys.put(axis, split("kv_heads"))
            elif placement.dim == "sequence" and self._way(axis) == "allgather":
                keys = keys.put(axis, REPLICATED)
            elif placement.dim == "sequence":
                kind = OperatorKind.RING_ATTENTION
        return {"q": q, "k": keys, "v": keys}, kind

    def _way(self, axis: str) -> str:
        """How attention meets a sequence that is cut over an axis."""
        return self.context.attention.get(axis, "allgather")

    def _mlp(self, stream: str) -> str:
        builder = self.builder
        normed = self._norm(stream, "mlp_norm")
        inner = ("batch", "sequence", "mlp")
        inputs = [self._linear(normed, "mlp.up.weight", "mlp.up", inner)]
        if "mlp.gate.weight" in self.context.parameters:
            inputs.append(self._linear(normed, "mlp.gate.weight", "mlp.gate", inner))
        target = self.context.activations["mlp.hidden"]
        laid = [builder.laid_out(name, target, self.context.why) for name in inputs]
        builder.value("mlp.hidden", inner, self._shape(inner), target)
        builder.add(OperatorKind.ACTIVATE, laid, ["mlp.hidden"], COMPUTED)
        return self._linear("mlp.hidden", "mlp.down.weight", "mlp_residual", _RESIDUAL, is_summand=True)

    def _experts(self, stream: str) -> str:
        """Each token to its experts and back; ranks that hold other experts or other tokens exchange them."""
        builder, context = self.builder, self.context
        normed = self._norm(stream, "mlp_norm")
        router = self._linear(normed, "router.weight", "router", ("batch", "sequence", "routes"))
        gates = builder.like("gates", router, builder.values[router].placements)
        builder.add(OperatorKind.ROUTE, [router], [gates], COMPUTED)
        tokens = builder.laid_out(normed, builder.values[gates].placements, context.why)
        target = context.activations["experts.in"]
        dispatched = Placements()
        cuts = [axis for axis, _ in builder.values[gates].placements]
        # Axes that will cut experts instead cut innermost: an exchange takes apart the innermost pieces only.
        for axis in sorted(cuts, key=lambda axis: target.on(axis).dim == "experts"):
            dispatched = dispatched.put(axis, split("slots"))
        for axis, placement in target:
            # Ranks that see the same tokens pick those of their own experts; nothing needs to travel.
            if placement.dim == "experts" and dispatched.on(axis) == REPLICATED:
                dispatched = dispatched.put(axis, placement)
        name = "experts.in" if dispatched.is_same(target) else "experts.picked"
        builder.value(name, _SLOTS, self._shape(_SLOTS), dispatched)
        builder.add(OperatorKind.DISPATCH, [tokens, gates], [name], COMPUTED)
        arrived = builder.laid_out(name, target, context.why)
        outputs = self._expert_mlp(arrived)
        returned = builder.values[outputs].placements
        for axis, placement in dispatched:
            if placement.dim == "slots":
                returned = returned.put(axis, placement)
        outputs = builder.laid_out(outputs, returned, context.why)
        return self._combine(outputs, gates)

    def _expert_mlp(self, arrived: str) -> str:
        builder, inner = self.builder, ("experts", "slots", "mlp")
        inputs = [self._linear(arrived, "experts.up.weight", "experts.up", inner)]
        if "experts.gate.weight" in self.context.parameters:
            inputs.append(self._linear(arrived, "experts.gate.weight", "experts.gate", inner))
        target = self.context.activations["experts.hidden"]
        laid = [builder.laid_out(name, target, self.context.why) for name in inputs]
        builder.value("experts.hidden", inner, self._shape(inner), target)
        builder.add(OperatorKind.ACTIVATE, laid, ["experts.hidden"], COMPUTED)
        return self._linear("experts.hidden", "experts.down.weight", "experts.out", _SLOTS, is_summand=True)

    def _combine(self, outputs: str, gates: str) -> str:
        builder = self.builder
        combined = builder.values[gates].placements
        for axis, placement in builder.values[outputs].placements:
            if placement == PARTIAL or placement.dim == "experts":
                combined = combined.put(axis, PARTIAL)
        builder.value("combined", _RESIDUAL, self._shape(_RESIDUAL), combined)
        builder.add(OperatorKind.COMBINE, [outputs, gates], ["combined"], COMPUTED)
        return builder.laid_out("combined", self.context.activations["mlp_residual"], self.context.why)

    def _norm(self, stream: str, row: str) -> str:
        target = self.context.activations[row]
        laid = self.builder.laid_out(stream, target, self.context.why)
        self.builder.value(row, _RESIDUAL, self._shape(_RESIDUAL), target)
        self.builder.add(OperatorKind.NORM, [laid], [row], COMPUTED, parameters=self._norm_parameters(row))
        return row

    def _norm_parameters(self, norm: str) -> list[str]:
        """Its weight, and its bias where the network has one."""
        return [name for name in (f"{norm}.weight", f"{norm}.bias") if name in self.context.parameters]

    def _linear(
        self, x: str, weight: str, row: str, dims: tuple[str, ...], *, is_summand: bool = False
    ) -> str:
        """A matrix product in the layout that its matrix allows, moved to where its row lies.

        Args:
            x: Input.
            weight: Parameter; its last dim is the input's, the one before the output's.
            row: The row whose layout the output takes; its value has this name unless it is a summand of it.
            dims: Of the output.
            is_summand: Whether the output is added to the residual stream (or combined) and not the row itself.
        """
        builder, context = self.builder, self.context
        laid, found = self._met(x, weight, row, dims)
        target = context.activations[row]
        bias = weight.removesuffix("weight") + "bias"
        has_bias = bias in context.parameters
        adds_later = has_bias and bool(found.axes_of(PlacementKind.PARTIAL))
        stays = weight == "experts.down.weight"
        name = row
        if is_summand or adds_later or not (stays or found.is_same(target)):
            name = f"{weight.removesuffix('.weight')}.product"
        kind = OperatorKind.EXPERT_LINEAR if dims[0] == "experts" else OperatorKind.LINEAR
        builder.value(name, dims, self._shape(dims), found)
        parameters = [weight, bias] if has_bias and not adds_later else [weight]
        builder.add(kind, [laid], [name], COMPUTED, parameters=parameters)
        if stays:
            return name
        name = builder.laid_out(name, target, context.why)
        if adds_later:
            # Every rank holds a summand: the bias joins when they have been added, once.
            with_bias = builder.like(f"{weight.removesuffix('.weight')}.biased", name, target)
            builder.add(OperatorKind.ADD_BIAS, [name], [with_bias], COMPUTED, parameters=[bias])
            name = with_bias
        return name

    def _met(self, x: str, weight: str, row: str, dims: tuple[str, ...]) -> tuple[str, Placements]:
        """The input of a matrix product where its matrix meets it, and how the product then lies."""
        builder, context = self.builder, self.context
        out_dim, in_dim = context.parameters[weight][0][-2:]
        matrix = self._parameter(weight)
        target = context.activations[row]
        wanted = builder.values[x].placements
        for axis in _axes_of(wanted, target, matrix):
            wanted = wanted.put(axis, _input_placement(matrix.on(axis), target.on(axis), in_dim, dims))
        laid = builder.laid_out(x, wanted, context.why)
        found = wanted
        for axis, placement in matrix:
            if placement.dim != "experts":
                found = found.put(axis, placement if placement.dim == out_dim else PARTIAL)
        return laid, found

    def _dropped(self, x: str, name: str, *, call: int = 0) -> str:
        """A value with some elements zeroed, where the network drops any."""
        if not self.context.network.dropout:
            return x
        self.builder.like(name, x, self.builder.values[x].placements)
        self.builder.add(OperatorKind.DROP, [x], [name], COMPUTED, call=call)
        return name

    def _add_to(self, stream: str, branch: str, row: str) -> str:
        target = self.context.activations[row]
        laid = self.builder.laid_out(stream, target, self.context.why)
        self.builder.value(row, _RESIDUAL, self._shape(_RESIDUAL), target)
        self.builder.add(OperatorKind.ADD, [laid, branch], [row], COMPUTED)
        return row

    def _finish(self, name: str) -> None:
        self.builder.result = name

    def _parameter(self, name: str) -> Placements:
        return self.context.parameters[name][2]

    def _shape(self, dims: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(self.context.size(dim) for dim in dims)


_TOKENS = ("batch", "sequence")
_SUMS = ("batch", "sequence", "sums")
_LOGITS = ("batch", "sequence", "vocab")
_RESIDUAL = ("batch", "sequence", "embed")
_QUERIES = ("batch", "sequence", "heads")
_KEYS = ("batch", "sequence", "kv_heads")
_SLOTS = ("experts", "slots", "embed")


def _axes_of(*layouts: Placements) -> list[str]:
    return list(dict.fromkeys(axis for layout in layouts for axis, _ in layout))


def _input_placement(
    matrix: Placement, target: Placement, in_dim: str, out_dims: tuple[str, ...]
) -> Placement:
    """Where a matrix product needs its input on one axis.

    A cut matrix decides; a whole one runs where its output shall lie, if that is a cut along samples, tokens
    or experts, which a product does not mix.
    """
    if matrix.dim == "experts":
        return matrix
    if matrix.dim == in_dim:
        return split(in_dim)
    if matrix.dim is not None:
        # Ranks that hold other columns need the same data, unless experts have spread it.
        return REPLICATED
    return target if target.dim in out_dims and target.dim in (*DATA_DIMS, "experts") else REPLICATED
