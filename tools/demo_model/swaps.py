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
            other = rng.choice(animals if rng.random() < 0.7 else words.ANIMALS)
            if not re.search(rf"\b{other}", text, re.IGNORECASE):
                text = _swap_noun(text, animal, other)
    for people in words.PEOPLE_GROUPS.values():
        for person in people:
            if person in present and len(people) > 1 and rng.random() < rate and _is_noun_here(text, person):
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


HE, SHE = r"\b(?:[Hh]e|[Hh]is|[Hh]im|boys?)\b", r"\b(?:[Ss]he|[Hh]er|girls?)\b"
TO_SHE = {"he": "she", "him": "her", "his": "her", "himself": "herself", "boy": "girl", "boys": "girls", "man": "woman",
          "men": "women", "king": "queen", "prince": "princess"}
TO_HE = {"she": "he", "hers": "his", "herself": "himself", "girl": "boy", "girls": "boys", "woman": "man", "women": "men",
         "queen": "king", "princess": "prince"}
FAMILY = r"\b(?:[Mm]om\w*|[Mm]um\w*|[Mm]other\w*|[Mm]ama|[Dd]ad\w*|[Ff]ather\w*|[Pp]apa|[Gg]rand\w+|sister\w*|brother\w*|lady|wife|husband)\b"
# After these "her" stood for a person, not for what she owns.
NOT_OWNED = set("""and to a an the with in on for at that so as from up down out but if what how why when who about by into
    go not very feel like back away off over again because around through while until before after every some one all
    there too then home it is was""".split())


def swap_gender(text: str, rng: random.Random) -> str:
    """Only where one gender stands alone, so that nobody else's pronouns change with it."""
    if re.search(FAMILY, text) or bool(re.search(HE, text)) == bool(re.search(SHE, text)):
        return text
    to_she = bool(re.search(HE, text))
    mapping, old_names, new_names = (
        (TO_SHE, words.BOY_NAMES, words.GIRL_NAMES) if to_she else (TO_HE, words.GIRL_NAMES, words.BOY_NAMES)
    )

    def change(match):
        word, following = match[0], text[match.end():]
        low = word.lower()
        if low == "his" and to_she and re.match(r"[.,!?]", following):
            new = "hers"
        elif low == "her" and not to_she:
            after = re.match(r" ([a-z]+)", following)
            new = "his" if after and after[1] not in NOT_OWNED else "him"
        else:
            new = mapping.get(low, low)
        return new.capitalize() if word[0].isupper() else new

    changed = re.sub(r"\b[A-Za-z]+\b", lambda match: change(match) if match[0].lower() in mapping or match[0].lower() == "her"
                     else match[0], text)
    for name in set(re.findall(r"\b[A-Z][a-z]+\b", text)) & set(old_names) - NOT_ALWAYS_NAMES:
        changed = re.sub(rf"\b{name}\b", rng.choice(new_names), changed)
    return changed


def swap_role(text: str, rng: random.Random) -> str:
    """Most stories are about a girl or a boy: make some of them about a witch, a pirate or a fox."""
    match = re.search(r"\b(girl|boy) (?:named|called)\b", text)
    if not match:
        return text
    group = words.PEOPLE_GROUPS["woman" if match[1] == "girl" else "man"]
    role = rng.choice(words.ANIMALS if rng.random() < 0.5 else group)
    if re.search(rf"\b{role}", text, re.IGNORECASE):
        return text
    return _swap_noun(text, match[1], role)


def swap_wording(text: str, rng: random.Random, rate: float) -> str:
    for group in words.SYNONYMS:
        for word in group:
            if word in text:
                text = re.sub(rf"\b{word}\b(?! bit| while| more| of| too)",
                              lambda match: rng.choice(group) if rng.random() < rate else match[0], text)
    for group in words.PARENTS:
        if rng.random() < 0.5:
            new = rng.choice(group)
            for word in group:
                for case in (str, str.capitalize):
                    text = re.sub(rf"\b{case(word)}\b", case(new), text)
    return re.sub(r"\b([Aa]) (?=[aeiou](?!ni[^n]|ne\b|seful))", r"\1n ", re.sub(r"\b([Aa])n (?=[bcdfgj-np-tv-z])", r"\1 ", text))


def swap(text: str, rng: random.Random) -> str:
    """A random mixture, so that some stories stay as they were written."""
    if rng.random() < 0.05:
        return text
    if rng.random() < 0.25:
        text = swap_gender(text, rng)
    if rng.random() < 0.4:
        text = swap_role(text, rng)
    text = swap_names(text, rng, 0.8)
    text = swap_characters(text, rng, 0.65)
    text = swap_colours(text, rng, 0.4)
    text = swap_things(text, rng, 0.25)
    return swap_wording(text, rng, 0.3)
