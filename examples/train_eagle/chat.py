"""Plain chat prompts: requests of many forms about many things, for free text."""

from __future__ import annotations

from random import Random

from examples.train_eagle.words import PARTS, WORDS, word

FORMS = (
    "Explain {topic} in simple terms.",
    "What is {topic}?",
    "Tell me about {topic}.",
    "How do I {action}?",
    "Give me {n} tips on how to {action}.",
    "Write a short poem about {thing}.",
    "Write a short story about a {animal} and a {animal2} in {city}.",
    "What is the difference between a {animal} and a {animal2}?",
    "Compare {country} and {country2} for a holiday.",
    "List {n} interesting facts about {thing}.",
    "Why is {topic} important?",
    "Write an email to {first} about the {event} on {weekday}.",
    "Write a thank you note to {first} for the {product}.",
    "Describe {city} to someone who has never been there.",
    "What should I see in {city} in {n} days?",
    "Suggest a name for a {animal} that likes {food}.",
    "How do I make {food}?",
    "What can I cook with {ingredient} and {ingredient2}?",
    "Summarize the history of {country} in a paragraph.",
    "What are the pros and cons of {topic}?",
    "Translate to {language}: I would like to buy a {product}.",
    "Write a product description for a {color} {product}.",
    "Who was important in {era}, and why?",
    "What does a {job} do all day?",
    "I have {condition}. What helps?",
    "Write a Python function that {code}.",
    "Explain to a child how {topic} works.",
    "Write a dialogue between a {job} and a {job2}.",
    "Rewrite this politely: Send me the {product} by {weekday}!",
    "Give me a riddle about {thing}.",
    "What would happen if there were no {thing}?",
    "Recommend a hobby for a {job} who likes {sport}.",
    "Plan a {event} for {n} people in {city}.",
    "Explain the rules of {game}.",
    "How does {subject} help in daily life?",
    "Is it better to learn {language} or {language2}? Answer briefly.",
    "Write a slogan for {company}, which sells a {product}.",
    "Correct the grammar: {first} go to {city} yesterday and buyed a {product}.",
    "Write three sentences that use the words {thing}, {color} and {city}.",
    "What is {a} plus {b}? Show the steps.",
    "If a {product} costs {a} dollars and is {n}% off, what do I pay?",
)


def chat_prompt(random: Random) -> tuple[str, str]:
    """A prompt and its family, which is its form."""
    form = random.choice(FORMS)
    values = {kind: word(kind, random) for kind in (*WORDS, "first")}
    values |= {
        f"{kind}2": word(kind, random) for kind in ("animal", "country", "ingredient", "job", "language")
    }
    values |= {
        "topic": random.choice(PARTS["topic"]),
        "action": random.choice(PARTS["action"]),
        "code": random.choice(PARTS["code"]),
        "thing": word(
            random.choice(("animal", "plant", "instrument", "food", "material", "planet", "vehicle")), random
        ),
        "n": str(random.randrange(3, 8)),
        "a": str(random.randrange(10, 500)),
        "b": str(random.randrange(10, 500)),
    }
    return form.format(**values), form
