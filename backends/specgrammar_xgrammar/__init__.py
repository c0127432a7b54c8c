"""specgrammar's backend for xgrammar."""

from specgrammar_xgrammar.backend import XGrammarBackend, XGrammarCompiled
from specgrammar_xgrammar.matcher import XGrammarMatcher

__all__ = ["XGrammarBackend", "XGrammarCompiled", "XGrammarMatcher"]
