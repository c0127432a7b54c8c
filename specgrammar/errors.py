"""Every error that specgrammar raises on purpose.

    SpecGrammarError
    ├── ConfigError              an option that is unknown, out of range, or impossible with another one
    ├── PluginError              a backend, algorithm or adapter that is missing, ambiguous or not to contract
    ├── ModelError               a model or tokenizer that cannot be fetched, verified or used
    ├── TreeError                a draft tree that is not a tree (names request and node)
    ├── StaleStepError           a draft or a result that was made for another step
    ├── ConformanceError         a plugin that broke a clause of its contract (`specgrammar.testing`)
    └── RequestError             ends one request; the batch goes on
        ├── GrammarCompileError  the grammar cannot be compiled (syntax, limits, time)
        ├── WeakenedSchemaError  a JSON Schema keyword that the backend would not enforce
        ├── DeadEndError         the grammar admits no token here
        ├── InvalidTokenError    an id outside the vocabulary, or a token that the grammar refuses
        └── MatcherError         a backend that raised while it walked or filled

A message says what was wrong, where, and what to do about it. `RequestError`s become a request's
`finish_reason = "error"`; all others mean that the caller asked for something that cannot work.
"""


class SpecGrammarError(Exception):
    """The root: `except SpecGrammarError` catches all that specgrammar raises on purpose."""


class ConfigError(SpecGrammarError):
    """An option is unknown, out of range, or impossible together with another one."""


class PluginError(SpecGrammarError):
    """A plugin is missing, ambiguous, or does not keep to its protocol."""


class ModelError(SpecGrammarError):
    """A model or tokenizer cannot be fetched, verified, or used for what was asked."""


class TreeError(SpecGrammarError):
    """The links of a draft tree do not describe a tree; the message names request and node."""


class StaleStepError(SpecGrammarError):
    """A draft or a result carries another step than the one it was handed to."""


class ConformanceError(SpecGrammarError):
    """A plugin broke a clause of its contract, as a check of `specgrammar.testing` found.

    Attributes:
        example: the smallest example that shows it, what was done line by line; empty if the message says all.
    """

    def __init__(self, message: str, example: tuple[str, ...] = ()) -> None:
        """Say what was found; `str` gives the example, too."""
        super().__init__(message)
        self.message = message
        self.example = example

    def __str__(self) -> str:
        """The message, then the example."""
        return "\n  ".join([self.message, *(["smallest example:", *self.example] if self.example else [])])


class RequestError(SpecGrammarError):
    """Ends one request and leaves the rest of the batch alone."""


class GrammarCompileError(RequestError):
    """The grammar of a request cannot be compiled."""


class WeakenedSchemaError(GrammarCompileError):
    """The backend would drop a JSON Schema keyword without enforcing it."""


class DeadEndError(RequestError):
    """The grammar admits no token at all in this state."""


class InvalidTokenError(RequestError):
    """A token id is outside the vocabulary, or the grammar refuses a token that is to be committed."""


class MatcherError(RequestError):
    """The grammar backend raised, or its matcher is in a state that it cannot leave."""
