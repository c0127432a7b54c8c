"""Checks of `GrammarBackend`: what it says of itself, what it compiles and refuses, what matchers share."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import strategies as st

from specgrammar.errors import ConformanceError, GrammarCompileError, MatcherError, WeakenedSchemaError
from specgrammar.protocols.grammar import (
    ALL_KINDS,
    BACKEND_API_VERSION,
    BackendFacts,
    CompiledGrammar,
    GrammarBackend,
    GrammarSpec,
    Whitespace,
)
from specgrammar.testing.checks.base import (
    Checks,
    CheckSkipped,
    Draw,
    Story,
    expect,
    expect_raise,
    explore,
    same,
)
from specgrammar.testing.checks.machine import matcher_machine, run_machine
from specgrammar.testing.checks.sources import KEYWORDS, Keyword, broken_specs, undeclared_specs
from specgrammar.testing.checks.walking import (
    MakeBackend,
    compiled,
    legal_ids,
    some_grammar,
    spell,
    walk,
)
from specgrammar.testing.toys import BYTE_STOP, BYTES, VOCABULARY, specs_for, spelling, texts_of

BACKEND_CHECKS = Checks("backend")


@BACKEND_CHECKS.add(invariant=10)
def check_it_says_what_it_is(make: MakeBackend) -> None:
    """`api_version` and `facts` are class attributes, and `vocabulary` is the one that it was made for."""
    backend = make(VOCABULARY)
    kind = type(backend)
    same("api_version of the class", getattr(kind, "api_version", None), BACKEND_API_VERSION)
    facts = getattr(kind, "facts", None)
    expect(isinstance(facts, BackendFacts), f"facts of the class is {facts!r}; expected BackendFacts(...)")
    same("facts of the backend", backend.facts, facts)
    same("the vocabulary's fingerprint", backend.vocabulary.fingerprint, VOCABULARY.fingerprint)
    limit = backend.facts.max_rollback
    expect(
        limit is None or (type(limit) is int and limit >= 0),
        f"facts.max_rollback is {limit!r}; expected None or a number of tokens",
    )
    unknown = sorted(map(str, backend.facts.kinds - ALL_KINDS))
    expect(not unknown, f"facts.kinds has {unknown}; the kinds are {sorted(ALL_KINDS)}")
    expect(backend.facts.kinds, "facts.kinds is empty: it compiles nothing")
    unknown = sorted(backend.facts.grammar_syntaxes - {"ebnf", "lark"})
    expect(not unknown, f"facts.grammar_syntaxes has {unknown}; the syntaxes are ebnf and lark")
    expect(
        bool(backend.facts.grammar_syntaxes) == ("grammar" in backend.facts.kinds),
        "facts.grammar_syntaxes has to say how texts of kind 'grammar' are written, and facts.kinds that there "
        "are any",
    )


@BACKEND_CHECKS.add(invariant=10)
def check_what_is_declared_compiles(make: MakeBackend) -> None:
    """Every kind and every syntax that the facts name compiles; the result says what it was compiled from."""
    backend = make(VOCABULARY)
    for spec in specs_for(backend.facts):
        try:
            grammar = backend.compile(spec)
        except GrammarCompileError as error:
            raise ConformanceError(
                f"compile({spec.kind}, {spec.source!r}) raised {type(error).__name__} ({error}); "
                f"the facts say that it compiles {spec.kind}"
            ) from error
        same(f"spec of the compiled {spec.kind}", grammar.spec, spec)
        same(f"weakened of the compiled {spec.kind} {spec.source}", tuple(grammar.weakened), ())


@BACKEND_CHECKS.add(invariant=10)
def check_what_is_not_declared_is_refused(make: MakeBackend) -> None:
    """`compile` of a kind or a syntax that the facts do not name raises GrammarCompileError."""
    backend = make(VOCABULARY)
    specs = undeclared_specs(backend.facts)
    if not specs:
        raise CheckSkipped("it declares every kind and every syntax")
    for spec in specs:
        with expect_raise(GrammarCompileError, f"compile({spec.kind}, {spec.source!r}), not declared,"):
            backend.compile(spec)


@BACKEND_CHECKS.add(invariant=9)
def check_broken_grammars_are_refused(make: MakeBackend) -> None:
    """`compile` of a broken grammar raises GrammarCompileError, nothing else, and never gives a grammar."""

    def play(draw: Draw, story: Story) -> None:
        backend = make(VOCABULARY)
        spec = draw(st.sampled_from(broken_specs(backend.facts)))
        story.tell(f"compile {spec.kind} {spec.source!r}")
        with expect_raise(GrammarCompileError, f"compile({spec.kind}, {spec.source!r}), broken,"):
            backend.compile(spec)

    if not broken_specs(make(VOCABULARY).facts):
        raise CheckSkipped("no grammar of the kinds that it compiles is known to be broken")
    explore(play, max_examples=60)


@BACKEND_CHECKS.add(invariant=4)
def check_separators_are_those_asked_for(make: MakeBackend) -> None:
    """JSON is separated as `whitespace` says: spaced, compact, or as the model likes."""
    backend = make(BYTES)
    texts = {"spaced": '{"a": 1, "b": 2}', "compact": '{"a":1,"b":2}'}
    schema = {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["a", "b"]}
    styles: tuple[Whitespace, ...] = ("spaced", "compact", "flexible")
    specs = [
        *(GrammarSpec.json_schema(schema, whitespace=style) for style in styles),
        *(GrammarSpec.json_object(whitespace=style) for style in styles),
    ]
    specs = [spec for spec in specs if spec.kind in backend.facts.kinds]
    if not specs:
        raise CheckSkipped("it compiles no JSON")
    for spec in specs:
        for style, text in texts.items():
            found = _takes(backend, backend.compile(spec), text)
            same(
                f"whether {spec.kind} with {spec.whitespace} separators allows {text}",
                found,
                spec.whitespace in (style, "flexible"),
            )


@BACKEND_CHECKS.add(invariant=4)
def check_no_keyword_is_dropped_silently(make: MakeBackend) -> None:
    """A keyword of a JSON Schema is enforced, or refused with WeakenedSchemaError, or reported if allowed."""
    backend = make(BYTES)
    if "json_schema" not in backend.facts.kinds:
        raise CheckSkipped("it compiles no json_schema")
    for keyword in KEYWORDS:
        _check_keyword(backend, keyword)


def _check_keyword(backend: GrammarBackend, keyword: Keyword) -> None:
    what, pointer = f"the schema {keyword.schema}", f"/{keyword.name}"
    strict = GrammarSpec.json_schema(keyword.schema)
    lenient = GrammarSpec.json_schema(keyword.schema, allow_weakened=True)
    try:
        grammar = backend.compile(strict)
    except WeakenedSchemaError:
        weakened = tuple(backend.compile(lenient).weakened)
        expect(pointer in weakened, f"weakened of {what} is {weakened}; it was refused without {pointer} in it")
        return
    except GrammarCompileError:
        return  # it cannot say this schema at all
    expect(
        keyword.name not in backend.facts.unenforced_keywords,
        f"{what} compiles, though facts.unenforced_keywords has {keyword.name!r}; expected WeakenedSchemaError",
    )
    same(f"weakened of {what}", tuple(grammar.weakened), ())
    expect(_takes(backend, grammar, keyword.good), f"{what} refuses {keyword.good}")
    expect(
        not _takes(backend, grammar, keyword.bad),
        f"{what} allows {keyword.bad}: {keyword.name!r} is dropped silently; enforce it, or refuse it with "
        "WeakenedSchemaError",
    )


def _takes(backend: GrammarBackend, grammar: CompiledGrammar, text: str) -> bool:
    """Whether a text is a whole one of a grammar."""
    matcher = backend.matcher(grammar)
    return all(matcher.accept(token) for token in [*text.encode(), BYTE_STOP])


@BACKEND_CHECKS.add(invariant=9)
def check_grammars_are_told_apart(make: MakeBackend) -> None:
    """Grammars that look alike are not mixed up: kind, source, whitespace and `allow_weakened` all count."""
    backend = make(BYTES)
    texts = ("ab", '"', '{"a":[1,2]}', '{"a": [1, 2]}', "[1,2]", "[1, 2]", "{}", '["ab"]')
    schema = {"enum": [[1, 2], {"a": [1, 2]}]}
    specs = [
        GrammarSpec("choice", '["ab"]'),
        GrammarSpec("regex", '["ab"]'),
        *(GrammarSpec.json_schema(schema, whitespace=style) for style in ("spaced", "compact", "flexible")),
        *(GrammarSpec.json_object(whitespace=style) for style in ("spaced", "compact", "flexible")),
    ]
    specs = [spec for spec in specs if spec.kind in backend.facts.kinds]
    for spec in [*specs, *reversed(specs)]:
        alone = make(BYTES)
        expected = [text for text in texts if _takes(alone, alone.compile(spec), text)]
        found = [text for text in texts if _takes(backend, backend.compile(spec), text)]
        same(f"texts of {spec} where other grammars were compiled before", found, expected)
    if "json_schema" in backend.facts.kinds:
        _check_leniency_is_not_remembered(backend)


def _check_leniency_is_not_remembered(backend: GrammarBackend) -> None:
    for keyword in KEYWORDS:
        if keyword.name in backend.facts.unenforced_keywords:
            backend.compile(GrammarSpec.json_schema(keyword.schema, allow_weakened=True))
            with expect_raise(
                WeakenedSchemaError, f"compile({keyword.schema}), once it was allowed to weaken it,"
            ):
                backend.compile(GrammarSpec.json_schema(keyword.schema))
            return


@dataclass(frozen=True)
class _Foreign:
    """What another backend compiled."""

    spec: GrammarSpec
    weakened: tuple[str, ...] = ()


@BACKEND_CHECKS.add(invariant=10)
def check_foreign_grammars_are_refused(make: MakeBackend) -> None:
    """`matcher` of what another backend compiled raises MatcherError."""
    backend = make(VOCABULARY)
    for foreign in (_Foreign(specs_for(backend.facts)[0]), None):
        with expect_raise(MatcherError, f"matcher({type(foreign).__name__}), which it did not compile,"):
            backend.matcher(foreign)


@BACKEND_CHECKS.add(invariant=9)
def check_matchers_outlive_the_rest(make: MakeBackend) -> None:
    """A matcher works on when its backend and its compiled grammar are no longer held, and others come."""

    def play(draw: Draw, story: Story) -> None:
        backend, grammar = some_grammar(make, draw, story)
        matcher = backend.matcher(grammar)
        expected = legal_ids(backend.matcher(grammar))
        story.tell("drop backend and compiled grammar; compile others")
        del backend, grammar
        gc.collect()
        other = make(VOCABULARY)
        for spec in specs_for(other.facts):
            other.matcher(other.compile(spec))
        same("the legal tokens", texts_of(legal_ids(matcher)), texts_of(expected))
        walk(matcher, draw, story, most=3)

    explore(play, max_examples=4)


@BACKEND_CHECKS.add(invariant=1)
def check_threads_do_not_meet(make: MakeBackend) -> None:
    """Where the facts say `thread_safe`, matchers in different threads give the rows that they give in one."""
    backend = make(VOCABULARY)
    if not backend.facts.thread_safe:
        raise CheckSkipped("facts.thread_safe is False")
    grammar = compiled(backend, spelling(backend.facts, *_TEXTS), Story())
    expected = [list(_rows_along(backend, grammar, text)) for text in _TEXTS]
    start = threading.Barrier(len(_TEXTS))
    found: list[str] = []

    def work(index: int) -> None:
        start.wait()
        try:
            for _ in range(10):
                for place, row in enumerate(_rows_along(backend, grammar, _TEXTS[index])):
                    same(f"the row behind {_TEXTS[index][:place]!r}", row, expected[index][place])
        except Exception as error:
            found.append(str(error))

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(len(_TEXTS))]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    finally:
        sys.setswitchinterval(interval)
    expect(not any(thread.is_alive() for thread in threads), "threads with a matcher each wait for ever")
    expect(not found, f"with {len(threads)} threads: {''.join(found[:1])}; facts.thread_safe is True")


_TEXTS = tuple(("abc12" * 5)[first : first + 16] for first in range(4))
"""What each of four threads spells: at every place the next character is another one."""


def _rows_along(backend: GrammarBackend, grammar: CompiledGrammar, text: str) -> Iterator[str]:
    """The rows of a fresh matcher along a text, for people."""
    matcher = backend.matcher(grammar)
    for char in text:
        yield texts_of(legal_ids(matcher))
        spell(matcher, char, Story())


@BACKEND_CHECKS.add(invariant=1)
def check_it_equals_the_reference(make: MakeBackend) -> None:
    """Whatever is called in whatever order, matchers and their forks are equal to the reference's."""
    run_machine(matcher_machine(make), max_examples=100)
