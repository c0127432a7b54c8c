"""What xgrammar is and is not."""

from specgrammar.language.schema_keywords import UNENFORCED
from specgrammar.protocols.grammar import BackendFacts
from specgrammar_xgrammar.native_schema import NEVER_ENFORCED

FACTS = BackendFacts(
    max_rollback=None,
    thread_safe=True,
    grammar_syntaxes=frozenset({"ebnf"}),
    unenforced_keywords=UNENFORCED,
)

NATIVE_FACTS = BackendFacts(
    max_rollback=None,
    thread_safe=True,
    grammar_syntaxes=frozenset({"ebnf", "lark"}),
    unenforced_keywords=NEVER_ENFORCED,
)
"""The same with `frontend="native"`; there some keywords are dropped in some places, see `native_schema`."""
