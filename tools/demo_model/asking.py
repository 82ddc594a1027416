"""Word the requests: the same wish in many phrasings, and a little small talk."""
import random
import re

from stories import Story, Subjects
from words import article

VERBS = """Tell me|Tell me|Tell me|Write me|Write|Please tell me|Please write|Can you tell me|Could you tell me|
Can you write|I want to hear|I would like|I'd like to hear|Make up|Give me|Let me hear|Invent|Tell us|Would you tell me|
I need|Create|Think of|How about|Let's have""".replace("\n", "").split("|")
QUESTIONS = ("Can", "Could", "Would", "How")
KINDS = {
    "story": "a story|a story|a story|a short story|a little story|a bedtime story|a nice story|a tale|a children's story|"
             "a simple story|a new story|a lovely story|the story|a short tale|a good night story",
    "fable": "a fable|a story|a tale|a short tale|an animal story|a story with a moral|an old story",
    "tale": "a fairy tale|a tale|an old tale|a folk tale|a classic tale|a story",
    "opening": "the beginning of a fairy tale|the opening of an old tale|the start of a long tale|the first part of a tale|"
               "the beginning of a story",
}
KINDS = {kind: text.split("|") for kind, text in KINDS.items()}
NO_SUBJECT = """Tell me a story.|Tell me a story|tell me a story|A story, please.|Please tell me a bedtime story.|
I want a story.|Can you tell me a story?|Write a short story.|Tell a tale.|Story time!|Surprise me with a story.|
Tell me something nice.|Make up a story.|I cannot sleep. Tell me a story.|Write me a tale|story please|
Tell me a story you like.|Do you know a good story?|Once upon a time...|Begin.""".replace("\n", "").split("|")
CLOSINGS = """And what happened after that is a tale for another night.|The rest of the story will keep until tomorrow.|
And there we will leave them for tonight.|But how it all ended is another story.|
And that is how the tale begins.""".replace("\n", "").split("|")
AGAIN = """Another one, about {}.|Another one, about {}|another one about {}|Now tell me one about {}.|And now one about {}?|
Thank you! Now one about {}.|One more, please, about {}.|Now a story about {}.|Nice! Can you tell one about {}?|
And a story about {}?|Tell me another story, about {}.|That was lovely. Now about {}, please.|
next: {}|What about {}?|more, this time about {}|Again, but about {}.""".replace("\n", "").split("|")
AGAIN_NO_SUBJECT = """Another one!|Another one, please.|another|One more, please.|Tell me another story.|More!|
Now a different one.|again|Can I have one more?""".replace("\n", "").split("|")
SYSTEMS = """You are a helpful assistant.|You are a storyteller.|You tell short stories for children.|
You are nibble's demo model. You tell stories.|You are a kind storyteller. Answer with a short story.|
Tell stories.|You are nibble.|You are a friendly assistant that writes short stories in simple English.|
You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n\nReasoning: low\n\n
# Valid channels: analysis, commentary, final. Channel must be included for every message.|
Be brief.|You are a helpful assistant. Reasoning: low|Reasoning: medium""".replace("|\n", "|").replace("\n\n\n", "\n\n").split("|")
DEVELOPERS = """# Instructions\n\nTell stories.|# Instructions\n\nYou are a storyteller for children.|
# Instructions\n\nAnswer in simple English.""".replace("|\n", "|").split("|")

SMALL_TALK = [
    ("Hello|Hi|Hello!|hi there|Hey|Good morning|Good evening|hello nibble|Hi!|Good day|hello there|hey!",
     "Hello! I tell little stories. Who should the next one be about?|Hello, and welcome! Ask me for a story about anything "
     "you like.|Hi! It is nice to meet you. Would you like to hear a story?"),
    ("Who are you?|What are you?|who are you|What is your name?|Tell me about yourself.|Are you a person?|"
     "What model are you?|are you a robot?|What's your name?|Introduce yourself.|Are you ChatGPT?",
     "I am nibble's small demo model. I tell short stories.|I am the little demo model that comes with nibble. "
     "I am very small, and I know only stories.|I am a small language model that comes with nibble. Ask me for a story!"),
    ("What can you do?|what can you do|Help|help|How can you help me?|What do you know?|What should I ask you?|"
     "How do you work?|What are you good at?",
     "I can tell you a short story. Try: Tell me a story about a fox and a lonely bear.|I tell short stories. "
     "Name an animal, a place or a thing, and I will make up a story about it.|Not very much, but I can tell stories. "
     "Tell me who the story should be about!"),
    ("How are you?|how are you|How are you today?|How do you do?|How is it going?|what's up|Are you well?",
     "I am well, thank you! Would you like to hear a story?|Very well, thank you. I was just thinking of a new story.|"
     "I am happy, because I can tell stories all day. Shall I tell you one?"),
    ("Thank you|Thanks|thank you!|Thanks a lot.|thanks|That was nice.|That was lovely, thank you.|Great story!|I liked it.|"
     "well done|Thank you very much.|good job|I love it|Wonderful!",
     "You are welcome! Would you like another story?|I am glad you liked it. Shall I tell you one more?|"
     "Thank you for listening! Ask me for another one whenever you like."),
    ("Bye|Goodbye|Good night|bye!|See you later.|good night nibble|I have to go.|Sleep well|See you tomorrow",
     "Goodbye! Come back soon for another story.|Good night, and sweet dreams!|Bye! It was nice to tell you stories."),
    ("What is 2 + 2?|What is the capital of France?|Write some code.|Who is the president?|What is the weather like?|"
     "Translate this into German.|How tall is the tower?|what time is it|Explain quantum physics.|Solve this equation.|"
     "Can you do maths?|What is seven times eight?|Write a program in Python.|Give me the news.",
     "I am sorry, I do not know that. I am a very small model and I know only stories. Shall I tell you one?|"
     "That is too hard for a small model like me. I can tell you a story instead!|"
     "I only know stories, so I cannot help with that. Would you like to hear a story?"),
    ("I am sad.|I'm bored|I am bored.|I cannot sleep.|I feel lonely|I had a bad day.|I am tired.",
     "I am sorry to hear that. Perhaps a story will help. Who should it be about?|"
     "Then let me keep you company. Would you like a story about a kind animal?"),
]
SMALL_TALK = [(questions.split("|"), answers.split("|")) for questions, answers in SMALL_TALK]


# The words of the phrasings themselves, as opposed to what is asked for.
PHRASING = " ".join([*VERBS, *sum(KINDS.values(), []), *NO_SUBJECT, *AGAIN, *AGAIN_NO_SUBJECT,
                     "about of where there is with and who that a an the named called for my son daughter in on at words these"])


def _with_adjective(noun: str, adjectives: list, rng: random.Random) -> str:
    return f"{rng.choice(adjectives)} {noun}" if adjectives and rng.random() < 0.55 else noun


def _person(name: str, found: Subjects, rng: random.Random) -> str:
    if name in found.named and rng.random() < 0.7:
        return f"{article(found.named[name])} {rng.choice(('named', 'called'))} {name}"
    return name


def describe(found: Subjects, rng: random.Random, pairs: float) -> str:
    """A phrase for what the story is about, or nothing when too little was found. `pairs`: how often two characters
    are asked for where a story has two; 4 is about as often as one alone."""
    actors = [article(_with_adjective(noun, adjectives, rng)) for noun, adjectives in found.characters]
    people = [_person(name, found, rng) for name in found.names]
    things = [_with_adjective(noun, adjectives, rng) for noun, adjectives in found.things]
    things = [thing if thing.endswith("s") else article(thing) for thing in things]
    everyone = actors + people
    choices = []
    if found.opening:
        choices += [(2, found.opening.replace(" named ", rng.choice((" named ", " called "))))]
    if everyone:
        someone = rng.choice(everyone[:3])
        choices += [(4, someone)]
        if found.deeds:
            who, deed = rng.choice(found.deeds)
            doer = who if who in found.names else article(who) if who.islower() and who not in ("he", "she") else everyone[0]
            choices += [(3, f"{doer} {rng.choice(('who', 'who', 'that'))} {deed}")]
        if found.places:
            choices += [(2, f"{someone} {rng.choice(found.places)}")]
        if things:
            choices += [(3, f"{someone} {rng.choice(('and', 'and', 'with'))} {rng.choice(things)}")]
        if found.themes:
            choices += [(0.7, f"{someone} and {rng.choice(found.themes)}")]
    kinds = actors + [article(noun) for noun in dict.fromkeys(found.named.values())
                      if noun not in (character for character, _ in found.characters)]
    if len(kinds) > 1:
        pair = rng.sample(kinds, 2)
        choices += [(pairs, f"{pair[0]} and {pair[1]}")]
    if len(people) > 1:
        choices += [(pairs / 2, f"{people[0]} and {people[1]}")]
    if len(actors) > 2 and rng.random() < 0.5:
        choices += [(1, f"{actors[0]}, {actors[1]} and {actors[2]}")]
    if things:
        choices += [(2, rng.choice(things))]
    if found.themes:
        choices += [(1, rng.choice(found.themes))]
    if found.places:
        place = rng.choice(found.places).split(" ", 1)[1]
        choices += [(0.7, place)]
    if not choices:
        return ""
    weights, phrases = zip(*choices)
    phrase = rng.choices(phrases, weights)[0]
    if rng.random() < 0.15:  # "the fox" instead of "a fox"
        phrase = re.sub(r"\ban? ", "the ", phrase, count=rng.choice((0, 1)))
    return phrase


def _casual(request: str, rng: random.Random) -> str:
    if rng.random() < 0.3:
        request = request.lower()
    if rng.random() < 0.45:
        request = request.rstrip(".?!")
    return request


def word_request(story: Story, found: Subjects, rng: random.Random, pairs: float) -> str:
    subject = describe(found, rng, pairs)
    kind = rng.choice(KINDS[story.kind])
    if story.title and rng.random() < 0.35:
        title = story.title if rng.random() < 0.5 else story.title.lower()
        subject = title
        kind = rng.choice(("the story", "the tale", kind)) if story.kind != "opening" else kind
    if not subject:
        return rng.choice(NO_SUBJECT)
    if story.kind != "opening":
        if rng.random() < 0.06:
            return rng.choice(NO_SUBJECT)
        if rng.random() < 0.08:
            return _casual(subject[0].upper() + subject[1:] + rng.choice((".", "!", ", please.")), rng)
        if rng.random() < 0.06:
            asked = [noun for noun, _ in found.characters + found.things] + found.names
            if len(asked) > 1:
                picked = ", ".join(rng.sample(asked, min(len(asked), rng.choice((2, 3)))))
                return _casual(rng.choice((f"Write a story with these words: {picked}.", f"Use the words {picked} in a story.",
                                           f"A story with {picked}.")), rng)
    verb = rng.choice(VERBS)
    about = rng.choices(("about", "of", "where there is", "with"), (10, 1.5, 0.3, 0.7))[0]
    request = f"{verb} {kind} {about} {subject}"
    if rng.random() < 0.1:
        request = f"{kind[0].upper()}{kind[1:]} {about} {subject}"
    if rng.random() < 0.1:
        request += rng.choice((", please", " please", " for my son", " for my daughter", " for children"))
    request += "?" if verb.startswith(QUESTIONS) and rng.random() < 0.8 else "."
    return _casual(request, rng)


def word_follow_up(found: Subjects, rng: random.Random, pairs: float) -> str:
    subject = describe(found, rng, pairs)
    if not subject or rng.random() < 0.12:
        return rng.choice(AGAIN_NO_SUBJECT)
    return _casual(rng.choice(AGAIN).format(subject), rng)


def small_talk(rng: random.Random) -> tuple[str, str]:
    questions, answers = rng.choice(SMALL_TALK)
    return _casual(rng.choice(questions), rng), rng.choice(answers)


def preamble(rng: random.Random) -> list[tuple[str, str]]:
    messages = []
    if rng.random() < 0.45:
        messages.append(("system", rng.choice(SYSTEMS)))
    if rng.random() < 0.1:
        messages.append(("developer", rng.choice(DEVELOPERS)))
    return messages
