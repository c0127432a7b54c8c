"""`CpuStream`: a CPU as a device of its own, whose work runs in order on one thread beside the host's.

torch's kernels and the grammar backends' native calls release the GIL, so a forward on this thread and the
building of masks on the host's run at the same time where there are cores for both. Python code on the host
is not hidden: it and the forward's own take turns at the GIL, and a shorter `sys.setswitchinterval` only adds
turns (10 ms of Python under a forward of 70 or 105 ms, on two cores: not faster with 0.05 than with 5 ms).

For the same reason a launch hands the GIL over: a host that goes on in Python keeps it for up to a switch
interval, and the stream would begin when the host next blocks. A native call of the host would be where it
blocks, and would not get the GIL back before the forward's first long kernel.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import torch

from specgrammar.errors import SpecGrammarError
from specgrammar.protocols.staging import WorkObserver
from specgrammar.runtime.outcome import Outcome, observed, read_too_early

T = TypeVar("T")


class StreamEvent:
    """A point in a `CpuStream`'s order.

    A bare lock, held until the point is reached, is the fastest thing to wait for; a `threading.Event` takes
    several times as long to make and to set.
    """

    def __init__(self, thread: threading.Thread) -> None:
        """A point that `thread` will reach."""
        self._thread = thread
        self._reached = False
        self._until_reached = threading.Lock()
        self._until_reached.acquire()

    def reach(self) -> None:
        """Let those who wait go on; called once."""
        self._reached = True
        self._until_reached.release()

    def wait(self) -> None:
        """Block until it is reached; raises SpecGrammarError on the stream, which would wait for itself."""
        if self._reached:
            return
        if threading.current_thread() is self._thread:
            raise SpecGrammarError(
                "work on a CPU stream waits for what is enqueued behind it; wait on the host, or launch what "
                "needs the result behind both"
            )
        with self._until_reached:
            pass

    def done(self) -> bool:
        """Whether it is reached."""
        return self._reached


class StreamWork(Generic[T]):
    """Work on a `CpuStream` (`protocols.staging.Launched`)."""

    def __init__(self, work: Callable[[], T], label: str, thread: threading.Thread) -> None:
        """Not run yet."""
        self._work: Callable[[], T] | None = work
        self._label = label
        self._num_threads = torch.get_num_threads()
        self._outcome: Outcome[T] | None = None
        self.begun: StreamEvent = StreamEvent(thread)
        self.event: StreamEvent = StreamEvent(thread)

    def run(self) -> None:
        """Run it; called once, by the stream's thread."""
        assert self._work is not None
        self.begun.reach()
        # torch counts threads per calling thread; without this, `torch.set_num_threads` would miss the stream.
        if torch.get_num_threads() != self._num_threads:
            torch.set_num_threads(self._num_threads)
        self._outcome = Outcome(self._work, catch=BaseException)  # whatever it was, the stream goes on
        self._work = None  # and with it what it refers to
        self.event.reach()

    def value(self) -> T:
        """What it returned; raises SpecGrammarError before it is done."""
        if self._outcome is None:
            raise read_too_early(self._label)
        return self._outcome.value()

    def wait(self) -> T:
        """Block until it is done; what it returned."""
        self.event.wait()
        return self.value()

    def done(self) -> bool:
        """Whether it has run."""
        return self.event.done()


class CpuStream:
    """The CPU as a device with one stream: launched work, copies and events are done in order, aside.

    Its thread is a daemon. `close` ends it, as do the end of the process and of the last reference; each lets
    it finish what was enqueued. It does not survive a fork: the child's copy refuses work, and waiting there
    for what the parent had launched would not return. Host threads may share a stream.

    Work runs with as many torch threads as the thread that launched it has. torch (OpenMP) keeps a pool of
    them per calling thread, and idle ones spin for a while unless OMP_WAIT_POLICY=PASSIVE is set before torch
    is imported; on a machine with few cores they take them from the host.
    """

    torch_device: torch.device = torch.device("cpu")
    can_pin = False
    shares_host_memory = True
    runs_aside = True

    def __init__(self) -> None:
        """Start the thread."""
        self.on_work: WorkObserver | None = None
        self._queue: SimpleQueue[StreamWork[Any] | None] = SimpleQueue()
        self._thread = threading.Thread(
            target=_run_in_order, args=(self._queue,), name="specgrammar-cpu-stream", daemon=True
        )
        self._thread.start()
        self._process = os.getpid()
        self._last = StreamEvent(self._thread)
        self._last.reach()
        self._in_order = threading.Lock()
        self._finish = weakref.finalize(self, _finish, self._queue, self._thread)

    def launch(self, work: Callable[[], T], label: str = "") -> StreamWork[T]:
        """Enqueue work; see `protocols.staging.Device.launch`.

        Returns once an idle stream has begun it (some 10 us); behind other work it only enqueues.
        """
        if not self._finish.alive or os.getpid() != self._process:
            what = "was closed" if not self._finish.alive else "belongs to another process, which was forked"
            raise SpecGrammarError(f"this CPU stream {what}; make a new CpuStream()")
        launched = StreamWork(observed(work, label, self.on_work), label, self._thread)
        with self._in_order:
            idle = self._last.done()
            self._last = launched.event
            self._queue.put(launched)
        if idle:
            launched.begun.wait()
        return launched

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy.

        A destination of another shape raises here: nobody asks for the outcome of a copy.
        """
        source = source.expand_as(destination)
        self.launch(lambda: destination.copy_(source))

    def record(self) -> StreamEvent:
        """An event behind everything that was enqueued so far."""
        return self._last

    def close(self) -> None:
        """Finish what was enqueued and end the thread; closing again does nothing."""
        self._finish()


def _run_in_order(queue: SimpleQueue[StreamWork[Any] | None]) -> None:
    """The stream's thread; it holds no reference to the stream, which could not end otherwise."""
    while (launched := queue.get()) is not None:
        launched.run()
        del launched  # or its result would live until the next work comes


def _finish(queue: SimpleQueue[StreamWork[Any] | None], thread: threading.Thread) -> None:
    queue.put(None)
    # The last reference may have been one that work on the thread itself held.
    if thread is not threading.current_thread():
        thread.join()
