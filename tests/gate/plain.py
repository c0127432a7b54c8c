"""What a gated grammar means: worked out from the whole output each time, by the reference backend."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from specgrammar.grammar.gate import Markers
from specgrammar.protocols.gate import GrammarGate
from specgrammar.protocols.grammar import GrammarSpec, NodeStatus
from specgrammar.testing.reference import ReferenceBackend, ReferenceCompiled
from specgrammar.testing.toys import GRAMMARS, STOP, VOCABULARY
from tests.gate.detectors import BlockGate, SpelledGate, TextGate, begin_of

REFERENCE = ReferenceBackend(VOCABULARY)

CASES: dict[str, tuple[GrammarSpec, GrammarGate]] = {
    "one marker": (GRAMMARS[0], Markers(after=((2, 2),))),
    "a marker of the grammar's tokens": (GRAMMARS[3], Markers(after=((0, 1, 0),))),
    "several": (GRAMMARS[3], Markers(after=((0, 1), (2,)), at=((1, 2), (12, 12)))),
    "a call": (GRAMMARS[0], Markers(at=((0, 1), (3,)))),
    "a call that nearly is one": (
        GrammarSpec.regex("(aab|ab)[12]*c"),
        Markers(at=((0, 0, 1),), after=((1, 1),)),
    ),
    "the longest": (GrammarSpec.regex("(aab|ab)[12]*c"), Markers(at=((0, 0, 1), (0, 1)))),
    "a text": (GRAMMARS[3], TextGate(b"bc1")),
    "blocks": (GRAMMARS[1], BlockGate(6, 7)),
    "a call, however it is spelled": (GRAMMARS[3], SpelledGate(b"abc")),
    "a call that leads nowhere": (GrammarSpec.regex("a(z|zz)|b"), Markers(at=((0,),), after=((2,),))),
}


@cache
def compiled(spec: GrammarSpec) -> ReferenceCompiled:
    return REFERENCE.compile(spec)


@cache
def legal_behind(spec: GrammarSpec, tokens: tuple[int, ...]) -> frozenset[int] | None:
    """The ids that a grammar allows behind some tokens; None where it does not allow these."""
    state = REFERENCE.matcher(compiled(spec))
    if state.accept_prefix(tokens) < len(tokens):
        return None
    return frozenset(i for i in range(VOCABULARY.vocab_size) if state.fork().accept(i))


def allowed_behind(
    spec: GrammarSpec, start: tuple[int, ...] | GrammarGate, prompt: Sequence[int], output: Sequence[int]
) -> frozenset[int] | None:
    """The ids that may follow an output; None where all may, since the grammar has not begun."""
    begin = begin_of(start, prompt, output)
    if begin is None:
        return None
    legal = legal_behind(spec, tuple(output[begin:]))
    assert legal is not None, f"{output} went past the mask"
    return legal


def status_of(
    spec: GrammarSpec, start: GrammarGate, output: Sequence[int], path: Sequence[int]
) -> tuple[NodeStatus, frozenset[int] | None]:
    """What the last node of a path behind an output is, and what its row has to allow; None for no row."""
    tokens, ended = list(output), False
    for token in path:
        if token < 0:
            return NodeStatus.PADDING, None
        allowed = None if ended else allowed_behind(spec, start, (), tokens)
        if ended or token >= VOCABULARY.vocab_size or (allowed is not None and token not in allowed):
            return NodeStatus.REJECTED, None
        tokens.append(token)
        ended = token == STOP
    if ended:
        return NodeStatus.ENDED, None
    allowed = allowed_behind(spec, start, (), tokens)
    if allowed is None:
        return NodeStatus.FREE, None
    return (NodeStatus.LIVE, allowed) if allowed else (NodeStatus.ENDED, None)


def ids_of(case: str) -> list[int]:
    """The ids that matter to a case: its markers' and its grammar's, the stop token, and what is no id."""
    start = CASES[case][1]
    marker = [token for one in getattr(start, "in_output", ()) for token in one] or [0, 1, 2, 3, 6, 7, 12]
    return [*marker, *marker, 0, 1, 12, STOP, VOCABULARY.vocab_size]


def written(case: str, choices: Sequence[int]) -> list[int]:
    """An output that some numbers choose, never ended; markers are likely in it."""
    spec, start = CASES[case]
    output: list[int] = []
    for choice in choices:
        allowed = allowed_behind(spec, start, (), output)
        some = ids_of(case)[:-2] if allowed is None else sorted(allowed - {STOP})
        if not some:
            return output
        output.append(some[choice % len(some)])
    return output
