"""Read the tales and find out what each story is about."""
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import words

# Stories with these words are kept out of the chat part: a demo for everybody tells mild stories.
HARSH = re.compile(
    r"\b(kill\w*|murder\w*|blood\w*|gun|guns|shot|hanged|gallows|devil\w*|hell|damn\w*|whip\w*|slave\w*|savage\w*|"
    r"gyps\w*|negro\w*|drunk\w*|naked|corpse\w*|behead\w*|stab\w*|heathen\w*|cannibal\w*|jew\w*|christian\w*|turk|"
    r"moor|black man|blackamoor|squaw|indian\w*|fool-killer|flog\w*|thrash\w*|hatchet|suicide|poison\w*|butcher\w*|"
    r"cut off (?:his|her|their|its) head|god|lord|allah|cigar\w*|whisk\w*|beer|wine|death|died|dead|sex\w*|stupid|"
    r"skull|razor|steak|ashtray|knife)\b",
    re.IGNORECASE,
)


@dataclass
class Story:
    text: str
    title: str = ""
    kind: str = "story"  # story, fable, tale or opening


@dataclass
class Subjects:
    """What can be asked for; every phrase stands in the story."""

    opening: str = ""
    characters: list = field(default_factory=list)
    names: list = field(default_factory=list)
    named: dict = field(default_factory=dict)
    things: list = field(default_factory=list)
    places: list = field(default_factory=list)
    themes: list = field(default_factory=list)
    deeds: list = field(default_factory=list)


def read_documents(path: Path) -> list[str]:
    return [text.strip() for text in path.read_text().split("<|endoftext|>") if text.strip()]


def split_joined(text: str) -> list[str]:
    """Some TinyStories documents hold several stories; a new "Once upon a time" shows where."""
    return [part.strip() for part in re.split(r"\n\n(?=Once upon a time|Once there (?:was|were)\b)", text)]


def tiny_stories(folder: Path) -> list[Story]:
    parts = [part for text in read_documents(folder / "tinystories.txt") for part in split_joined(text)]
    good = [part for part in parts if 95 <= len(part.split()) <= 330 and part[-1] in '.!?"' and not HARSH.search(part)]
    return [Story(part) for part in good]


def tales(folder: Path) -> tuple[list[Story], list[Story]]:
    """Short classic tales as a whole, and the openings of long ones."""
    whole, openings = [], []
    for path in sorted(folder.glob("*.txt")):
        if path.name in ("tinystories.txt", "heldout.txt"):
            continue
        for text in read_documents(path):
            text = re.sub(r"\bass(es)?\b", r"donkey\1", text).replace("donkeyes", "donkeys")
            text = re.sub(r"\bAss(es)?\b", r"Donkey\1", text).replace("Donkeyes", "Donkeys").replace("an donkey", "a donkey")
            text = text.replace("an Donkey", "a Donkey").replace("An Donkey", "A Donkey")
            title, _, body = text.partition("\n\n")
            if not body or len(title) > 60 or title[-1] in '.!?"':
                title, body = "", text
            if path.name == "aesop_fables.txt":
                body = lower_nouns(body)
            if 110 <= len(body.split()) <= 380 and body[-1] in '.!?"' and not HARSH.search(body):
                whole.append(Story(body, title, "fable" if path.name == "aesop_fables.txt" else "tale"))
            elif len(body.split()) > 380:
                opening = cut_opening(body)
                if opening and not HARSH.search(opening):
                    openings.append(Story(opening, title, "opening"))
    return whole, openings


def lower_nouns(text: str) -> str:
    """Aesop's translator writes "the Fox"; the rest of the chat data writes "the fox"."""
    return re.sub(
        r"(?<=[a-z,;:] )([A-Z][a-z]+)\b",
        lambda match: match[1] if match[1] in KEPT_CAPITALS else match[1].lower(),
        text,
    )


KEPT_CAPITALS = set("""Jupiter Mercury Hercules Venus Apollo Minerva Juno Aesop Athens Rhodes Zeus Pan Fortune
    Prometheus Cupid Neptune Momus Plutus Bacchus Sunday Monday Mr Mrs Demades Satyr Pluto Greek Greece I""".split())


def cut_opening(body: str) -> str:
    paragraphs, taken, count = body.split("\n\n"), [], 0
    for paragraph in paragraphs:
        size = len(paragraph.split())
        if count >= 130 or count + size > 300:
            break
        taken.append(paragraph)
        count += size
    while taken and (taken[-1][-1] not in ".!" or taken[-1].count('"') % 2):
        count -= len(taken.pop().split())
    return "\n\n".join(taken) if count >= 110 else ""


NOUNS = set(words.ANIMALS + words.PEOPLE + words.OTHER_PEOPLE)
THINGS = set(words.THINGS) - NOUNS
PLACES = set(words.PLACES)
ADJECTIVES = set(words.ADJECTIVES)
NAMES = set(words.BOY_NAMES + words.GIRL_NAMES + words.PET_NAMES)
SPEAKERS = "|".join(sorted((re.escape(noun) for noun in NOUNS), key=len, reverse=True))
OPENING = re.compile(r"\b(an? (?:[a-z]+,? ){0,3}?(?:%s)s?)\b(?: (?:named|called) ([A-Z][a-z]+))?" % SPEAKERS)
NAMED = re.compile(r"\b(?:[a-z]+ )?(%s) (?:named|called) ([A-Z][a-z]+)" % SPEAKERS)
PLACE = re.compile(r"\b(in|at|on|near|by) (the|a) ((?:[a-z]+ )?)(%s)\b" % "|".join(words.PLACES))
DEED = re.compile(
    r"\b([Hh]e|[Ss]he|[A-Z][a-z]+|%s) "
    r"((?:wanted to|loved to|liked to|decided to|wished to|learned to|found an?|lost (?:his|her|their|its)|"
    r"could not|was afraid of|dreamed of|lived in|met an?|saw an?|went to) [a-z ]{3,28}?)[.,!]" % SPEAKERS
)
DANGLING = re.compile(r" (?:with|to|the|a|an|of|and|his|her|very|so|for|in|on|at|from|that|too)$")


def find_subjects(text: str) -> Subjects:
    found = Subjects()
    tokens = re.findall(r"[A-Za-z']+", text)
    lower = [token.lower() for token in tokens]
    counts = Counter(lower)
    pairs = Counter(zip(lower, lower[1:]))

    def described(noun: str) -> list[str]:
        return [adjective for (adjective, second), _ in pairs.most_common() if second == noun and adjective in ADJECTIVES]

    match = OPENING.search(text[:260])
    if match:
        found.opening = match[1] + (f" named {match[2]}" if match[2] else "")
    ranked = [word for word, number in counts.most_common() if number >= 2]
    found.characters = [(word, described(word)) for word in ranked if word in NOUNS][:4]
    found.things = [(word, described(word)) for word in ranked if word in THINGS][:3]
    names = Counter(token for token in tokens if token in NAMES)
    found.names = [name for name, number in names.most_common(3) if number >= 2]
    found.named = {name: noun for noun, name in NAMED.findall(text) if name in found.names}
    found.places = [f"{where} {which} {extra}{place}" for where, which, extra, place in PLACE.findall(text)][:3]
    plain = text.lower()
    found.themes = [theme for theme, marks in words.THEMES.items() if sum(plain.count(mark) for mark in marks) >= 2]
    found.deeds = [(who, deed) for who, deed in DEED.findall(text) if not DANGLING.search(deed)][:4]
    return found
