"""Grammar backends: what a grammar library has to offer to work under every speculative worker.

A backend belongs to one vocabulary. It compiles a `GrammarSpec` once and hands out a `GrammarMatcher` for
each sequence. Matchers see token ids only. `GrammarSession` lets no id outside `[0, vocab_size)` through
(padding ids, padded logits columns); a matcher that is given one refuses it all the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import ConfigError

BACKEND_API_VERSION: Literal[1] = 1
"""What a backend built against this file declares as its `api_version`."""

GrammarKind = Literal["json_schema", "json_object", "regex", "grammar", "choice"]
ALL_KINDS: frozenset[GrammarKind] = frozenset(get_args(GrammarKind))
Whitespace = Literal["spaced", "compact", "flexible"]


class NodeStatus(IntEnum):
    """What a node of a draft tree is, as far as the grammar goes.

    The zero of fresh memory is `PADDING`, which nobody can accept: a status that was forgotten fails closed.
    """

    PADDING = 0
    """No node: it fills a shape. Never accepted."""
    REJECTED = 1
    """Its token, or one above it, is illegal. Never accepted; it has no row."""
    ENDED = 2
    """Its token is legal, and nothing can follow: it ends the request, or the grammar cannot go on behind it.

    It may be accepted; nothing behind it can be."""
    FREE = 3
    """Legal, and unrestricted behind it: no grammar, or the grammar has not begun (see `grammar.gate`)."""
    LIVE = 4
    """Legal, and a row of the bitmask restricts what comes behind it."""


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer as grammars see it: the bytes of each id, and which ids are not text.

    Attributes:
        tokens: the UTF-8 bytes of every id, `len == vocab_size`; `b""` where an id is special or unused.
        stop_ids: ids that end a sequence, sorted; at least one. All of them are legal where a grammar may end.
        special_ids: ids that are never text (control tokens, stop ids, unused ids). No grammar ever allows
            one inside a terminal, even if its surface form would match.
        encode: the canonical tokenisation of a text, without special tokens. Backends use it for forced
            tokens and canonical drafts; None where there is no tokenizer (tests).
    """

    tokens: tuple[bytes, ...] = field(repr=False)
    stop_ids: tuple[int, ...]
    special_ids: frozenset[int] = field(default=frozenset(), repr=False)
    encode: Callable[[str], list[int]] | None = field(default=None, compare=False, repr=False)

    @property
    def vocab_size(self) -> int:
        """Number of ids; logits columns at or above it are padding."""
        return len(self.tokens)

    @property
    def num_words(self) -> int:
        """int32 words in one row of a bitmask: `ceil(vocab_size / 32)`."""
        return (self.vocab_size + 31) // 32

    @cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 over ids, bytes, stop and special ids: the cache key of everything compiled for it."""
        digest = hashlib.sha256(repr((self.stop_ids, sorted(self.special_ids))).encode())
        for token in self.tokens:
            digest.update(len(token).to_bytes(4, "little") + token)
        return digest.hexdigest()

    def text(self, token_ids: Sequence[int]) -> bytes:
        """The bytes of a token sequence; special ids contribute nothing."""
        return b"".join([self.tokens[i] for i in token_ids])


@dataclass(frozen=True)
class GrammarSpec:
    """One request's constraint, independent of the backend. Build it with the class methods.

    Attributes:
        kind: what `source` holds.
        source: the JSON Schema as JSON text, the regex, the grammar text, or for `choice` a JSON array of
            strings; empty for `json_object` (any JSON object).
        whitespace: separators of JSON: `spaced` is `", "` and `": "` (Python's `json.dumps`), `compact` is
            `","` and `":"`, `flexible` lets the model choose. The same in every backend.
        allow_weakened: accept JSON Schema keywords that the backend does not enforce and report them in
            `CompiledGrammar.weakened`, instead of refusing the schema.
    """

    kind: GrammarKind
    source: str = ""
    whitespace: Whitespace = "spaced"
    allow_weakened: bool = False

    @classmethod
    def json_schema(
        cls,
        schema: str | Mapping[str, Any] | bool,
        *,
        whitespace: Whitespace = "spaced",
        allow_weakened: bool = False,
    ) -> GrammarSpec:
        """JSON that is valid against a schema, given as JSON text or as a parsed value."""
        source = schema if isinstance(schema, str) else json.dumps(schema)
        return cls("json_schema", source, whitespace, allow_weakened)

    @classmethod
    def json_object(cls, *, whitespace: Whitespace = "spaced") -> GrammarSpec:
        """Any JSON object."""
        return cls("json_object", "", whitespace)

    @classmethod
    def regex(cls, pattern: str) -> GrammarSpec:
        """Text that a regular expression matches as a whole."""
        return cls("regex", pattern)

    @classmethod
    def grammar(cls, text: str) -> GrammarSpec:
        """A context-free grammar, EBNF (`root ::= ...`) or Lark (`start: ...`), as the backend's facts say."""
        return cls("grammar", text)

    @classmethod
    def choice(cls, choices: Sequence[str]) -> GrammarSpec:
        """One of several strings; raises ConfigError for a single string, whose characters are not meant."""
        if isinstance(choices, str):
            raise ConfigError(f"choice: {choices!r} is one string; give a list of strings")
        return cls("choice", json.dumps(list(choices)))


@dataclass(frozen=True)
class BackendFacts:
    """What a backend is and is not, as plain facts that callers may rely on.

    Attributes:
        max_rollback: how many of the tokens accepted last `rollback` can undo; None for no limit. It is a
            window: several rollbacks in a row share it, and only accepting further tokens makes room again. It
            bounds the tree depth.
        thread_safe: different matchers of one backend may be used from different threads at once.
        grammar_syntaxes: which texts `kind="grammar"` may hold, of `"ebnf"` (`root ::= ...`) and `"lark"`.
        unenforced_keywords: JSON Schema keywords that it would drop; the core refuses or reports them.
        kinds: the kinds of grammars that it compiles; any other raises GrammarCompileError.
    """

    max_rollback: int | None
    thread_safe: bool
    grammar_syntaxes: frozenset[str]
    unenforced_keywords: frozenset[str]
    kinds: frozenset[GrammarKind] = ALL_KINDS


class CompiledGrammar(Protocol):
    """A grammar ready for matchers; immutable, shared by any number of them."""

    @property
    def spec(self) -> GrammarSpec:
        """What it was compiled from."""
        ...

    @property
    def weakened(self) -> tuple[str, ...]:
        """Schema keywords (as JSON pointers) that are not enforced; empty unless `spec.allow_weakened`."""
        ...


class GrammarMatcher(Protocol):
    """The grammar's state for one sequence. Used from one thread at a time."""

    def accept(self, token: int) -> bool:
        """Move over one token.

        A stop id is legal exactly where the grammar may end, is one step like any other for `rollback`, and
        makes `finished` true. Returns False, with the state as it was, for a token that is illegal here, for
        an id outside `[0, vocab_size)` on either side, and for every token once `finished`.
        """
        ...

    def accept_prefix(self, tokens: Sequence[int]) -> int:
        """Accept tokens up to the first that `accept` refuses; returns how many it took, each one step."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Undo the last `num_tokens` accepted tokens, a stop token among them like any other.

        The state is then equal to a fresh matcher's that accepted the remaining tokens. `rollback(0)` does
        nothing. Raises MatcherError, with the state as it was, when `num_tokens` is negative, more than was
        accepted, or more than the window of `BackendFacts.max_rollback` still holds.
        """
        ...

    def fill_bitmask(self, bitmask: NDArray[np.int32], row: int) -> None:
        """Write which tokens are legal next into `bitmask[row]`.

        Args:
            bitmask: C-contiguous int32 `[rows, ceil(vocab_size / 32)]`; bit `t % 32` of word `t // 32` is
                token `t`. Every word of the row is written, bits at or above `vocab_size` as 0. Other rows
                stay as they are.
            row: the row to write, `0 <= row < rows`.

        Raises:
            DeadEndError: nothing is legal here, not even a stop token; the row is all zero.
            MatcherError: the backend failed, or `row` or `bitmask` are not to contract.
        """
        ...

    @property
    def finished(self) -> bool:
        """A stop token was accepted and not rolled back."""
        ...

    def fork(self) -> GrammarMatcher:
        """An independent matcher in the same state; the fork's own `rollback` may start from here only."""
        ...


class GrammarBackend(Protocol):
    """A grammar library bound to one vocabulary.

    The entry point in `specgrammar.backends` is a callable `(vocabulary, **options) -> GrammarBackend`,
    usually the class itself; its keyword parameters are the options that a config may set. `api_version` and
    `facts` are class attributes, so that they can be checked and listed without building anything.
    """

    @property
    def api_version(self) -> Literal[1]:
        """`BACKEND_API_VERSION`."""
        ...

    @property
    def facts(self) -> BackendFacts:
        """What it is and is not."""
        ...

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that it was built for."""
        ...

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Compile a grammar; thread-safe. May take long: callers run it off the step.

        Raises:
            WeakenedSchemaError: the schema has keywords that would not be enforced and the spec does not
                allow that.
            GrammarCompileError: the grammar is broken, too large, or in a syntax that is not supported.
        """
        ...

    def matcher(self, compiled: Any) -> GrammarMatcher:
        """A matcher at the start of the grammar.

        Args:
            compiled: what `compile` of this backend returned.

        Raises MatcherError for the grammar of another backend, and for what is no grammar at all.
        """
        ...
