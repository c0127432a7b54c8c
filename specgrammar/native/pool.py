"""Threads that native code runs on."""

from __future__ import annotations

import weakref

from specgrammar.native.library import core


class NativePool:
    """Threads that wait without the interpreter's lock; they end with this object.

    Attributes:
        num_threads: the caller's among them; 1 where there is no native code.
        handle: for native calls; None where one thread is all.
    """

    def __init__(self, num_threads: int) -> None:
        """Start `num_threads - 1` threads, since the caller is one; 127 at most."""
        self.num_threads: int = 1
        self.handle: int | None = None
        library = core()
        if library is None or num_threads == 1:
            return
        self.handle = library.specgrammar_pool_new(num_threads)
        if self.handle is not None:  # else the system has no thread
            self.num_threads = library.specgrammar_pool_num_threads(self.handle)
            freed = weakref.finalize(self, library.specgrammar_pool_free, self.handle)
            freed.atexit = False  # daemon threads may be inside then

    def wake(self, num_threads: int) -> None:
        """Hand nothing to `num_threads` threads and wait until they have done it."""
        library = core()
        if library is not None and self.handle is not None:
            library.specgrammar_pool_wake(self.handle, num_threads)

    def rouse(self, num_threads: int) -> None:
        """Wake threads for a call that is being prepared; they wait awake for it, 0.3 ms at most."""
        library = core()
        if library is not None and self.handle is not None:
            library.specgrammar_pool_rouse(self.handle, num_threads)
