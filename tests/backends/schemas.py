"""Random schemas out of everything that is enforced, and random walks through a grammar."""

import random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from specgrammar.errors import DeadEndError
from specgrammar.protocols.grammar import GrammarMatcher, Vocabulary

_count = st.integers(0, 3)
_number = st.sampled_from([-12, -2.5, -1, 0, 0.25, 1, 1.05, 3, 12, 120])
_name = st.sampled_from(["a", "b", "ab", "é", 'x"', ""])
_value = st.sampled_from([None, True, False, 0, 1, -2, 1.5, "a", "é\n", [], [1, "a"], {"a": 1}])


def _some(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keywords)


def _typed(name: str, **keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return _some(**keywords).map(lambda some: {"type": name, **some})


_leaf = st.one_of(
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": ["integer", "null"]}]),
    _typed("integer", minimum=_number, maximum=_number, exclusiveMinimum=_number, exclusiveMaximum=_number),
    _typed("number", minimum=_number, maximum=_number, exclusiveMinimum=_number, exclusiveMaximum=_number),
    _typed("string", minLength=_count, maxLength=_count),
    _typed(
        "string", pattern=st.sampled_from(["^a+$", "b", "^(a|12)", '"', "[^ab]$", "^\\d{1,2}$", "^.$", "\\\\"])
    ),
    st.fixed_dictionaries({"enum": st.lists(_value, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"const": _value}),
)


def _compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    either = st.one_of(inner, st.booleans())
    return st.one_of(
        _typed(
            "object",
            properties=st.dictionaries(_name, either, max_size=3),
            required=st.lists(_name, max_size=2, unique=True),
            additionalProperties=either,
        ),
        _typed("object", additionalProperties=inner, minProperties=_count, maxProperties=_count),
        _typed("array", items=either, minItems=_count, maxItems=_count),
        _typed("array", prefixItems=st.lists(inner, min_size=1, max_size=2), items=either, minItems=_count),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)}),
        st.tuples(st.lists(inner, min_size=1, max_size=2), inner).map(lambda two: {**two[1], "anyOf": two[0]}),
    )


schemas = st.recursive(_leaf, _compound, max_leaves=6)


def legal_tokens(matcher: GrammarMatcher, vocabulary: Vocabulary) -> list[int]:
    """Legal ids; none at a dead end."""
    bitmask = np.zeros((1, vocabulary.num_words), np.int32)
    try:
        matcher.fill_bitmask(bitmask, 0)
    except DeadEndError:
        return []
    return [int(i) for i in np.flatnonzero(np.unpackbits(bitmask.view(np.uint8), bitorder="little"))]


def walk(matcher: GrammarMatcher, vocabulary: Vocabulary, seed: int, max_tokens: int = 120) -> bytes | None:
    """A text that the grammar allows, by random legal tokens; None if it did not end (a dead end, too long)."""
    rng, tokens = random.Random(seed), list[int]()
    closing = [i for i, text in enumerate(vocabulary.tokens) if text in (b'"', b"}", b"]", b'"}')]
    for _ in range(max_tokens):
        legal = legal_tokens(matcher, vocabulary)
        ending = [token for token in legal if token in vocabulary.stop_ids or token in closing]
        if not legal:
            return None
        token = rng.choice(ending if ending and rng.random() < 0.3 else legal)
        assert matcher.accept(token)
        if token in vocabulary.stop_ids:
            return vocabulary.text(tokens)
        tokens.append(token)
    return None
