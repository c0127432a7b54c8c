"""Every plugin that is broken on purpose, and the check that rejects it: the table of docs/conformance.md.

python -m tests.conformance.table > docs/conformance.md
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from specgrammar.testing.checks.report import clause
from tests.conformance.broken.abilities import BROKEN_ABILITIES
from tests.conformance.broken.allocators import BROKEN_ALLOCATORS
from tests.conformance.broken.backends import BROKEN_BACKENDS
from tests.conformance.broken.gates import BROKEN_GATES
from tests.conformance.broken.ledgers import BROKEN_LEDGERS
from tests.conformance.broken.masks import BROKEN_MASKS
from tests.conformance.broken.matchers import BROKEN_MATCHERS
from tests.conformance.broken.producers import PRODUCERS
from tests.conformance.broken.stagings import BROKEN_STAGINGS
from tests.conformance.broken.targets import BROKEN_TARGETS
from tests.conformance.broken.workers import WORKERS
from tests.conformance.cases import Broken

PARTS: dict[str, Iterable[Broken]] = {
    "Matchers": BROKEN_MATCHERS,
    "Rows of the bitmask": BROKEN_MASKS,
    "Backends": BROKEN_BACKENDS,
    "Abilities of matchers and backends": BROKEN_ABILITIES,
    "Gates": BROKEN_GATES,
    "Producers": PRODUCERS,
    "Workers": WORKERS,
    "Staging strategies": BROKEN_STAGINGS,
    "Bitmask allocators": BROKEN_ALLOCATORS,
    "Ledgers": BROKEN_LEDGERS,
    "Targets": BROKEN_TARGETS,
}

_BEGIN = """# What the kit rejects

The kit is tested with plugins that are each broken on purpose in one way ({number} of them, in
`tests/conformance/broken/`). Each has to be rejected by the check that is named here, with a reason that says
what is wrong. This page is made from those tests.
"""


def page() -> str:
    """The page in Markdown."""
    number = sum(len(list(broken)) for broken in PARTS.values())
    return "\n".join([_BEGIN.format(number=number), *_tables()])


def _tables() -> Iterator[str]:
    for part, broken in PARTS.items():
        yield f"## {part}\n\n| broken in this way | rejected by | the clause |\n|---|---|---|"
        for one in broken:
            check = next(check for check in one.checks if check.__name__ == one.check)
            cells = one.fault, f"`{one.check}`", clause(check)
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
        yield ""


if __name__ == "__main__":
    print(page(), end="")
