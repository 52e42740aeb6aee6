"""What ``checkpoints export`` writes."""

from enum import StrEnum


class ExportFormat(StrEnum):
    """How weights are given to others."""

    SAFETENSORS = "safetensors"
    HUGGINGFACE = "huggingface"
