"""`Ledger`: the single owner of commits.

A step's result is published and queued, perhaps before it is known; nobody waits for it there. History moves
first (`resolve`), since a producer may need the ids, and the grammar behind it (`advance_pending`), which may
run under the next forward. Both move by exactly the same prefix, once per request and step, whoever calls them
and how often.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from specgrammar.errors import ConfigError, DeadEndError
from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.spec import Commit
from specgrammar.protocols.staging import Launched


@dataclass(frozen=True)
class RequestResult:
    """What a step found for one request.

    Attributes:
        request_id: the request's.
        tokens: accepted draft tokens in path order, then the bonus token if there is one.
        num_draft_tokens: draft tokens that were verified for it.
        has_bonus: whether the last of `tokens` is the target's own.
        logprobs: of each of `tokens`, or None.
        drafters: the sources of the accepted drafts in path order; empty where the tree does not say.
    """

    request_id: str
    tokens: tuple[int, ...]
    num_draft_tokens: int
    has_bonus: bool
    logprobs: tuple[float, ...] | None = None
    drafters: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepResult:
    """The results of one step, stamped with it."""

    step: int
    results: tuple[RequestResult, ...]


@dataclass
class Entry:
    """A request in the ledger.

    Attributes:
        session: its grammar and stop rules; `session.output` is the committed output.
        tokens: prompt and committed output, the history that producers and targets see.
        num_prompt_tokens: how many of them are the prompt.
        joined: results of steps before this one are not its own (an earlier request of the same id).
        last_step: the last step whose result was applied.
        num_verify_steps: results applied.
        logprobs: of the committed output, where they were computed.
    """

    session: GrammarSession
    tokens: list[int]
    num_prompt_tokens: int
    joined: int
    last_step: int = -1
    num_verify_steps: int = 0
    logprobs: list[float] = field(default_factory=list)


class Ledger:
    """Requests in flight, the results that have not moved them yet, and the commits of those that have.

    Attributes:
        entries: the books of each request in flight.
        num_stale: results that were dropped.
    """

    def __init__(self) -> None:
        """An empty ledger at step 0."""
        self.entries: dict[str, Entry] = {}
        self.num_stale: int = 0
        self._published: deque[Launched[StepResult]] = deque()
        self._commits: list[Commit] = []
        self._num_accepted: Counter[str] = Counter()

    def join(self, request_id: str, prompt_tokens: Sequence[int], session: GrammarSession, step: int) -> Entry:
        """Start to keep a request's books, from `step` on."""
        if request_id in self.entries:
            raise ConfigError(f"request id {request_id!r} is in flight already; ids must be unique")
        entry = Entry(session, list(prompt_tokens), len(prompt_tokens), joined=step)
        self.entries[request_id] = entry
        return entry

    def rejoin(self, request_id: str, entry: Entry, step: int) -> None:
        """Go on with a request's books after a break, from `step` on; results of earlier steps are stale."""
        if request_id in self.entries:
            raise ConfigError(f"request id {request_id!r} is in flight already; ids must be unique")
        entry.joined = step
        self.entries[request_id] = entry

    def leave(self, request_id: str) -> None:
        """Forget a request; results that are still queued for it are dropped as stale.

        With the last request what is queued goes, too: nobody would wait for it.
        """
        self.entries.pop(request_id, None)
        if not self.entries:
            self._published.clear()

    def publish(self, result: Launched[StepResult]) -> None:
        """Queue a step's result."""
        self._published.append(result)

    @property
    def is_resolved(self) -> bool:
        """Whether every published result has moved the histories."""
        return not self._published

    def resolve(self) -> None:
        """Move the histories by all queued results; waits for those that are not known yet.

        A result is dropped, and counted in `num_stale`, if its request has left, joined later, had that step
        applied already, or ended or failed while the result was queued: nothing of it is kept.

        Raises what a step raised; that step has no result, and those behind it are still queued.
        """
        while self._published:
            try:
                step_result = self._published[0].wait()
            except Exception:
                self._published.popleft()
                raise
            self._published.popleft()  # not before: an interrupted wait must not lose it
            for result in step_result.results:
                entry = self.entries.get(result.request_id)
                if (
                    entry is None
                    or step_result.step < entry.joined
                    or step_result.step <= entry.last_step
                    or entry.session.finish is not None
                ):
                    self.num_stale += 1
                else:
                    entry.last_step = step_result.step
                    self._commits.append(self._apply(entry, result))

    def take_commits(self) -> list[Commit]:
        """What was committed since the last call, in order: each commit is handed out once."""
        commits, self._commits = self._commits, []
        return commits

    def take_accepted(self) -> Counter[str]:
        """How many drafts of each source were committed since the last call."""
        accepted, self._num_accepted = self._num_accepted, Counter()
        return accepted

    def advance_pending(self) -> None:
        """The barrier: move the grammars to where their histories are. Idempotent.

        Moves that were made ahead for a result that never came (lazy masking, a step that failed) are undone.
        """
        self.resolve()
        for entry in self.entries.values():
            entry.session.advance()

    def _apply(self, entry: Entry, result: RequestResult) -> Commit:
        session = entry.session
        num_kept = session.keep(result.tokens)
        if session.finish is None and not result.has_bonus:
            session.advance()  # an error stops the grammar, and it moves by what the history kept
            session.fail(_no_token(len(session.output)))
        kept = result.tokens[:num_kept]
        entry.tokens.extend(kept)
        entry.num_verify_steps += 1
        if result.logprobs is not None:
            entry.logprobs.extend(result.logprobs[:num_kept])
        num_accepted = min(num_kept, len(result.tokens) - result.has_bonus)
        self._num_accepted.update(result.drafters[:num_accepted])
        return Commit(
            result.request_id, kept, result.num_draft_tokens, num_accepted, session.finish is not None
        )


def _no_token(position: int) -> DeadEndError:
    return DeadEndError(
        f"no token can follow output position {position}: the grammar admits none, or all logits that it "
        "allows are -inf or NaN; check that this vocabulary can spell what the grammar wants, then the model"
    )
