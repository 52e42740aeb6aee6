"""Which tokens does step s train on?

Text to documents (``locate``, ``documents``), to tokens (``tokenizers``, ``split``, ``cache``), to samples
(``packing``, ``samples``), to batches (``corpus``). numpy only: who trains converts.
"""

from trimtab.runtime.data.cache import Progress
from trimtab.runtime.data.corpus import Batch, Corpus, open_corpus, unigram_entropy
from trimtab.runtime.data.errors import DataError, DataWarning
from trimtab.runtime.data.packing import EMPTY, IGNORED
from trimtab.runtime.data.samples import SampleIndex

__all__ = [
    "EMPTY",
    "IGNORED",
    "Batch",
    "Corpus",
    "DataError",
    "DataWarning",
    "Progress",
    "SampleIndex",
    "open_corpus",
    "unigram_entropy",
]
