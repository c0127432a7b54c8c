"""Hypothesis strategies for what specgrammar works on. Needs `pip install 'specgrammar[testing]'`."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from specgrammar.protocols.grammar import BackendFacts, GrammarSpec, Vocabulary
from specgrammar.testing.toys import VOCABULARY, specs_for
from specgrammar.trees.tree import HostTree

OUTSIDE = (-1, -2, -(2**31))
"""Ids that nobody has: padding, and below."""


def any_ids(vocabulary: Vocabulary = VOCABULARY) -> st.SearchStrategy[int]:
    """Ids, text first, then special ones, then some outside the vocabulary on both sides."""
    size = vocabulary.vocab_size
    return st.sampled_from([*range(size), *OUTSIDE, size, size + 1, 32 * vocabulary.num_words, 2**31])


def token_paths(vocabulary: Vocabulary = VOCABULARY, max_size: int = 8) -> st.SearchStrategy[list[int]]:
    """Token sequences of any ids, also ids outside the vocabulary; see `any_ids`."""
    return st.lists(any_ids(vocabulary), max_size=max_size)


@st.composite
def grammar_specs(draw: st.DrawFn, facts: BackendFacts) -> GrammarSpec:
    """Grammars over the texts of `VOCABULARY` of the kinds and syntaxes that a backend says it compiles.

    They shrink to those of `specs_for`. The others are small random ones that native compilers take quickly.
    """
    made = {
        "choice": st.lists(_words(), min_size=1, max_size=4).map(GrammarSpec.choice),
        "regex": _patterns().map(GrammarSpec.regex),
        "json_schema": st.builds(GrammarSpec.json_schema, _schemas(), whitespace=_WHITESPACE),
        "json_object": st.builds(GrammarSpec.json_object, whitespace=_WHITESPACE),
        "grammar": _ebnf().map(GrammarSpec.grammar),
    }
    kinds = facts.kinds if "ebnf" in facts.grammar_syntaxes else facts.kinds - {"grammar"}
    if (known := specs_for(facts)) and not draw(st.booleans()):
        return draw(st.sampled_from(known))
    spec: GrammarSpec = draw(st.one_of(*(made[kind] for kind in sorted(kinds))))
    return spec


_WHITESPACE = st.sampled_from(["compact", "flexible", "spaced"])


def _words() -> st.SearchStrategy[str]:
    return st.text("abc12", max_size=5)


def _patterns() -> st.SearchStrategy[str]:
    """Regexes of up to five parts."""
    return st.recursive(
        st.sampled_from(["a", "b", "ab", "c", "12", "[ab]", "[^a]", "."]),
        lambda inner: st.one_of(
            st.lists(inner, min_size=2, max_size=3).map("".join),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
            st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}"])).map(
                lambda part: f"({part[0]}){part[1]}"
            ),
        ),
        max_leaves=5,
    )


def _ebnf() -> st.SearchStrategy[str]:
    """Two rules that refer to each other; what is in brackets is a regex's, which EBNF reads the same."""
    leaf = st.sampled_from(['"a"', '"b"', '"ab"', '"12"', "[ab]", "[^a]", "root", "other"])
    body = st.lists(st.lists(leaf, min_size=1, max_size=3).map(" ".join), min_size=1, max_size=2).map(
        " | ".join
    )
    return st.tuples(body, body).map(lambda bodies: f'root ::= "c" | {bodies[0]}\nother ::= "1" | {bodies[1]}')


def _schemas() -> st.SearchStrategy[dict[str, object]]:
    """Values of JSON that the ids can spell, or objects of them."""
    value: st.SearchStrategy[dict[str, object]] = st.sampled_from(
        [{"type": "integer"}, {"type": "string"}, {"enum": [1, "a", 12]}, {"type": "string", "maxLength": 2}]
    )
    names = st.lists(st.sampled_from(["a", "b", "ab"]), unique=True, max_size=2)
    objects = st.builds(
        lambda keys, values, required: {
            "type": "object",
            "properties": dict(zip(keys, values, strict=False)),
            "required": keys[:required],
            "additionalProperties": False,
        },
        names,
        st.lists(value, min_size=2, max_size=2),
        st.integers(0, 2),
    )
    return st.one_of(value, objects)


@st.composite
def trees(
    draw: st.DrawFn, max_requests: int = 4, max_nodes: int = 12, vocab_size: int = 100, *, padding: bool = True
) -> HostTree:
    """Valid ragged batches of draft trees, from an empty batch up; they shrink to short chains.

    Args:
        draw: given by hypothesis.
        max_requests: most requests of a batch.
        max_nodes: most nodes of a request, root and padding included; at least 1.
        vocab_size: tokens are in `[0, vocab_size)`.
        padding: let any node but a root be padding.
    """
    tokens = st.integers(0, vocab_size - 1)
    node = st.tuples(tokens, st.integers(-1 if padding else 0, max_nodes))
    request = st.tuples(tokens, st.lists(node, max_size=max_nodes - 1))
    cu_nodes, draft_tokens, parents = [0], list[int](), list[int]()
    for root, nodes in draw(st.lists(request, max_size=max_requests)):
        draft_tokens.append(root)
        parents.append(-1)
        real = [0]
        for index, (token, choice) in enumerate(nodes, start=1):
            if choice == -1:
                draft_tokens.append(-1)
                parents.append(-1)
                continue
            draft_tokens.append(token)
            parents.append(real[-1 - choice % len(real)])  # 0, the simplest choice, is the newest node
            real.append(index)
        cu_nodes.append(len(draft_tokens))
    return HostTree.from_parents(
        np.array(cu_nodes, dtype=np.int64),
        np.array(draft_tokens, dtype=np.int64),
        np.array(parents, dtype=np.int64),
    )
