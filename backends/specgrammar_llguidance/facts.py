"""What llguidance is and is not."""

from specgrammar.protocols.grammar import BackendFacts

FACTS = BackendFacts(
    max_rollback=None,
    thread_safe=True,
    grammar_syntaxes=frozenset({"lark"}),
    unenforced_keywords=frozenset(),
)
