"""What goes into an engine and what comes out."""

from __future__ import annotations

from dataclasses import dataclass, field

from specgrammar.checks import check_choice, check_int, check_text, refused, show, texts, token_ids
from specgrammar.errors import ConfigError
from specgrammar.grammar.gate import Markers
from specgrammar.grammar.stops import FinishReason
from specgrammar.protocols.gate import GrammarGate
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.spec.sampling import SamplingParams


@dataclass(frozen=True)
class Request:
    """One prompt and how to continue it.

        Request("1", prompt, GrammarSpec.json_object(), grammar_start=(END_OF_THINKING,))

    Any sequence of ids and of strings is taken and kept as a tuple. What is impossible whatever the model is
    refused when the request is made: ConfigError names request and field.

    Attributes:
        request_id: unique among the requests in flight, not empty.
        prompt_tokens: at least one id, all in the model's vocabulary, which the engine checks; the last one
            is the root of the first tree.
        grammar: the constraint; None for free text.
        sampling: how the target samples.
        max_new_tokens: most tokens to generate, at least 1; fewer where the model's context ends before.
        stop_strings: the text ends before the first occurrence of any.
        stop_token_ids: ids that end the output, beside the vocabulary's own stop ids.
        grammar_start: the grammar begins behind this marker of token ids (the end of a reasoning block) in the
            output; empty begins at once. Or what opens it (`GrammarGate`): `Markers` for one of several, for
            one that is the grammar's own beginning (a tool call), and for a prompt that may have ended the
            block; or a detector of your own. See `RequestOutput.grammar_engaged` for one that never comes.
        logprobs: report each token's log-probability.
    """

    request_id: str
    prompt_tokens: tuple[int, ...]
    grammar: GrammarSpec | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_new_tokens: int = 256
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    grammar_start: tuple[int, ...] | GrammarGate = ()
    logprobs: bool = False

    def __post_init__(self) -> None:
        check_text("request: request_id", self.request_id)
        owner = f"request {show(self.request_id)}"
        ids = {"prompt_tokens": None, "stop_token_ids": 0}
        if not isinstance(self.grammar_start, GrammarGate):
            ids["grammar_start"] = 0
        for name, minimum in ids.items():
            object.__setattr__(self, name, token_ids(f"{owner}: {name}", getattr(self, name), minimum))
        object.__setattr__(self, "stop_strings", texts(f"{owner}: stop_strings", self.stop_strings))
        check_int(f"{owner}: max_new_tokens", self.max_new_tokens, 1)
        check_choice(f"{owner}: logprobs", self.logprobs, (True, False))
        if not isinstance(self.sampling, SamplingParams):
            raise refused(f"{owner}: sampling", self.sampling, "SamplingParams")
        if self.grammar is not None and not isinstance(self.grammar, GrammarSpec):
            raise refused(f"{owner}: grammar", self.grammar, "a GrammarSpec, or None for free text")
        if self.gate is not None and self.grammar is None:
            raise ConfigError(f"{owner}: grammar_start without a grammar; give a grammar or drop it")

    @property
    def gate(self) -> GrammarGate | None:
        """What opens the grammar; None where it begins with the output."""
        if isinstance(self.grammar_start, GrammarGate):
            return self.grammar_start
        return Markers(after=(self.grammar_start,)) if self.grammar_start else None


@dataclass(frozen=True)
class RequestOutput:
    """A finished request.

    Attributes:
        request_id: the request's.
        text: the output, without special tokens, cut before a stop string.
        token_ids: all committed ids, a stop token included.
        finish_reason: `stop`, `stop_string`, `length`, `abort` or `error`.
        error: one line that says what failed, where `finish_reason == "error"`.
        num_verify_steps: target forwards that it took part in.
        weakened: JSON Schema keywords that were not enforced (only where the spec allows that).
        grammar_engaged: whether the grammar began; False where nothing that `grammar_start` waits for came, so
            that the text is free. None without a grammar, and for a request that could not start.
        logprobs: natural log-probability of each id, if asked for.
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    error: str | None = None
    num_verify_steps: int = 0
    weakened: tuple[str, ...] = ()
    grammar_engaged: bool | None = None
    logprobs: tuple[float, ...] | None = None

    @property
    def mean_accept_length(self) -> float:
        """Tokens per verify step, bonus tokens included; 0 where there was no step."""
        return len(self.token_ids) / self.num_verify_steps if self.num_verify_steps else 0.0
