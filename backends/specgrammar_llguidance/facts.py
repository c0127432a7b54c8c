"""What llguidance is and is not."""

from specgrammar.language.schema_keywords import UNENFORCED
from specgrammar.protocols.grammar import BackendFacts

FACTS = BackendFacts(
    max_rollback=None,
    thread_safe=True,
    grammar_syntaxes=frozenset({"ebnf", "lark"}),
    unenforced_keywords=UNENFORCED,
)
