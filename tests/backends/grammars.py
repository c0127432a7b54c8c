"""Grammars in EBNF that people write, and a strategy of small ones that nobody would."""

from __future__ import annotations

from hypothesis import strategies as st

JSON = r"""
# as llama.cpp ships it
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""

GRAMMARS = {
    "json": JSON,
    "arithmetic": r"""
        root  ::= (expr "=" ws term "\n")+
        expr  ::= term ([-+/] ws term)*
        term  ::= ident | num | "[" ws expr "]" ws
        ident ::= [a-z] [a-z0-9]* ws
        num   ::= [0-9]+ ws
        ws    ::= [ \t\n]*""",
    "left-recursive": 'root ::= root "+" product | product\nproduct ::= product "/" n | n\nn ::= [0-9]+',
    "balanced": 'root ::= pair*\npair ::= "[" pair* "]" | "{" pair* "}"',
    "palindromes": 'root ::= "a" root "a" | "b" root "b" | [ab] | ""',
    "sql": r"""
        root  ::= "ab " names " , " names (" d " cond)? "\n"
        names ::= "+" | name (", " name)*
        cond  ::= test | cond " a " cond | cond " e " cond | "{" cond "}"
        test  ::= name " "? (":" | "-" | "::") " "? (name | num | text)
        name  ::= [a-z] [a-z0-9]*
        num   ::= [0-9]+ ("." [0-9]+)?
        text  ::= "\"" [^"]* "\"" """,
    "list": 'root ::= ("- " item "\\n")+\nitem ::= [^\\n-]{1,20}',
    "unicode": r'root ::= letter{2,5} ("." letter+)*'
    + "\n"
    + r"letter ::= [\u00C0-\u00FF] | [^\x00-\uFFFF] | [a-c]",
    "counts": 'root ::= ("a" b{2,3}){1,4} "c"{3} d{2,}\nb ::= "b" | "ab"\nd ::= "d"? "e"',
    "nullable": 'root ::= a a? (a | "")* b{0,2} | ""\na ::= "a"? b\nb ::= "" | "b" | "ab"',
    "hidden left recursion": 'root ::= gap root "b" | "a"\ngap ::= "b"?',
    "loops": 'root ::= root | a root? | ("" | a)*\na ::= a | "x" | root a',
    "longest is wrong": 'root ::= word "ab" | word [0-9] word\nword ::= [a-d]+ | word "-" word',
    "prefixes": 'root ::= (k v)+\nk ::= "a" | "ab" | "abab"\nv ::= "b" | "ba" | "ab" k',
    "any character": 'root ::= "x" .{2,4} "x"',
}

_char = st.sampled_from(["a", "b", "é", "ab", "1", "12", "x"])


@st.composite
def grammars(draw: st.DrawFn, num_rules: int = 3) -> str:
    """EBNF of up to `num_rules` rules that refer to each other in every way."""
    names = ["root", *(f"Rule-{i}" for i in range(1, draw(st.integers(1, num_rules))))]
    leaf = st.one_of(
        _char.map(lambda text: f'"{text}"'),
        st.sampled_from(["[ab]", "[^a]", "[a-cé]", '""', "[0-9]", "."]),
        st.sampled_from(names),
    )
    node = st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.lists(inner, min_size=2, max_size=3).map(" ".join),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({' | '.join(parts)})"),
            st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}"])).map(
                lambda p: f"({p[0]}){p[1]}"
            ),
        ),
        max_leaves=5,
    )
    rule = st.lists(node, min_size=1, max_size=3).map(" | ".join)
    return "\n".join(f"{name} ::= {draw(rule)}" for name in names)
