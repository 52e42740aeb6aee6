"""Random small jobs whose strategies use the whole language, and plans with one sum spoilt.

A job is drawn from a seed alone. Most programs are meant to compile, so sizes are chosen to fit the axes; what does
not fit is refused, and callers count why.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from trimtab.catalog import (
    Activation,
    Bias,
    Cluster,
    Level,
    Link,
    Network,
    Node,
    Norm,
    Positions,
    accelerator,
)
from trimtab.plan.compiling import compile_program
from trimtab.plan.explanation import LevelBytes, collective_uses, rank_groups, sent_in_step
from trimtab.plan.physical import Plan, Update
from trimtab.plan.placements import REPLICATED, PlacementKind
from trimtab.plan.program import Block, Operator, OperatorKind, Transfer, Value
from trimtab.plan.training import Training
from trimtab.spec import parse_strategy, resolve_mesh

NAMES = ("dp", "tp", "pp", "cp", "ep", "fs", "a", "b", "outer", "inner", "ring4", "blue", "shard", "lanes")
"""Of axes: any will do, and none means anything."""
MOST_RANKS = 16
_KEEPING_ALL = (" COMPRESS topk(1.0)", " COMPRESS powersgd(64)")
"""Compressions of a part that here is the whole, so that integers can show what is computed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Everything that a plan is made of.

    Args:
        seed: That it was drawn from.
        text: The strategy.
        training: What is trained, in which pieces.
        nodes: Devices of each node.
    """

    seed: int
    text: str
    training: Training
    nodes: tuple[int, ...]

    def compile(self) -> Plan:
        """The plan.

        Raises: StrategyError.
        """
        program = parse_strategy(self.text, source=f"random-{self.seed}.trim")
        mesh = resolve_mesh(program, sum(self.nodes))
        return compile_program(program, self.training, mesh=mesh, cluster=_cluster(self.nodes))

    def __str__(self) -> str:
        """The seed, what is not the default of the network, the nodes and the program."""
        return f"seed {self.seed}: {self.training}, nodes {self.nodes}\n{self.text}"


def random_job(seed: int) -> Job:
    """The job of a seed."""
    return _Drawing(random.Random(seed), seed).job()


class _Drawing:
    """Draws one job; statements may only name what was drawn before."""

    def __init__(self, chance: random.Random, seed: int) -> None:
        self._chance = chance
        self._seed = seed
        self._lines: list[str] = []
        self._free: list[str] = []
        self._batch: list[str] = []
        self._sequence: list[str] = []
        self._pipeline = ""
        self._averaged = ""
        self._microbatches: int | None = None

    def job(self) -> Job:
        self._draw_mesh()
        self._network = self._draw_network()
        self._draw_stages()
        self._draw_tensor_axes()
        self._draw_sequence_axes()
        self._draw_experts()
        self._draw_batch()
        self._draw_odd_splits()
        self._chance.shuffle(self._lines)
        self._draw_average()
        self._draw_stores()
        self._draw_reductions()
        self._draw_memory()
        nodes = self._draw_nodes()
        text = "\n".join([self._mesh_line(nodes), *self._lines])
        return Job(seed=self._seed, text=text, training=self._draw_training(), nodes=nodes)

    def _mesh_line(self, nodes: tuple[int, ...]) -> str:
        axes = [f"{axis} {size}" for axis, size in self._sizes.items()]
        if nodes[0] % self._sizes[[*self._sizes][-1]] == 0 and self._maybe(0.2):
            axes[-1] += " WITHIN node"
        return f"MESH {', '.join(axes)}"

    def _maybe(self, probability: float) -> bool:
        return self._chance.random() < probability

    def _some(self, items: Sequence[str], least: int = 1) -> list[str]:
        """A part of some items, in any order."""
        count = self._chance.randint(min(least, len(items)), len(items))
        return self._chance.sample(list(items), count)

    # What is trained, on what.

    def _draw_mesh(self) -> None:
        names = self._chance.sample(NAMES, self._chance.choice((1, 2, 2, 2, 3, 3, 4)))
        self._sizes: dict[str, int] = {}
        for name in names:
            room = MOST_RANKS
            for size in self._sizes.values():
                room //= size
            sizes = [size for size in (1, 2, 2, 2, 2, 3, 4, 4, 5, 8) if size <= room]
            self._sizes[name] = self._chance.choice(sizes)
        self._free = list(self._sizes)
        self._chance.shuffle(self._free)

    @property
    def _world(self) -> int:
        world = 1
        for size in self._sizes.values():
            world *= size
        return world

    def _draw_network(self) -> Network:
        chance = self._chance
        heads = chance.choice((2, 4, 4, 8))
        head_size = chance.choice((2, 2, 4)) if heads < 8 else 2
        experts = chance.choice((2, 4, 6)) if self._maybe(0.35) else 0
        return Network(
            name="random",
            layers=chance.choice((1, 2, 2, 3, 4)),
            embed=chance.choice((8, 12, 16)) if self._maybe(0.3) else heads * head_size,
            heads=heads,
            kv_heads=chance.choice([count for count in (1, 2, 4, 8, heads) if heads % count == 0]),
            head_size=head_size,
            mlp=chance.choice((8, 12, 16)),
            vocab=chance.randint(5, 24),
            context=16,
            norm=chance.choice(list(Norm)),
            positions=chance.choice(list(Positions)),
            activation=chance.choice(list(Activation)),
            tied=self._maybe(0.4),
            bias=chance.choice((Bias.NONE, Bias.QKV, Bias.ALL)),
            dropout=0.25 if self._seed % 3 == 0 else 0.0,
            qk_norm=self._maybe(0.2),
            experts=experts,
            top_k=chance.randint(1, min(experts, 3)) if experts else 0,
        )

    def _draw_training(self) -> Training:
        chance = self._chance
        replicas = 1
        for axis in self._batch:
            replicas *= self._sizes[axis]
        shares = chance.choice((None, replicas, 2 * replicas, replicas + 1)) if self._maybe(0.4) else None
        microbatch = chance.choice((1, 1, 2))
        by_share = microbatch * (self._microbatches or chance.choice((1, 1, 2)))
        return Training(
            network=self._network,
            batch=by_share * (shares or replicas),
            microbatch=microbatch,
            sequence=chance.choice((4, 8)),
            shares=shares,
            compute=chance.choice(("fp32", "fp32", "bf16")),
            num_states=chance.choice((1, 2)),
            clips=self._maybe(0.8),
        )

    def _draw_nodes(self) -> tuple[int, ...]:
        if self._world > 2 and self._maybe(0.05):
            return (1, self._world - 1)
        size = self._chance.choice([size for size in (1, 2, 2, 4, 8, 16) if self._world % size == 0])
        return (size,) * (self._world // size)

    # What is split.

    def _take_axis(self, probability: float) -> str | None:
        return self._free.pop() if self._free and self._maybe(probability) else None

    def _draw_stages(self) -> None:
        fitting = [axis for axis in self._free if self._sizes[axis] <= self._network.layers]
        if not fitting or not self._maybe(0.3):
            return
        axis = self._chance.choice(fitting)
        self._free.remove(axis)
        self._pipeline = axis
        ranks = self._sizes[axis]
        schedule = self._chance.choice(
            (
                "",
                "gpipe",
                "1f1b",
                "interleaved_1f1b(2)",
                "looped_bfs(2)",
                "interleaved_zero_bubble(2)",
                "zbv",
                "dualpipev",
            )
        )
        twice = schedule.endswith("(2)") or schedule in ("zbv", "dualpipev")
        if twice and 2 * ranks > self._network.layers and self._maybe(0.9):
            schedule, twice = self._chance.choice(("gpipe", "1f1b")), False
        line = f"SPLIT layers OVER {axis}" + (f" USING {schedule}" if schedule else "")
        count = self._chance.choice((ranks, 2 * ranks))
        if self._maybe(0.8):
            line += f" MICROBATCHES {count}"
        self._microbatches = count
        if self._maybe(0.4):
            line += f" BALANCE BY {self._chance.choice(('layers', 'params', 'time'))}"
        self._lines.append(line)
        if self._maybe(0.25):
            self._lines.append(
                f"PLACE layers {self._chance.choice(('WHERE layer < 1', 'BETWEEN 0 AND 0'))} ON {axis} 0"
            )

    def _draw_tensor_axes(self) -> None:
        dims = ["heads", "mlp", "vocab"]
        for _ in range(2):
            axis = self._take_axis(0.45)
            if axis is None or not dims:
                break
            chosen = self._some([dim for dim in dims if self._fits(dim, axis)] or dims)
            dims = [dim for dim in dims if dim not in chosen]
            self._lines.append(f"SPLIT {', '.join(chosen)} OVER {axis}")
            if self._maybe(0.4):
                where = self._chance.choice(
                    (
                        "kind IN ('norm', 'residual')",
                        "kind = 'norm'",
                        "kind = 'residual'",
                        "kind IN ('norm', 'residual') AND layer < 1",
                        "name LIKE '%mlp%norm' OR kind = 'residual'",
                    )
                )
                self._lines.append(f"SPLIT sequence OF activations WHERE {where} OVER {axis}")

    def _fits(self, dim: str, axis: str) -> bool:
        """Whether a dim can be cut over an axis; now and then nobody asks."""
        elements = {"heads": self._network.kv_heads, "mlp": self._network.mlp, "vocab": self._sizes[axis]}[
            dim
        ]
        return elements % self._sizes[axis] == 0 or self._maybe(0.05)

    def _draw_sequence_axes(self) -> None:
        for _ in range(2):
            axis = self._take_axis(0.25)
            if axis is None:
                return
            way = self._chance.choice(("", " USING ulysses", " USING allgather", " USING ring"))
            self._sequence.append(axis)
            self._lines.append(f"SPLIT sequence OVER {axis}{way}")

    def _draw_experts(self) -> None:
        if self._network.experts and (axis := self._take_axis(0.4)):
            self._lines.append(f"SPLIT experts OVER {axis}")
            if self._maybe(0.5):
                self._free.append(axis)  # The batch may be split over it, too.

    def _draw_batch(self) -> None:
        named = [axis for axis in self._free if self._sizes[axis] == 1 or self._maybe(0.97)]
        is_silent = self._maybe(0.3) and not any("experts" in line for line in self._lines)
        self._batch = self._free if is_silent else named
        if named and not is_silent:
            axes, *others = (named[:1], named[1:]) if len(named) > 1 and self._maybe(0.3) else (named,)
            for found in (axes, *others):
                self._lines.append(f"SPLIT batch OVER {', '.join(found)}")
        if (
            self._network.experts
            and self._batch
            and not any("experts" in line for line in self._lines)
            and self._maybe(0.4)
        ):
            self._lines.append(f"SPLIT experts OVER {self._chance.choice(self._batch)}")

    def _draw_odd_splits(self) -> None:
        """Splits of single tensors, over an axis that is there for something else or for nothing."""
        if not self._maybe(0.25):
            return
        axis = self._chance.choice(self._shareable() or list(self._sizes))
        self._lines.append(
            self._chance.choice(
                (
                    f"SPLIT embed OF params WHERE name LIKE '%.wo.weight' OVER {axis}",
                    f"SPLIT embed OF params WHERE kind = 'embedding' OVER {axis}",
                    f"SPLIT embed OF params WHERE name LIKE '%up.weight' OVER {axis}",
                    f"SPLIT mlp OF params WHERE layer < 1 OVER {axis}",
                    f"SPLIT mlp OF activations OVER {axis}",
                    f"SPLIT heads OF activations OVER {axis}",
                    f"SPLIT vocab OF params WHERE kind = 'head' OVER {axis} IF ANY",
                    f"SPLIT vocab OF activations OVER {axis}",
                    f"SPLIT embed OF activations WHERE kind = 'residual' OVER {axis}",
                    f"SPLIT embed OF params WHERE kind IN ('head', 'embedding') OVER {axis}",
                    f"SPLIT sequence OF activations WHERE kind = 'attention' OVER {axis}",
                    f"SPLIT sequence OF activations WHERE layer IS NULL OVER {axis}",
                    f"SPLIT kv_heads OVER {axis}",
                )
            )
        )

    def _shareable(self) -> list[str]:
        """Axes along which ranks hold the same layers of the same model; now and then all."""
        apart = {self._pipeline, self._averaged}
        return [axis for axis in self._sizes if axis not in apart or self._maybe(0.05)]

    # What is stored, summed, averaged, kept.

    def _where(self) -> str:
        """A condition on parameters, or none."""
        return self._chance.choice(
            (
                "",
                "",
                " WHERE layer < 1",
                " WHERE layer % 2 = 0",
                " WHERE kind = 'norm'",
                " WHERE kind IN ('linear', 'expert', 'head')",
                " WHERE name LIKE '%.wq%'",
                " WHERE numel > 100",
                " WHERE layer IS NULL",
                " WHERE NOT kind = 'embedding'",
                " WHERE bytes BETWEEN 64 AND 512",
                " WHERE stage = 0",
            )
        )

    def _draw_stores(self) -> None:
        axes = [
            axis for axis in self._sizes if axis in self._batch or axis in self._sequence or self._maybe(0.2)
        ]
        while axes and self._maybe(0.45):
            tables = ", ".join(self._some(("params", "grads", "states")))
            over = ", ".join(self._some(axes)[:2])
            self._lines.append(f"STORE {tables}{self._where()} OVER {over} IF ANY")

    def _draw_average(self) -> None:
        if self._batch and self._maybe(0.1):
            axis = self._batch[0]
            outer = self._chance.choice(("", " USING mean", " USING nesterov(0.5)"))
            outer += self._chance.choice(("", "", " COMPRESS int8", *_KEEPING_ALL))
            outer += self._chance.choice(("", "", " IN bf16"))
            every = self._chance.choice((1, 3, 8))
            self._lines.append(f"AVERAGE params OVER {axis} EVERY {every} STEPS{outer}")
            self._averaged = axis

    def _draw_reductions(self) -> None:
        data = [axis for axis in (*self._batch, *self._sequence) if axis != self._averaged]
        while data and self._maybe(0.4):
            routes = (
                "",
                " USING ring",
                " USING tree",
                " USING recursive_doubling",
                " USING reduce_scatter",
                " USING hierarchical(node)",
                " USING hierarchical(node, site)",
                " USING native",
                " USING default",
            )
            line = f"REDUCE grads{self._where()} OVER {', '.join(data if self._maybe(0.7) else self._some(data))}"
            line += self._chance.choice(routes)
            line += self._chance.choice(("", "", " BUCKET 1KB", " BUCKET 3KiB"))
            line += self._chance.choice(
                ("", "", "", " COMPRESS bf16", " COMPRESS int8", " COMPRESS none", *_KEEPING_ALL)
            )
            line += self._chance.choice(("", "", " IN bf16", " IN fp16"))
            line += self._chance.choice(("", "", "", " ON node = 0", " ON rank < 4", " ON node % 2 = 1"))
            self._lines.append(f"{line} IF ANY")

    def _draw_memory(self) -> None:
        axis = self._chance.choice(list(self._sizes))
        for probability, lines in (
            (
                0.4,
                (
                    "RECOMPUTE activations",
                    "RECOMPUTE activations WHERE layer % 2 = 0",
                    "RECOMPUTE activations WHERE kind IN ('norm', 'linear', 'expert') IF ANY",
                    "RECOMPUTE activations WHERE kind = 'attention'",
                    "RECOMPUTE activations WHERE name LIKE '%.hidden' OR name LIKE '%.up'",
                    "RECOMPUTE layers WHERE layer < 1",
                    "RECOMPUTE activations WHERE layer IS NULL",
                ),
            ),
            (0.15, ("OFFLOAD states TO host", "OFFLOAD activations WHERE kind = 'residual' TO host")),
            (0.15, ("KEEP grads IN bf16", "KEEP params IN bf16", "KEEP grads WHERE layer < 1 IN fp16")),
            (0.15, ("COMPUTE layers WHERE layer < 1 IN bf16", "COMPUTE layers IN bf16")),
            (0.1, (f"SEAL grads OVER {axis}", f"SEAL params, grads OVER {axis}")),
        ):
            if self._maybe(probability):
                self._lines.append(self._chance.choice(lines))


def _cluster(nodes: Sequence[int]) -> Cluster:
    device = accelerator("H100-SXM-80GB")
    links = [Link(level=Level.NODE, bytes_per_s=1e11, latency_s=1e-6, source="assumed")]
    if len(nodes) > 1:
        links.append(Link(level=Level.SITE, bytes_per_s=1e10, latency_s=1e-5, source="assumed"))
    return Cluster(
        name="random",
        nodes=tuple(Node(accelerator=device, num_devices=count) for count in nodes),
        links=tuple(links),
        source="assumed",
    )


def explained_bytes(plan: Plan) -> LevelBytes:
    """What `explain` says that all ranks send in one step, averages every few steps included as if in this one."""
    uses = [use for of_group in collective_uses(plan, rank_groups(plan)) for use in of_group]
    return sent_in_step(replace(use, runs=use.runs * use.traffic.operator.every) for use in uses)


class Spoiling(StrEnum):
    """What is done to one sum of a plan."""

    REMOVED = "removed"  # Who reads the sum reads the summand.
    DOUBLED = "doubled"  # Made once more of what is summed already.
    MOVED = "moved"  # Made over another axis.


@dataclass(frozen=True, kw_only=True, slots=True)
class Spoilt:
    """A plan with one sum spoilt.

    Args:
        plan: That must be refused.
        what: Which sum, for messages.
    """

    plan: Plan
    spoiling: Spoiling
    what: str


def spoil(plan: Plan, chance: random.Random) -> Iterator[Spoilt]:
    """One plan for each way to spoil one of its sums, chosen by chance; none for a way that the plan has no sum for."""
    sums = [
        (index, operator)
        for index, operators in enumerate(_programs(plan))
        for operator in dict.fromkeys(operators)
        if _is_sum(plan, operator)
    ]
    for spoiling in Spoiling:
        fitting = [(index, operator) for index, operator in sums if _can(plan, operator, spoiling)]
        if fitting:
            index, operator = chance.choice(fitting)
            over = ", ".join(_transfer(operator).axes)
            what = f"{operator.kind.value} of {', '.join(operator.inputs)} over {over}"
            yield Spoilt(plan=_spoilt(plan, index, operator, spoiling, chance), spoiling=spoiling, what=what)


def _can(plan: Plan, operator: Operator, spoiling: Spoiling) -> bool:
    """Whether a sum can be spoilt so that it matters."""
    if spoiling is Spoiling.DOUBLED:
        return _transfer(operator).operation == "sum"  # A maximum taken twice is the same maximum.
    return spoiling is Spoiling.REMOVED or bool(_other_axes(plan, operator))


def _other_axes(plan: Plan, operator: Operator) -> list[str]:
    """Axes with several ranks that a sum is not made over."""
    return [axis for axis, size in plan.mesh.axes if size > 1 and axis not in _transfer(operator).axes]


def _programs(plan: Plan) -> list[tuple[Operator, ...]]:
    """The operators of every block, then those of the update."""
    blocks = [(*block.forward, *block.backward) for block in plan.blocks]
    return [*blocks, plan.update.operators]


def _transfer(operator: Operator) -> Transfer:
    assert operator.transfer is not None, "sums are sent"
    return operator.transfer


def _is_sum(plan: Plan, operator: Operator) -> bool:
    if operator.kind not in (OperatorKind.ALL_REDUCE, OperatorKind.REDUCE_SCATTER):
        return False
    transfer = _transfer(operator)
    if transfer.stages:
        return len({plan.pipeline.rank_of_stage[stage] for stage in transfer.stages}) > 1
    return any(plan.axis_sizes[axis] > 1 for axis in transfer.axes)


def _spoilt(plan: Plan, index: int, operator: Operator, spoiling: Spoiling, chance: random.Random) -> Plan:
    values = plan.blocks[index].values if index < len(plan.blocks) else plan.update.values
    if spoiling is Spoiling.DOUBLED:
        change = _doubled(operator, values)
    elif spoiling is Spoiling.MOVED:
        change = _moved(operator, chance.choice(_other_axes(plan, operator)), values)
    else:
        change = _removed(operator)
    if index == len(plan.blocks):
        return replace(plan, update=_changed_update(plan.update, operator, change))
    blocks = list(plan.blocks)
    blocks[index] = _changed_block(blocks[index], operator, change)
    return replace(plan, blocks=tuple(blocks))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Change:
    """Operators in place of one, names that its readers read instead, and values that are new."""

    operators: tuple[Operator, ...]
    renamed: Mapping[str, str]
    values: Mapping[str, Value]

    def apply(self, operators: Sequence[Operator], old: Operator) -> tuple[Operator, ...]:
        """A program with the change."""
        found: list[Operator] = []
        for operator in operators:
            if operator == old:
                found += self.operators
            else:
                found.append(replace(operator, inputs=tuple(map(self.name, operator.inputs))))
        return tuple(found)

    def name(self, name: str) -> str:
        """What is read instead of a value."""
        return self.renamed.get(name, name)


def _removed(operator: Operator) -> _Change:
    """Who reads the sum reads the summand; where it was scattered, its own piece of the summand."""
    if operator.kind is OperatorKind.REDUCE_SCATTER:
        return _Change(operators=(_piece_of(operator, operator.inputs),), renamed={}, values={})
    return _Change(operators=(), renamed=dict(zip(operator.outputs, operator.inputs, strict=True)), values={})


def _piece_of(operator: Operator, names: Sequence[str]) -> Operator:
    """The cut of a reduce-scatter, without its sum."""
    cuts = _transfer(operator).axes
    return replace(
        operator, kind=OperatorKind.SLICE, inputs=tuple(names), transfer=None, variants=(), cuts=cuts
    )


def _doubled(operator: Operator, values: Mapping[str, Value]) -> _Change:
    """An all-reduce of what is summed already; what is to be scattered is summed before."""
    is_scattered = operator.kind is OperatorKind.REDUCE_SCATTER
    summed = operator.inputs if is_scattered else operator.outputs
    again = {name: f"{name}~again" for name in summed}
    new = {}
    for name, copy in again.items():
        placements = values[name].placements
        for axis in _transfer(operator).axes:
            if placements.on(axis).kind is PlacementKind.PARTIAL:
                placements = placements.put(axis, REPLICATED)
        new[copy] = replace(values[name], name=copy, placements=placements)
    once_more = replace(
        operator,
        kind=OperatorKind.ALL_REDUCE,
        inputs=tuple(summed),
        outputs=tuple(again.values()),
        dim_to=None,
    )
    if is_scattered:
        scattered = replace(operator, inputs=once_more.outputs)
        return _Change(operators=(once_more, scattered), renamed={}, values=new)
    return _Change(operators=(operator, once_more), renamed=again, values=new)


def _moved(operator: Operator, axis: str, values: Mapping[str, Value]) -> _Change:
    """The sum over another axis; where it was scattered, the pieces stay the same."""
    transfer = replace(_transfer(operator), axes=(axis,), route="native", levels=(), stages=())
    elsewhere = replace(operator, kind=OperatorKind.ALL_REDUCE, transfer=transfer, variants=(), dim_to=None)
    if operator.kind is OperatorKind.ALL_REDUCE:
        return _Change(operators=(elsewhere,), renamed={}, values={})
    names = {name: f"{name}~elsewhere" for name in operator.inputs}
    elsewhere = replace(elsewhere, outputs=tuple(names.values()))
    new = {copy: replace(values[name], name=copy) for name, copy in names.items()}
    return _Change(operators=(elsewhere, _piece_of(operator, elsewhere.outputs)), renamed={}, values=new)


def _changed_block(block: Block, old: Operator, change: _Change) -> Block:
    return replace(
        block,
        values={**block.values, **change.values},
        forward=change.apply(block.forward, old),
        recompute=change.apply(block.recompute, old),
        backward=change.apply(block.backward, old),
        kept=tuple(dict.fromkeys(map(change.name, block.kept))),
        result=change.name(block.result),
        gradient=change.name(block.gradient),
    )


def _changed_update(update: Update, old: Operator, change: _Change) -> Update:
    return replace(
        update,
        values={**update.values, **change.values},
        operators=change.apply(update.operators, old),
        results={name: change.name(value) for name, value in update.results.items()},
    )


def features_of(job: Job, plan: Plan) -> frozenset[str]:
    """What of the language and of the planner a plan puts to work, to be counted over many."""
    return frozenset(_features(job, plan))


def _features(job: Job, plan: Plan) -> Iterator[str]:
    yield from (f"statement {line.split()[0]}" for line in job.text.splitlines())
    yield from (
        f"clause {word}" for word in ("WHERE", " ON ", "BUCKET", "COMPRESS", "WITHIN") if word in job.text
    )
    yield from _features_of_training(job.training)
    for operators in _programs(plan):
        for operator in operators:
            yield f"operator {operator.kind.value}"
            if operator.variants:
                yield "groups that send in another way"
            for transfer in (operator.transfer, *(way for _, way in operator.variants)):
                if transfer is not None:
                    yield f"route {transfer.route}"
                    yield f"wire {transfer.wire}"
                    yield f"compress {transfer.compress}"
    if plan.pipeline.axis is not None and plan.pipeline.num_stages > 1:
        yield f"schedule {plan.pipeline.schedule.value}"
    yield from (f"attention {decision.value}" for decision in plan.bound.attention.values())
    yield from _features_of_layouts(plan)


def _features_of_training(training: Training) -> Iterator[str]:
    network = training.network
    yield "experts" if network.experts else "dense"
    yield "tied" if network.tied else "untied"
    yield f"bias {network.bias.value}"
    yield f"positions {network.positions.value}"
    yield f"{network.norm.value}"
    yield f"{network.activation.value}"
    if network.kv_heads < network.heads:
        yield "grouped queries"
    if network.qk_norm:
        yield "norm of queries and keys"
    if training.shares is not None:
        yield "shares"


def _features_of_layouts(plan: Plan) -> Iterator[str]:
    if plan.work.num_parts % plan.work.replicas:
        yield "replicas without a last share"
    for parameter in plan.parameters.values():
        if len(parameter.stages) > 1:
            yield "a matrix tied over two stages"
        for table, placements in parameter.stored.items():
            axes = placements.axes_of(PlacementKind.STORED)
            if axes:
                yield f"stored {table} over {len(axes)} axes" if len(axes) > 1 else f"stored {table}"
        for axis, placement in parameter.computed:
            yield f"parameters {placement}"
            if placement.dim == "experts" and axis in plan.bound.batch_axes:
                yield "experts over an axis of the batch"
            if placement.dim == "vocab" and parameter.shape[0] % plan.axis_sizes[axis]:
                yield "uneven pieces of the vocabulary"
    for block in plan.blocks:
        if block.recompute:
            yield "recompute"
        if block.offloaded:
            yield "offloaded activations"
        for value in block.values.values():
            for dim in ("batch", "sequence", "slots"):
                if len(value.placements.axes_cutting(dim)) > 1:
                    yield f"{dim} cut over several axes"
