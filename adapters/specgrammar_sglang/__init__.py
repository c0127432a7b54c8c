"""specgrammar in sglang: grammar backends, masks for its speculative workers, and draft trees of ours.

sglang finds `plugin` by its entry point (group `sglang.srt.plugins`) in every process; nobody imports anything
from here. docs/adapters/sglang.md says what it does and what of sglang it relies on.
"""

from specgrammar_sglang.plugin import plugin

__all__ = ["plugin"]
