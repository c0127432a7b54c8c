"""specgrammar's backend for llguidance."""

from specgrammar_llguidance.backend import LLGuidanceBackend, LLGuidanceCompiled
from specgrammar_llguidance.matcher import LLGuidanceMatcher

__all__ = ["LLGuidanceBackend", "LLGuidanceCompiled", "LLGuidanceMatcher"]
