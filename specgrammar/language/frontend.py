"""A `GrammarSpec` as rules: what all backends have in common before their own notation."""

from __future__ import annotations

from specgrammar.errors import GrammarCompileError
from specgrammar.language.ebnf import parse_ebnf
from specgrammar.language.regex import Alt, literal
from specgrammar.language.regex_parser import parse_regex
from specgrammar.language.rules import Grammar
from specgrammar.language.schema import compile_schema
from specgrammar.language.source import check_source, grammar_syntax, load_json
from specgrammar.protocols.grammar import BackendFacts, GrammarSpec


def rules_of(spec: GrammarSpec, facts: BackendFacts) -> tuple[Grammar, tuple[str, ...]]:
    """The rules of a spec, and the pointers of what they do not enforce. Of grammar texts, EBNF only.

    Raises:
        WeakenedSchemaError: a schema has keywords that would not be enforced, and the spec does not allow it.
        GrammarCompileError: the source is broken, too large, or nothing satisfies it.
    """
    check_source(spec)
    if spec.kind == "grammar":
        if grammar_syntax(spec.source) != "ebnf":
            raise GrammarCompileError(
                "grammar: EBNF is expected (`root ::= ...`), and no line begins with `name ::=`; "
                "rewrite it, or use the llguidance backend for Lark (`start: ...`)"
            )
        return parse_ebnf(spec.source), ()
    if spec.kind == "regex":
        return Grammar({"start": parse_regex(spec.source)}, "start"), ()
    if spec.kind == "choice":
        return Grammar({"start": Alt(tuple(map(literal, _choices(spec.source))))}, "start"), ()
    return compile_schema(spec, facts)


def _choices(source: str) -> list[str]:
    choices = load_json(source, "choice")
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise GrammarCompileError("choice: expected a JSON array of at least one string")
    for number, choice in enumerate(choices):
        if any("\ud800" <= char <= "\udfff" for char in choice):
            raise GrammarCompileError(f"choice: string {number} has a lone surrogate; write the character")
    return list(dict.fromkeys(choices))
