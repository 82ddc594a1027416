"""Exchange the characters of a story for others, the same everywhere in it.

The request is worded after the exchange, so the only way to know that this story is about a heron
named Ivo is to read the request: without this a small model recites the stories it has seen.
"""
import random
import re

import words

NAME_GROUPS = {"boy": words.BOY_NAMES, "girl": words.GIRL_NAMES, "pet": words.PET_NAMES}
# Capitalised at the start of a sentence these are seldom names.
NOT_ALWAYS_NAMES = {"Will", "June", "Honey", "Button", "Lucky", "Echo", "Violet", "Tiny", "Ginger", "Hazel", "Grace"}
COLOURS = "red blue green yellow purple pink orange brown white black golden silver".split()
# Animal words that are verbs or parts of other nouns too often to touch.
RISKY = {"seal", "swallow", "bug", "fish", "duck", "cricket", "bull", "giant", "monster", "robot", "mermaid", "worm"}


def _swap_noun(text: str, old: str, new: str) -> str:
    for before, after in ((words.plural(old), words.plural(new)), (old, new)):
        for case in (str, str.capitalize):
            text = re.sub(rf"\b{case(before)}\b", case(after), text)
    return _fix_articles(text, new)


def _fix_articles(text: str, noun: str) -> str:
    right = words.article(noun).split()[0]
    return re.sub(rf"\b([Aa])n? {noun}\b", lambda match: (match[1] + right[1:]) + " " + noun, text)


def _is_noun_here(text: str, noun: str) -> bool:
    return re.search(rf"\b(?:an?|the|his|her|my|your) (?:[a-z]+ ){{0,2}}{noun}\b", text) is not None


def swap_characters(text: str, rng: random.Random, rate: float) -> str:
    present = set(re.findall(r"[a-z]+", text))
    for animals in words.ANIMAL_GROUPS.values():
        for animal in animals:
            if animal not in present or animal in RISKY or rng.random() > rate:
                continue
            if not _is_noun_here(text, animal) or f"teddy {animal}" in text:
                continue
            other = rng.choice(animals if rng.random() < 0.75 else words.ANIMALS)
            if not re.search(rf"\b{other}", text, re.IGNORECASE):
                text = _swap_noun(text, animal, other)
    for people in words.PEOPLE_GROUPS.values():
        for person in people:
            if person in present and len(people) > 1 and rng.random() < rate * 0.7 and _is_noun_here(text, person):
                other = rng.choice(people)
                if not re.search(rf"\b{other}", text, re.IGNORECASE):
                    text = _swap_noun(text, person, other)
    return text


def swap_names(text: str, rng: random.Random, rate: float) -> str:
    present = set(re.findall(r"[A-Z][a-z]+", text)) - NOT_ALWAYS_NAMES
    for names in NAME_GROUPS.values():
        for name in names:
            if name in present and text.count(name) >= 2 and rng.random() < rate:
                other = rng.choice(names)
                if not re.search(rf"\b{other}\b", text):
                    text = re.sub(rf"\b{name}\b", other, text)
    return text


def swap_colours(text: str, rng: random.Random, rate: float) -> str:
    present = set(re.findall(r"[a-z]+", text))
    for colour in COLOURS:
        other = rng.choice(COLOURS)
        if colour in present and rng.random() < rate and other not in present:
            text = _fix_articles(re.sub(rf"\b{colour}\b", other, text), other)
    return text


def swap_things(text: str, rng: random.Random, rate: float) -> str:
    for pool in (words.ALIKE_THINGS, words.PLACES):
        present = [thing for thing in pool if text.count(thing) >= 2]
        if present and rng.random() < rate:
            old, new = rng.choice(present), rng.choice(pool)
            if not re.search(rf"\b{new}", text, re.IGNORECASE):
                text = _swap_noun(text, old, new)
    return text


def swap(text: str, rng: random.Random) -> str:
    """A random mixture, so that some stories stay as they were written."""
    if rng.random() < 0.1:
        return text
    text = swap_names(text, rng, 0.8)
    text = swap_characters(text, rng, 0.5)
    text = swap_colours(text, rng, 0.35)
    return swap_things(text, rng, 0.12)
