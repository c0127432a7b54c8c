"""The values that generated prompts speak of: words from lists, texts that are put together, numbers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from random import Random

_LISTS = {
    kind: members.split("|")
    for kind, _, members in (
        line.partition(": ")
        for line in Path(__file__).with_name("words.txt").read_text(encoding="utf-8").splitlines()
    )
}
WORDS = {kind: members for kind, members in _LISTS.items() if not kind.startswith("_")}
"""Words by kind: the lists of `words.txt`, a line `kind: member|member` each."""
PARTS = {kind[1:]: members for kind, members in _LISTS.items() if kind.startswith("_")}
"""Lists that other texts are made of; their kinds begin with an underscore in the file."""


def _day(random: Random) -> date:
    return date(1950, 1, 1) + timedelta(days=random.randrange(28_000))


def _title(random: Random) -> str:
    adjective, noun = random.choice(PARTS["adjective"]).title(), random.choice(PARTS["noun"]).title()
    other = random.choice(PARTS["noun"]).title()
    return random.choice((f"The {adjective} {noun}", f"{adjective} {noun}", f"{noun} of the {other}"))


def _person(random: Random) -> str:
    return f"{random.choice(PARTS['first'])} {random.choice(PARTS['last'])}"


def _email(random: Random) -> str:
    host = random.choice(("example.com", "mail.org", "northwind.net", "uni.edu"))
    return f"{random.choice(PARTS['first']).lower()}.{random.choice(PARTS['last']).lower()}@{host}"


def _street(random: Random) -> str:
    number, name = random.randrange(1, 400), random.choice(PARTS["noun"]).title()
    return f"{number} {name} {random.choice(('Street', 'Avenue', 'Road'))}"


def _code(random: Random) -> str:
    letters = "".join(random.choices("ABCDEFGHJKLMNPRSTVWXZ", k=random.choice((2, 3))))
    return f"{letters}{random.choice(('', '-'))}{random.randrange(10, 99_999)}"


MADE: dict[str, Callable[[Random], str]] = {
    "title": _title,
    "person": _person,
    "first": lambda random: random.choice(PARTS["first"]),
    "email": _email,
    "code": _code,
    "place": lambda random: f"{random.choice(WORDS['city'])}, {random.choice(WORDS['country'])}",
    "street": _street,
    "date": lambda random: _day(random).isoformat(),
    "day": lambda random: f"{_day(random):%B} {_day(random).day}, {_day(random).year}",
    "time": lambda random: f"{random.randrange(24):02}:{random.choice((0, 15, 30, 45)):02}",
    "point": lambda random: f"{random.uniform(-90, 90):.2f}, {random.uniform(-180, 180):.2f}",
}
"""Texts that are put together."""

NUMBERS: dict[str, Callable[[Random], int | float]] = {
    "small": lambda random: random.randrange(1, 11),
    "count": lambda random: random.choice((random.randrange(2, 60), 5 * random.randrange(2, 40))),
    "large": lambda random: random.choice((10, 100, 1000)) * random.randrange(2, 100),
    "year": lambda random: random.randrange(1900, 2030),
    "age": lambda random: random.randrange(18, 90),
    "money": lambda random: random.choice((100, 500, 1000, 2500)) * random.randrange(1, 60),
    "price": lambda random: round(random.uniform(2, 900), random.choice((0, 1, 2, 2))),
    "rate": lambda random: round(random.uniform(0.5, 12), random.choice((0, 1, 1, 2))),
    "fraction": lambda random: round(random.uniform(0.01, 0.99), random.choice((1, 2, 2, 3))),
    "length": lambda random: random.choice((random.randrange(1, 300), round(random.uniform(0.5, 60), 1))),
    "temperature": lambda random: random.randrange(-20, 120),
}


def word(kind: str, random: Random) -> str:
    """A text of a kind of `WORDS` or `MADE`."""
    return random.choice(WORDS[kind]) if kind in WORDS else MADE[kind](random)
