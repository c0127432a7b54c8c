"""A toy worker and a toy grammar backend, as a package of its own: the smallest whole plugin."""

from specgrammar_toys.backend import ChoiceBackend
from specgrammar_toys.worker import Recall

__all__ = ["ChoiceBackend", "Recall"]
