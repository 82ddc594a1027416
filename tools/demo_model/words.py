"""Word lists from which requests are worded and story characters are exchanged."""

# Within one group, animals can stand in for each other in a story without much nonsense.
ANIMAL_GROUPS = {
    "small": """rabbit bunny mouse squirrel hedgehog hamster mole kitten puppy cat dog fox raccoon badger
        rat beaver chipmunk ferret lamb piglet otter skunk weasel hare monkey koala possum guinea-pig""".split(),
    "large": """bear lion tiger wolf elephant horse cow goat sheep pig donkey deer giraffe zebra camel
        kangaroo hippo rhino moose bull pony leopard panda gorilla buffalo mule reindeer cheetah dragon
        dinosaur unicorn monster giant robot troll""".split(),
    "bird": """bird duck owl hen rooster crow swan parrot pigeon goose eagle robin sparrow penguin chicken
        turkey peacock raven stork swallow seagull woodpecker canary duckling chick""".split(),
    "water": """fish whale dolphin shark octopus crab seal turtle frog toad crocodile alligator starfish
        jellyfish lobster walrus goldfish mermaid""".split(),
    "tiny": """bee butterfly ant spider ladybug snail worm caterpillar beetle grasshopper cricket bug
        firefly moth dragonfly lizard snake""".split(),
}

PEOPLE_GROUPS = {
    "man": """king prince farmer fisherman wizard pirate soldier old-man shepherd tailor miller knight
        woodcutter baker painter carpenter sailor captain clown gardener postman hunter cobbler""".split(),
    "woman": """queen princess witch fairy old-woman teacher nurse grandmother lady dancer maid
        ballerina singer shopkeeper mermaid""".split(),
    "boy": ["boy"],
    "girl": ["girl"],
}

OTHER_PEOPLE = """doctor ghost snowman astronaut magician policeman fireman driver chef cook merchant thief
    emperor elf gnome dwarf ogre scarecrow doll man woman child baby mom dad mother father brother sister
    grandma grandpa friend neighbor stranger angel lad maiden daughter son""".split()

BOY_NAMES = """Tim Tom Max Sam Ben Jack Bob Billy John Mark Leo Joe Fred Peter Henry Oliver Charlie George
    Thomas James Jake Danny Andy Sammy Bobby Jimmy Timmy Tommy Johnny Freddy Alex Daniel Harry Rob Jim
    Carl Otto Finn Felix Hugo Oscar Victor Simon Adam Noah Luke Paul Nick Eric Ian Omar Ali Ravi Kenji Hans
    Pedro Mateo Ivan Igor Boris Anders Pablo Marco Theo Arthur Albert Walter Rufus Barnaby Milo Toby Jasper
    Edgar Edmund Ralph Gus Kofi Amir Yusuf Chen Diego Lars Nils Emil Anton""".split()

GIRL_NAMES = """Lily Sue Lucy Mia Amy Sally Jane Sarah Emma Anna Molly Mary Ella Kate Bella Jenny Sara Lola
    Mimi Grace Alice Claire Julie Polly Ann Rachel Zara Tina Sophie Lisa Gina Rosie Ruby Jenna Betty Amelia
    Kelly Linda Amanda Luna Gia Maria Cindy Annie Nora Jill Susie Rita Emily Emmy Abigail Becky Lila Eva
    Monica Sophia Ellie Tilly Clara Ida Greta Heidi Ingrid Freya Elsa Hannah Martha Esther Naomi Leila Fatima
    Aisha Priya Mei Yuki Sofia Carmen Rosa Inez Olga Vera Nadia Tamara Flora Ivy Hazel Maud Agnes Edith
    Matilda Wanda Zoe Chloe Nina Pippa""".split()

PET_NAMES = """Spot Max Fluffy Kitty Daisy Benny Buddy Mittens Penny Tweetie Ducky Momo Bobo Whiskers Ollie
    Remy Tweety Dolly Buzz Bessie Jazz Poppy Tilly Olive Buzzy Lulu Rover Chirpy Rosie Binky Nemo Brownie
    Bongo Pinky Zippy Ziggy Pepper Puffy Waffle Coco Bibi Inky Hippy Whistler Velvet Zigzag Pixie Percy Skip
    Snowy Roxy Puff Pip Otto Finny Bubbles Stripey Ratty Hoppy Biscuit Clover Dusty Echo Fern Ginger
    Hazel Jolly Kiki Lucky Maple Nibbles Oakley Patches Quill Rusty Sandy Tango Umber Violet Willow Yoyo
    Ziva Barley Cocoa Domino Fidget Gizmo Jasper Marble Nutmeg Peanut Raisin Scout Tulip""".split()

PLACES = """park forest garden farm beach castle house school zoo river lake sea ocean mountain village town
    city jungle cave pond playground kitchen library island meadow field barn desert market store shop hill
    tower valley woods palace museum hospital yard backyard bedroom attic ship sky moon circus cottage mill
    inn church harbor train boat""".split()

THINGS = """ball kite doll boat balloon bike book cake apple hat bucket box car truck train star flower tree
    rock stone stick rope key mirror flute drum bell lamp candle ring crown sword map coin treasure shell
    feather button blanket scarf umbrella basket bottle cup spoon bowl pot chair table bed ladder bridge
    swing slide puzzle toy picture letter pencil crayon camera rainbow cloud snow rain wind sun moon leaf
    seed carrot cookie honey cheese bread soup pie banana orange strawberry pumpkin cherry lemon mushroom egg
    nest bone wagon tent robot rocket plane clock radio telephone guitar piano trumpet violin bag purse
    necklace dress shoe shoes boots coat glove sock pillow vase jar knife axe hammer wheel engine tractor
    bus motorcycle scooter statue wand potion carpet lantern penny gem diamond pearl gold secret song dream
    wish mud puddle sand sandcastle shadow volcano storm birthday party picnic race game nap bath""".split()

# Things that a story can put in each other's place.
ALIKE_THINGS = """ball kite doll boat balloon bike book hat box car truck train star flower rock stone stick rope key mirror
    flute drum bell lamp candle ring crown sword map coin shell feather button blanket scarf umbrella basket bottle
    cup spoon bowl pot puzzle toy picture letter pencil crayon camera leaf seed carrot cookie pie banana strawberry
    pumpkin cherry lemon mushroom egg nest bone wagon tent robot rocket clock radio telephone guitar trumpet violin
    bag purse necklace dress shoe coat glove sock pillow vase jar hammer wheel scooter statue wand lantern penny gem
    diamond pearl""".split()

ADJECTIVES = """little big small good great special happy beautiful nice pretty kind old shiny friendly bad
    wonderful tall funny tiny sad brave huge strange magical magic wise pink young cute sweet curious yellow
    green blue naughty strong giant lovely lonely silly mean mysterious famous poor gentle clever broken
    grumpy elderly jolly bald enormous wild scary cold smelly mighty ancient quiet purple modest orange brown
    peaceful cheerful fat clumsy lazy chubby bossy nosy tired sleepy charming lively powerful wet helpful
    lucky creative noisy patient graceful fierce tough compassionate smart colorful playful furry hairy
    hungry healthy deaf rude polite rich humble dirty messy thoughtful shy generous golden gifted talking
    pale loyal ugly angry wealthy stubborn red white black gray proud foolish greedy selfish honest
    adventurous independent fearful excited bright careless careful cruel""".split()

# What a story is about, guessed from words that stand in it.
THEMES = {
    "sharing": ["shared", "share", "sharing"],
    "friendship": ["best friends", "friendship", "new friend", "became friends"],
    "being brave": ["brave", "courage"],
    "being kind": ["kind", "kindness"],
    "telling the truth": ["truth", "lied", "honest"],
    "helping others": ["helped", "help others", "helpful"],
    "being lost": ["lost"],
    "being scared": ["scared", "afraid"],
    "being sad": ["sad"],
    "being jealous": ["jealous"],
    "feeling lonely": ["lonely"],
    "being patient": ["patient", "patience"],
    "never giving up": ["give up", "kept trying", "tried again"],
    "saying sorry": ["sorry"],
    "working together": ["together", "teamwork"],
    "listening to your parents": ["should have listened", "listen to"],
    "being careful": ["careful"],
    "an adventure": ["adventure", "explore"],
    "magic": ["magic", "magical", "spell"],
    "a birthday": ["birthday"],
    "a surprise": ["surprise"],
    "a storm": ["storm", "thunder"],
    "winter": ["snow", "winter"],
    "making a mistake": ["mistake"],
    "losing something": ["lost his", "lost her", "lost their", "could not find"],
    "a dream": ["dream", "dreamed"],
    "being greedy": ["greedy", "greed"],
    "being proud": ["proud", "boast"],
}

# Words that can be exchanged anywhere, one occurrence at a time.
SYNONYMS = [group.split("|") for group in """big|large|huge
small|little|tiny
happy|glad|joyful
very|really
pretty|beautiful|lovely
scared|afraid|frightened
saw|noticed|spotted
began|started
liked to|loved to
shouted|yelled|cried out
kind|nice
angry|cross
children|kids
forest|woods
stone|rock
replied|answered
smart|clever
excited|thrilled
Suddenly|All of a sudden|Just then
One day|One morning|One sunny day|One afternoon|One fine day
From that day on|From then on|After that day|Ever since that day
Once upon a time, there was|Once there was|There once was|Once upon a time there lived|Long ago, there was|There was once
Once upon a time, there were|Once there were|There once were|Long ago, there were""".split("\n")]

# Exchanged in the whole story at once.
PARENTS = [["mom", "mommy", "mum", "mother", "mama"], ["dad", "daddy", "father", "papa"]]

IRREGULAR_PLURALS = {
    "mouse": "mice", "wolf": "wolves", "fish": "fish", "sheep": "sheep", "deer": "deer", "goose": "geese",
    "puppy": "puppies", "pony": "ponies", "bunny": "bunnies", "butterfly": "butterflies", "fairy": "fairies",
    "canary": "canaries", "firefly": "fireflies", "dragonfly": "dragonflies", "fox": "foxes", "octopus": "octopuses",
    "man": "men", "woman": "women", "child": "children", "thief": "thieves", "elf": "elves",
    "fisherman": "fishermen", "postman": "postmen", "old man": "old men", "old woman": "old women",
    "lady": "ladies", "baby": "babies", "witch": "witches", "ostrich": "ostriches", "finch": "finches",
    "moose": "moose", "reindeer": "reindeer", "walrus": "walruses", "jellyfish": "jellyfish",
    "starfish": "starfish", "goldfish": "goldfish", "buffalo": "buffaloes", "snowman": "snowmen",
    "policeman": "policemen", "fireman": "firemen",
}


def plural(noun: str) -> str:
    return IRREGULAR_PLURALS.get(noun, noun + "s")


def article(phrase: str) -> str:
    return ("an " if phrase[0].lower() in "aeiou" and not phrase.startswith(("uni", "one")) else "a ") + phrase


def _spaced(groups: dict) -> dict:
    return {name: [word.replace("-", " ") for word in words] for name, words in groups.items()}


ANIMAL_GROUPS = _spaced(ANIMAL_GROUPS)
PEOPLE_GROUPS = _spaced(PEOPLE_GROUPS)
ANIMALS = [word for group in ANIMAL_GROUPS.values() for word in group]
PEOPLE = [word for group in PEOPLE_GROUPS.values() for word in group]
