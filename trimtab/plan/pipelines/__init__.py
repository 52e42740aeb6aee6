"""Pipelines as values: who runs which stage when, what that holds and sends, and how long it takes."""

from trimtab.plan.pipelines.actions import Action, ActionKind, PipelineActions, RankActions
from trimtab.plan.pipelines.errors import DeadlockError, LayersError, PipelineError, RefusedShapeError
from trimtab.plan.pipelines.held_and_sent import InFlight, Transfers, in_flight, peak_bytes, transfers
from trimtab.plan.pipelines.layers import Balance, LayerWeights, stages_of_layers
from trimtab.plan.pipelines.makespans import WiredPipeline, wired, wired_pipeline
from trimtab.plan.pipelines.methods import StageSchedule
from trimtab.plan.pipelines.refusals import Quantity, Refusal, refusal_of
from trimtab.plan.pipelines.schedules import actions_of, ranks_of_stages, stages_per_rank_of
from trimtab.plan.pipelines.simulation import StageTimes, simulate
from trimtab.plan.pipelines.text_drawing import draw
from trimtab.plan.pipelines.timeline import Bar, Timeline

__all__ = [
    "Action",
    "ActionKind",
    "Balance",
    "Bar",
    "DeadlockError",
    "InFlight",
    "LayerWeights",
    "LayersError",
    "PipelineActions",
    "PipelineError",
    "Quantity",
    "RankActions",
    "Refusal",
    "RefusedShapeError",
    "StageSchedule",
    "StageTimes",
    "Timeline",
    "Transfers",
    "WiredPipeline",
    "actions_of",
    "draw",
    "in_flight",
    "peak_bytes",
    "ranks_of_stages",
    "refusal_of",
    "simulate",
    "stages_of_layers",
    "stages_per_rank_of",
    "transfers",
    "wired",
    "wired_pipeline",
]
