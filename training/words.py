"""What the pocket model can talk about: the closed vocabulary, as plain tables."""

from __future__ import annotations

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
_TENS = ("zero ten twenty thirty forty fifty sixty seventy eighty ninety").split()

NAMES = (
    "anna ben carla david emma frank grace henry iris jack kate leo maria nina oscar paul "
    "rosa sam tina victor wendy adam bella chris diana eric fiona george helen ivan julia "
    "kevin laura mike nora oliver peter ruth sofia thomas alice bob"
).split()
CAPITALS = {
    "france": "paris", "germany": "berlin", "italy": "rome", "spain": "madrid",
    "england": "london", "japan": "tokyo", "china": "beijing", "russia": "moscow",
    "egypt": "cairo", "greece": "athens", "portugal": "lisbon", "austria": "vienna",
    "ireland": "dublin", "poland": "warsaw", "norway": "oslo", "sweden": "stockholm",
    "finland": "helsinki", "denmark": "copenhagen", "canada": "ottawa", "india": "new delhi",
    "turkey": "ankara", "cuba": "havana", "peru": "lima", "kenya": "nairobi",
    "hungary": "budapest", "chile": "santiago", "iran": "tehran", "belgium": "brussels",
    "switzerland": "bern", "ukraine": "kiev",
}  # fmt: skip
OPPOSITES = {
    "hot": "cold", "big": "small", "up": "down", "left": "right", "day": "night",
    "fast": "slow", "happy": "sad", "old": "young", "open": "closed", "wet": "dry",
    "hard": "soft", "high": "low", "light": "dark", "long": "short", "early": "late",
    "full": "empty", "rich": "poor", "loud": "quiet", "clean": "dirty", "strong": "weak",
}  # fmt: skip
DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
MONTHS = (
    "january february march april may june july august september october november december"
).split()
SOUNDS = {
    "dog": "woof", "cat": "meow", "cow": "moo", "duck": "quack", "sheep": "baa", "pig": "oink",
    "horse": "neigh", "lion": "roar", "frog": "ribbit", "bee": "buzz",
}  # fmt: skip
LEGS = {
    "dog": 4, "cat": 4, "spider": 8, "bird": 2, "ant": 6, "horse": 4, "fish": 0, "snake": 0,
    "bee": 6, "duck": 2, "cow": 4, "sheep": 4,
}  # fmt: skip
COLORS_OF = {
    "the sky": "blue", "grass": "green", "snow": "white", "blood": "red", "a banana": "yellow",
    "a lemon": "yellow", "coal": "black", "a carrot": "orange", "milk": "white",
    "a tomato": "red", "the sun": "yellow", "a leaf": "green",
}  # fmt: skip
MIXES = {
    ("blue", "yellow"): "green", ("red", "yellow"): "orange", ("red", "blue"): "purple",
    ("red", "white"): "pink", ("black", "white"): "gray",
}  # fmt: skip
ADJECTIVES = (
    "red blue green small big old new happy quiet little warm cold yellow white brown fast "
    "slow soft"
).split()
NOUNS = (
    "house cat dog tree car book table chair garden river mountain window door apple bread "
    "water king queen child teacher doctor flower horse bird boat train street city lamp "
    "phone"
).split()
VERBS = ["sees", "likes", "wants", "finds", "takes", "opens", "follows", "loves", "holds", "needs"]
TAILS = (
    "today,in the morning,at night,near the river,in the city,under the tree,every day,"
    "with the dog,on the table,after lunch"
).split(",")
WEATHERS = ["sunny", "rainy", "cloudy", "windy", "cold", "warm"]

SHAPES = ["circle", "square", "triangle", "star", "cross", "heart", "ring", "diamond"]
SHAPE_PLURALS = {s: "crosses" if s == "cross" else s + "s" for s in SHAPES}
COLORS = {
    "red": (220, 40, 40), "green": (40, 170, 60), "blue": (40, 80, 220),
    "yellow": (235, 215, 50), "orange": (240, 140, 30), "purple": (140, 50, 180),
    "pink": (245, 150, 190), "brown": (130, 80, 40), "black": (20, 20, 20),
    "white": (245, 245, 245), "gray": (128, 128, 128),
}  # fmt: skip
POSITIONS = (
    "top left", "top", "top right", "left", "middle", "right",
    "bottom left", "bottom", "bottom right",
)  # fmt: skip

PROPER = {*NAMES, *CAPITALS, *DAYS, *MONTHS, "delhi", "new delhi", "pocket", *CAPITALS.values()}

# English that the model must not pretend to understand.
FAR_SUBJECTS = (
    "my sister,the government,our company,this computer,the football team,her lawyer,"
    "a scientist,the old bridge,nobody,everybody,the museum,your uncle,the engine,"
    "that restaurant,my stomach,the internet,an astronaut,the president,a banker,"
    "the neighbors"
).split(",")
FAR_VERBS = (
    "explained cancelled repaired forgot invented purchased delivered criticized translated "
    "painted destroyed recommended photographed borrowed measured ignored celebrated "
    "investigated"
).split()
FAR_OBJECTS = (
    "the quarterly report,a wooden guitar,our holiday plans,the stock market,"
    "several sandwiches,an electric bicycle,the basketball game,his passport,"
    "the chemistry lesson,a strange theory,the broken elevator,some vegetables,"
    "the airport security,a famous novel,their apartment,the weather forecast,"
    "a violin concert,the new software,ancient history,a chocolate cake"
).split(",")
FAR_QUESTIONS = (
    "who won the world cup last year,can you book me a flight to chicago,"
    "how do i fix a flat tire,what is the meaning of life,write a poem about winter storms,"
    "why do airplanes leave trails,what should i cook for dinner,explain quantum physics,"
    "when does the pharmacy close,how much money is in my account,"
    "turn off the kitchen lights,play some jazz music,which movie should we watch,"
    "who wrote romeo and juliet,how tall is the eiffel tower,"
    "is it going to snow on the weekend,send a message to my brother,"
    "what happened in the news,how old is the universe,do you believe in ghosts,"
    "translate this sentence into korean,where can i buy cheap shoes,"
    "how many calories are in pizza,what is the best laptop,tell me a joke about elephants"
).split(",")
FAR_STARTS = (
    "who invented,when did they build,why do we need,where can i find,how do i repair,"
    "can you order,could you explain,do you like,have you ever tried,i want to buy,i need,"
    "we lost,they sold,"
    "she is looking for,he forgot,tell me about,tell me a story about,describe,how much does it "
    "cost to rent,what is the price of,what is the history of,what does it mean to own,"
    "what is the size of,what is the name of,how many people use,how big is,how old is,how far is,"
    "how heavy is,how long does it take to clean,which is better for,is it safe to use,"
    "is there any news about,are you afraid of,do you know anything about,please bring me,"
    "please remind me about,turn on,turn off,switch off,search for,play,call,cancel,book,draw,"
    "write an email about,sing a song about,translate,recommend,compare,the doctor asked about,"
    "the teacher talked about,my friend works with,our neighbor complained about,"
    "yesterday i saw,tomorrow we will visit,last week he bought,nobody understands"
).split(",")
FAR_THINGS = (
    "the refrigerator,a motorcycle,a hotel room,the electricity bill,this medicine,a passport,"
    "the dentist,an insurance contract,the parliament,a submarine,the pyramids,a volcano,"
    "the black hole,my bank account,a pizza,the recipe,a glass of wine,an umbrella,the microwave,"
    "a sofa,some batteries,the alarm,a taxi,the subway,an ambulance,the police station,a lawyer,"
    "the stadium,tennis,the olympic games,a chess tournament,the guitar,an opera,a television show,"
    "the newspaper,a magazine,the library card,a screwdriver,the garage,an airplane ticket,"
    "the customs office,a suitcase,the desert,a jungle,the atlantic ocean,mount everest,"
    "a dinosaur,an elephant,the kangaroo,a penguin,butterflies,mushrooms,the potato,some cheese,"
    "chicken soup,a birthday cake,breakfast,the wedding,a funeral,christmas,the holidays,"
    "a password,the printer,this website,artificial intelligence,a robot,the calculator,"
    "mathematics,geography,philosophy,the second war,shakespeare,a professor,the university,"
    "homework,an exam,the salary,taxes,a job interview,the factory,a construction site,"
    "the bathroom,a mirror,shampoo,toothpaste,a sweater,leather boots,jewelry,perfume"
).split(",")
FAR_ENDS = (
    "for my brother,next week,as soon as possible,without any help,in the basement,on the internet,"
    "again,at the airport,before dinner,since last summer,for twenty dollars,with my colleagues,"
    "from scratch,in a foreign country,by accident,after the meeting"
).split(",")
FOREIGN_LINES = {
    "de": ("wie ist das wetter heute", "ich möchte einen kaffee bitte", "wo ist der bahnhof",
           "das ist eine schöne stadt", "kannst du mir helfen"),
    "fr-fr": ("quelle heure est il", "je voudrais un café", "où est la gare",
              "il fait beau aujourd'hui", "je ne comprends pas"),
    "es": ("dónde está la biblioteca", "qué hora es", "me gusta mucho la música",
           "buenos días señor", "no entiendo nada"),
    "it": ("che ore sono", "vorrei un bicchiere di vino", "dove si trova la stazione",
           "mi piace la pizza", "non ho capito"),
    "nl": ("hoe laat is het", "waar is het station", "ik wil graag koffie"),
    "pl": ("która jest godzina", "gdzie jest dworzec", "dziękuję bardzo"),
    "ru": ("сколько времени", "где находится вокзал", "я не понимаю"),
    "tr": ("saat kaç", "istasyon nerede", "çok teşekkür ederim"),
}  # fmt: skip


def number(value: int) -> str:
    """`value` in words, 0 to 199, negative ones with "minus"."""
    if value < 0:
        return "minus " + number(-value)
    if value < 20:
        return _UNITS[value]
    if value < 100:
        rest = "" if value % 10 == 0 else " " + _UNITS[value % 10]
        return _TENS[value // 10] + rest
    rest = "" if value % 100 == 0 else " and " + number(value % 100)
    return _UNITS[value // 100] + " hundred" + rest


def clock(hour: int, minute: int) -> str:
    """A time of day as one says it."""
    if minute == 0:
        return number(hour) + " o'clock"
    return f"{number(hour)} {'oh ' if minute < 10 else ''}{number(minute)}"


# Never used in training: what the report asks when it wants to hear "I only know a few things".
FAR_HELD_OUT = (
    "how far is the moon from here,can you recommend a dentist,what is the price of gold today,"
    "who painted the mona lisa,how do i bake bread at home,when was the telephone invented,"
    "my car makes a strange noise,please order two large coffees,tell me about the roman empire,"
    "is this mushroom safe to eat,what time does the last bus leave,how do vaccines work,"
    "she bought tickets for the theater,the weather in alaska was terrible,"
    "find my keys before breakfast,why is the ocean salty,how many people live in brazil,"
    "the committee rejected the proposal,i would like a refund,what does this contract mean,"
    "our printer is out of paper,could you call my mother,the patient needs medicine,"
    "who is the tallest man alive,summarize the second chapter"
).split(",")
FOREIGN_HELD_OUT = {
    "de": ("was kostet das brot", "ich habe meinen schlüssel verloren"),
    "fr-fr": ("combien ça coûte", "j'ai perdu mon chien"),
    "es": ("cuánto cuesta este libro", "mi hermano vive lejos"),
    "it": ("quanto costa il biglietto", "ho dimenticato la chiave"),
}
