"""The job as typed values: one class for each mapping of the job file, one field for each key.

A field's docstring says what it is, its unit and its default; `trimtab schema` and the error messages read
it here. Two keys that contradict each other are not found here but in `contradictions`.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_serializer

from trimtab.spec.card_types import (
    BatchSize,
    BelowOne,
    Card,
    ComputeChoice,
    Duration,
    Fraction,
    KeyPlace,
    NaturalFloat,
    NaturalInt,
    OneOf,
    OnLossChoice,
    PositiveFloat,
    PositiveInt,
    RunName,
    Takes,
    Word,
    Words,
)
from trimtab.spec.detection import Detection
from trimtab.spec.spiking import OnSpike
from trimtab.terms import ComputeType, OnLoss


class Model(Card):
    """The network to train: exactly one of `preset`, `folder` and `module`."""

    preset: Word | None = None
    """Name of a network of the catalog, such as gpt-3m. Default: none."""
    folder: Word | None = None
    """Folder of a Hugging Face model, whose config.json describes the network, relative to the file that
    names it; in the resolved job file, to where the run was started. Default: none."""
    module: (
        Annotated[str, Field(pattern=r"^[\w.]+:\w+$"), Takes("text such as package.module:Class")] | None
    ) = None
    """Import path and class of a torch module of your own, as package.module:Class. Default: none."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the class named by `module`. Default: none."""
    configuration: dict[str, Any] = Field(default_factory=dict)
    """What config.json of `folder` says; read once and kept with the run. Default: none."""
    weights: Literal["folder", "random"] | None = None
    """What training begins with: folder, the weights that stand in `folder`, or random ones. Default: folder
    where `folder` names one, else random."""
    layers: PositiveInt | None = None
    """Number of transformer layers. Default: the preset's."""
    embed: PositiveInt | None = None
    """Width of the residual stream. Default: the preset's."""
    heads: PositiveInt | None = None
    """Number of query heads. Default: the preset's."""
    kv_heads: PositiveInt | None = None
    """Number of key and value heads. Default: the preset's."""
    head_size: PositiveInt | None = None
    """Width of one head. Default: the preset's."""
    qk_norm: bool | None = None
    """Whether queries and keys of each head are normalised. Default: the preset's."""
    window: NaturalInt | None = None
    """Tokens that a query sees, its own included; 0: all before it. Default: the preset's."""
    mlp: PositiveInt | None = None
    """Inner width of the feed-forward part, or of one expert. Default: the preset's."""
    experts: NaturalInt | None = None
    """Number of experts of each layer; 0: none, dense. Default: the preset's."""
    top_k: NaturalInt | None = None
    """Number of experts that a token is sent to; 0 if there are none. Default: the preset's."""
    context: PositiveInt | None = None
    """Longest sequence that the positions allow, in tokens. Default: the preset's."""
    vocab: PositiveInt | None = None
    """Number of rows of the embedding, in tokens. Default: the preset's."""
    norm: Literal["layernorm", "rmsnorm"] | None = None
    """Normalisation. Default: the preset's."""
    norm_eps: PositiveFloat | None = None
    """Added to the variance (or mean square) before the root. Default: the preset's."""
    positions: Literal["learned", "rotary"] | None = None
    """How positions enter. Default: the preset's."""
    rope_base: PositiveFloat | None = None
    """Base of the rotary frequencies; unused with learned positions. Default: the preset's."""
    activation: Literal["gelu", "swiglu"] | None = None
    """Activation of the feed-forward part. Default: the preset's."""
    tied: bool | None = None
    """Whether embedding and head share one matrix. Default: the preset's."""
    dropout: BelowOne | None = None
    """Probability of dropping an activation. Default: the preset's."""
    bias: bool | Literal["qkv"] | None = None
    """Whether linear layers have a bias; qkv: those of queries, keys and values alone. Default: the preset's."""

    @property
    def named(self) -> dict[str, str]:
        """The network under the key that names it; exactly one in a job that was checked."""
        return self.model_dump(include={"preset", "folder", "module"}, exclude_none=True)

    @property
    def begins_with_folder(self) -> bool:
        """Whether training begins with the weights that stand in `folder`."""
        return self.folder is not None and self.weights != "random"

    @property
    def changes(self) -> dict[str, Any]:
        """What is changed in the network that `preset` or `folder` names, by key."""
        others = {"preset", "folder", "weights", "configuration", "module", "args"}
        return self.model_dump(exclude=others, exclude_none=True)


class Bpe(Card):
    """Byte-pair encoding, trained on the run's own text."""

    vocab: Annotated[int, Field(ge=257), Takes("a whole number of at least 257")] = 4096
    """Size of the vocabulary, in tokens, the 256 bytes included. Default: 4096."""


class TrainedTokenizer(Card):
    """A tokenizer that the run trains before it begins."""

    bpe: Bpe
    """Byte-pair encoding."""


class Packing(StrEnum):
    """How documents become samples."""

    PACK = "pack"
    PAD = "pad"


class Data(Card):
    """The text to train on, and how it becomes samples."""

    text: Annotated[
        Word | Words,
        Takes("python-stdlib, a file, a folder, a glob, or a list of them"),
    ]
    """Where the text is: python-stdlib, a file, a folder, a glob, or a list of them; .jsonl and .parquet
    are read by `field`, all else as text. Required."""
    field: Word = "text"
    """Column of .jsonl and .parquet files that holds the text. Default: text."""
    tokenizer: Annotated[
        Word | TrainedTokenizer,
        Takes("bytes, the path of a tokenizer.json, or a mapping such as {bpe: {vocab: 4096}}"),
    ] = "bytes"
    """bytes, the path of a tokenizer.json, or {bpe: {vocab: N}}. Default: bytes."""
    sequence: PositiveInt = 128
    """Length of a sample, in tokens. Default: 128."""
    held_out: BelowOne = 0.05
    """Fraction of the documents kept for evaluation, 0 to below 1. Default: 0.05."""
    packing: Annotated[Packing, Field(strict=False)] = Packing.PACK
    """pack: documents one after the other, cut to `sequence`; pad: one document a sample, the rest masked.
    Default: pack."""
    cache: Word | None = None
    """Folder for tokenized text. Default: none, .tokens in the folder of runs, which its runs share."""


class AdamW(Card):
    """AdamW (Loshchilov and Hutter 2019)."""

    lr: PositiveFloat = 1e-3
    """Peak learning rate, per step. Default: 1e-3."""
    betas: Annotated[
        tuple[BelowOne, BelowOne], Field(strict=False), Takes("two numbers from 0 to below 1")
    ] = (0.9, 0.95)
    """Decay of the first and the second moment, per step. Default: [0.9, 0.95]."""
    eps: PositiveFloat = 1e-8
    """Added to the root of the second moment. Default: 1e-8."""
    weight_decay: NaturalFloat = 0.1
    """Decoupled decay, times the learning rate. Default: 0.1."""


class Sgd(Card):
    """Stochastic gradient descent with momentum, as torch defines it."""

    lr: PositiveFloat = 1e-3
    """Peak learning rate, per step. Default: 1e-3."""
    momentum: BelowOne = 0.0
    """Decay of the velocity, per step. Default: 0."""
    weight_decay: NaturalFloat = 0.0
    """Added to the gradient, times the weight. Default: 0."""
    nesterov: bool = False
    """Look ahead along the velocity. Default: false."""


class Optimizer(OneOf):
    """The optimizer, with its settings under its name."""

    adamw: AdamW | None = None
    """AdamW. Default if no optimizer is named."""
    sgd: Sgd | None = None
    """Stochastic gradient descent."""


class Schedule(Card):
    """A course of the learning rate, as a factor of the optimizer's `lr`."""

    warmup: NaturalInt = 0
    """Steps of linear rise from 0. Default: 0."""


class Constant(Schedule):
    """The peak rate throughout, after the warm-up."""


class Linear(Schedule):
    """A straight fall to the floor at the last step."""

    floor: Fraction = 0.1
    """Rate at the end, as a fraction of the peak. Default: 0.1."""


class Cosine(Schedule):
    """Half a cosine down to the floor at the last step."""

    floor: Fraction = 0.1
    """Rate at the end, as a fraction of the peak. Default: 0.1."""


class StepDecay(Schedule):
    """A fall by a factor every so many steps."""

    every: PositiveInt
    """Steps between two falls. Required."""
    factor: Annotated[float, Field(gt=0, lt=1), Takes("a number between 0 and 1")] = 0.1
    """What the rate is multiplied by. Default: 0.1."""


class InverseSqrt(Schedule):
    """A fall with the inverse square root of the step."""


class Restarts(Schedule):
    """Cosines one after the other, each beginning at the peak."""

    period: PositiveInt
    """Steps of one cosine. Required."""
    floor: Fraction = 0.1
    """Rate at the end of a cosine, as a fraction of the peak. Default: 0.1."""


class LrSchedule(OneOf):
    """The learning rate over the steps."""

    constant: Constant | None = None
    """The peak rate throughout. Default if no schedule is named."""
    linear: Linear | None = None
    """A straight fall."""
    cosine: Cosine | None = None
    """Half a cosine."""
    step: StepDecay | None = None
    """A fall by a factor every so many steps."""
    inverse_sqrt: InverseSqrt | None = None
    """A fall with the inverse square root of the step."""
    restarts: Restarts | None = None
    """Cosines one after the other."""

    @property
    def chosen(self) -> Schedule:
        """The settings under the name chosen."""
        card = super().chosen
        assert isinstance(card, Schedule)
        return card


class Evaluate(Card):
    """When and how the held-out text is scored."""

    every: NaturalInt = 0
    """Steps between two evaluations; 0: only at the end. Default: 0."""
    batches: PositiveInt = 8
    """Batches of one evaluation. Default: 8."""


class OnNonfinite(StrEnum):
    """What to do with a step whose loss or gradient is not finite."""

    SKIP = "skip"
    STOP = "stop"
    ROLLBACK = "rollback"


class Compile(StrEnum):
    """What torch's compiler is given."""

    OFF = "off"
    BLOCKS = "blocks"


class Train(Card):
    """How long, with what batch and by which rule the weights change: exactly one of `steps` and `epochs`."""

    steps: PositiveInt | None = None
    """Number of optimizer steps. Default: as many as `epochs` give."""
    epochs: PositiveFloat | None = None
    """Passes over the training text. Default: as many as `steps` give."""
    batch: BatchSize = 32
    """Samples of one step, over all devices. Default: 32."""
    microbatch: PositiveInt | Literal["auto"] = "auto"
    """Samples computed at once; a constant of the run. Default: auto, the largest divisor of a share up
    to 8."""
    seed: NaturalInt = 0
    """Seed of initial weights, order of samples and dropout. Default: 0."""
    optimizer: Optimizer = Optimizer(adamw=AdamW())
    """The optimizer. Default: {adamw: {}}."""
    lr_schedule: LrSchedule = LrSchedule(constant=Constant())
    """The learning rate over the steps. Default: {constant: {warmup: 0}}."""
    clip: PositiveFloat | Literal["off"] = 1.0
    """Largest gradient norm, over all parameters; off: no clipping. Default: 1.0."""
    compute: ComputeChoice = ComputeType.FP32
    """Type of matrix products, fp32 or bf16; master weights are fp32 in both. Default: fp32."""
    compile: Annotated[Compile, Field(strict=False)] = Compile.OFF
    """What torch's compiler is given: off, or blocks, each layer of a network by itself; a constant of the run.
    Default: off."""
    evaluate: Evaluate = Evaluate()
    """Scoring of the held-out text. Default: at the end only."""
    on_nonfinite: Annotated[OnNonfinite, Field(strict=False)] = OnNonfinite.SKIP
    """A loss or gradient that is not finite: skip the step, stop the run, or rollback to the newest
    checkpoint. Default: skip."""
    on_spike: OnSpike = OnSpike()
    """A loss or gradient norm far above those before. Default: {answer: mark}."""


class Engine(StrEnum):
    """Who starts the ranks."""

    LOCAL = "local"
    TORCHRUN = "torchrun"


class Environment(Card):
    """Environment variables of the ranks; nothing else is handed on but what a process needs to start."""

    passed: Words = Field(default=(), alias="pass")
    """Names handed on from the caller's environment. Default: none."""
    assigned: Annotated[dict[Word, str], Takes("a mapping from names to text")] = Field(
        default_factory=dict, alias="set"
    )
    """Names and their values. Values of names such as API_TOKEN are not written with the run. Default: none."""


class Orchestration(Card):
    """Card 1: what runs where, and what it costs."""

    engine: Annotated[Engine, Field(strict=False)] = Engine.LOCAL
    """Who starts the ranks: local, or torchrun. Default: local."""
    devices: PositiveInt = 1
    """Number of devices, one rank each. Default: 1."""
    threads: PositiveInt = 1
    """CPU threads of one rank; a constant of the run. Default: 1."""
    price_usd_per_device_hour: NaturalFloat | None = None
    """Price of one device, in dollars an hour. Default: the catalog's, else none and no dollars shown."""
    storage_usd_per_gb_month: NaturalFloat | None = None
    """Price of keeping 10^9 bytes of checkpoints, in dollars a month. Default: none, and no dollars shown for them."""
    cluster: Word | None = None
    """Name of a cluster of the catalog. Default: this machine."""
    runs: Word = "runs"
    """Folder that runs are kept in. Default: runs."""
    grace: Duration = 30.0
    """Time to save after SIGTERM or SIGINT, in seconds. Default: 30s."""
    environment: Environment = Environment()
    """Environment variables of the ranks. Default: none."""
    hosts: PositiveInt = 1
    """Hosts that the devices are divided among, as many on each. Default: 1."""
    listen: Word | None = None
    """ADDRESS:PORT at which the other hosts reach the first one. Default: none; several hosts need it."""
    interface: Word | None = None
    """Network interface that the first host's ranks talk over. Default: the one that has the address of listen."""
    token_file: Word | None = None
    """File with the token that hosts prove they belong to the run by. Default: token, in the run's folder."""
    unreachable: Duration = 60.0
    """Longest time that hosts wait for hosts that they need and cannot reach, in seconds. Default: 60s."""


def _read_parallelism(value: object) -> object:
    if isinstance(value, dict):
        raise ValueError("formulas are text")
    return {"text": value} if isinstance(value, str) else value


class Parallelism(Card):
    """Card 2: who computes what, as formulas of the strategy language.

    Written as text, as `{file: x.trim}`, which the loader replaces by the file's text, or as `auto`: the planner finds the
    formulas and writes them, with its reasons, into the run.
    """

    text: str = ""
    """The formulas. Default: none, which splits the batch over all devices."""

    @model_serializer
    def _write(self) -> str:
        return self.text


ParallelismText = Annotated[
    Parallelism,
    BeforeValidator(_read_parallelism),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "properties": {"file": {"type": "string"}},
                    "required": ["file"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
    Takes("formulas as text, {file: x.trim}, or auto"),
]


class Checkpoint(Card):
    """When the full state is saved, and how many are kept."""

    every: PositiveInt | Literal["adaptive", "off"] = "adaptive"
    """Steps between two checkpoints; adaptive: by measured cost and risk; off: none. Default: adaptive."""
    keep: PositiveInt = 3
    """Newest checkpoints kept. Default: 3."""
    keep_best: bool = False
    """Keep the one with the lowest evaluation loss as well. Default: false."""
    to: Word | None = None
    """Where checkpoints go, each run's under its name: a folder, or a place in an object store, as s3://BUCKET/PREFIX. A
    constant of the run. Default: the run's folder."""
    keep_every: PositiveInt | None = None
    """Checkpoints of steps that it divides are kept for good. Default: none are."""
    sign: KeyPlace | None = None
    """Where the key stands that signs checkpoints, 64 hexadecimal digits: env:NAME, a variable of the shell that starts or
    resumes the run, or file:PATH. A constant of the run. Default: a key of the run's own, in its folder."""
    encrypt: KeyPlace | None = None
    """Where the project's key stands that encrypts checkpoints with AES-256-GCM: env:NAME or file:PATH, as for `sign`.
    Default: none, they are written plain."""

    @property
    def key_variables(self) -> tuple[str, ...]:
        """Names of the environment variables that hold keys: they are handed on to the ranks, and never shown."""
        places = (self.sign, self.encrypt)
        return tuple(place.removeprefix("env:") for place in places if place and place.startswith("env:"))


class RestartLimits(Card):
    """How often a run is started again, by what ended it."""

    node_loss: NaturalInt = 16
    """Losses of devices or nodes that are borne. Default: 16."""
    user_error: NaturalInt = 0
    """Exceptions in the program that are borne, each by a new process; one in the same step again ends the run.
    Default: 0, the first ends it."""
    forgiven_after: PositiveInt = 1000
    """Committed steps after which a loss or an exception no longer counts. Default: 1000."""
    script: NaturalInt = 3
    """Restarts of all ranks after one failed, of a script that does not adopt Trimtab. Default: 3."""


class FaultTolerance(Card):
    """Card 3: what happens when something dies, and when state is saved."""

    shares: PositiveInt | Literal["off", "auto"] = "auto"
    """Fixed parts of the batch, the unit of work and of recovery; off: the backend's own order of addition.
    A constant of the run. Default: auto, a power of two of at least `devices` and 4 that divides the batch."""
    on_loss: OnLossChoice = OnLoss.AUTO
    """What happens in the step in which a peer dies: exact, redo, rollback, same_batch or rescale. Under
    torchrun only rollback: torchrun starts all ranks again, at the newest checkpoint. Default: auto, the
    strongest that the layout allows."""
    snapshots: PositiveInt | Literal["auto", "off"] = "auto"
    """Steps between two copies of each rank's pieces in another rank's memory; off: none. Default: auto, so often
    that at most 60 s of work can be lost, where no other rank holds the same pieces."""
    digest_every: NaturalInt = 0
    """Steps between two hashes of the weights that every rank writes into its journal; 0: none. Default: 0."""
    replace: bool = False
    """Start a new process for a lost rank, which joins at a step border. Default: false."""
    balance: NaturalInt = 8
    """Steps between two looks at how long a share takes each rank, after which slow ones give shares to others; 0:
    never. Default: 8."""
    checkpoint: Checkpoint = Checkpoint()
    """Saved states. Default: adaptive, the newest 3."""
    detection: Detection = Detection()
    """Limits after which a rank is declared dead. Default: {deadline: 60s}, from which all follow."""
    restarts: RestartLimits = RestartLimits()
    """Limits on restarts."""


class Script(Card):
    """A Python program of your own, which every rank runs."""

    file: Word
    """Path of the program, relative to the working folder. Required."""
    args: Words = ()
    """Its command line. Default: none."""


class Job(Card):
    """A job file, its base files and overrides read in."""

    run: RunName
    """Name of the run: small letters, digits, hyphens. Required."""
    script: Script | None = None
    """A program of your own instead of `model` and `data`: a loop that calls trimtab.adopt, or one that knows
    nothing of Trimtab. Default: none."""
    model: Model
    """The network to train. Required, unless there is a script."""
    data: Data
    """The text to train on. Required, unless there is a script."""
    train: Train
    """How long and by which rule. Required, unless there is a script."""
    orchestration: Orchestration = Orchestration()
    """Card 1: what runs where."""
    parallelism: ParallelismText = Parallelism()
    """Card 2: who computes what."""
    fault_tolerance: FaultTolerance = FaultTolerance()
    """Card 3: what happens when something dies."""
