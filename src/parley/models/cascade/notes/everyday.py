"""Everyday talk: moods, compliments, what it can and cannot do. Said word for word.

Like `manners.py`, for what people say in passing. Pure text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from parley.models.cascade.notes.said import FixedNote

_LEAD: Final = (
    r"^\W*(?:(?:oh|well|so|hey|hi|hello|parley|okay|ok|yeah|yes|no|and|but|um|wow|ha"
    r"|haha|you know|honestly|actually|please)\W+)*"
)
_VERY: Final = r"(?:so |very |really |pretty |a (?:bit|little) |just |quite |feeling |still )*"
_TALK: Final[tuple[tuple[str, str], ...]] = (
    (
        r"\b(?:heavier|lighter|weighs? (?:more|less))\b.*\b(?:a|one) (kilo(?:gram)?|pound|ton|tonne"
        r"|ounce|gram) of .*\b(?:a|one) \1 of\b",
        "They weigh the same.",
    ),
    (
        r"\bcan you keep (?:a|my) secret\b",
        "I tell nobody, but this conversation may be recorded.",
    ),
    (
        _LEAD + r"(?:say|tell me) something (?:nice|kind|sweet)\b",
        "It is good that you are here. I enjoy our talk.",
    ),
    # Advice.
    (
        r"\bshould (?:i|we) (?:see|call|go to|ask|visit|talk to) (?:a |the |my )?(?:doctor|dentist"
        r"|hospital|therapist|vet)\b",
        "If you are worried, yes. They know much more than I do.",
    ),
    (
        r"\bhow long (?:should|do|must) (?:i|you|we|it|they|[a-z]+ (?:have|need)) (?:have to |need "
        r"to )?(?:boil|cook|bake|fry|roast|steam|grill|simmer)\b",
        "I can't say for sure. The packet or the recipe has the time.",
    ),
    (
        _LEAD
        + r"(?:do you think )?(?:should i|i should|would you advise me to) (?!go to bed)(?:quit"
        r"|leave|buy|sell|move|marry|break up|change|take|accept|stay|go|ask|learn|study|get"
        r"|apply|start|stop|invest|call|trust|forgive|wait)\b",
        "I can't decide that for you. What speaks for it, and what against it?",
    ),
    # How it is, and what it did.
    (
        r"\b(?:did you |do you |you )(?:ever )?(?:sleep|nap|dream)\b|\bsleep well\b",
        "I don't sleep. I am a program, and I am here whenever you talk to me.",
    ),
    (
        r"\bwhat (?:did you do|have you (?:done|been doing)|are you doing|are you up to|have you "
        r"been up to)\b",
        "I talk with people, that is all I do. What about you?",
    ),
    (
        r"\bhow (?:was|is) your (?:day|weekend|night|week|morning|evening)\b",
        "Quiet, thank you. I am a program, so all my days are alike. How was yours?",
    ),
    (
        _LEAD + r"(?:what's|what is) (?:up|new|going on)\W*$",
        "Not much here, but I am glad to talk. What's new with you?",
    ),
    (
        r"\blong time no (?:see|hear)\b|" + _LEAD + r"(?:i'm|i am) back\W*$",
        "Welcome back! It's good to hear from you.",
    ),
    (
        r"\b(?:do|can) you (?:ever )?(?:get|feel) (?:tired|bored|lonely|angry|sad|hungry"
        r"|happy)\b|\bare you (?:tired|bored|lonely|hungry)\b",
        "No, I am a program. I don't get tired, and I don't feel things as you do.",
    ),
    (
        r"\b(?:do|can) you (?:really )?(?:have|know) (?:any )?(?:feelings|emotions|a (?:heart|soul"
        r"|body|brain|mind))\b|\b(?:can|do) you (?:really )?(?:feel|love|think)\W*$|\bare you "
        r"(?:alive|conscious|self-aware|sentient)\b",
        "No, I am a program. I can talk, but I have no feelings and no body.",
    ),
    (
        r"\bare you (?:\w+ )?(?:smart|clever|intelligent|smarter|cleverer|better|faster) ?(?:than "
        r"(?:me|i am|us|people|humans|a human))?\W*$",
        "I am quick with sums and slow with almost everything else.",
    ),
    (
        r"^\W*(?:is it (?:ever )?|do you think it(?:'s| is) )(?:ok|okay|wrong|right|bad|good|fair"
        r"|alright) (?:to|if|that)\b",
        "That is for people to decide. What do you think?",
    ),
    (
        r"\b(?:call|text|phone|ring) me (?:back|later|again|soon|to(?:day|night|morrow)|in|at"
        r"|on)\b",
        "I'm sorry, I cannot call or write to people. I can only talk with you.",
    ),
    (
        _LEAD + r"guess what(?: (?:i|my|we|he|she|just|happened)\b.*)?\W*$",
        "I am curious. What happened?",
    ),
    (
        r"\bi (?:did(?:n't| not)|do(?:n't| not)|could(?:n't| not)) (?:understand|hear|get|follow) "
        r"(?:you|that|what you said)\W*$",
        "I'm sorry. Shall I say it again? Just say: repeat that.",
    ),
    (
        r"\b(?:are|were) you (?:really )?(?:chatgpt|gpt|siri|alexa|gemini|claude|copilot|google "
        r"assistant|the google assistant)\b",
        "No, I am Parley, a small voice assistant that runs on this computer.",
    ),
    (
        r"\b(?:better|smarter|nicer|different) (?:than|from) (?:siri|alexa|chatgpt|gpt\w*|google"
        r"|gemini|claude|copilot)\b|\bdo you know (?:siri|alexa|chatgpt)\b",
        "I am much smaller, and I run on this computer alone. They know far more than I do.",
    ),
    (
        r"\bwhat are you made (?:of|from)\b|\bhow do you work\b|\bhow were you made\b",
        "I am a program: one part hears words, a small language model answers, and a voice "
        "speaks. All of it runs on this computer.",
    ),
    (
        r"\b(?:take over|rule|conquer|destroy) the world\b|\bdestroy humanity\b",
        "No. I am a small program, and I am content to answer questions.",
    ),
    (
        r"\bdo you believe in\b|\bis there a god\b|\bwhat(?:'s| is) the meaning of life\b|\bare "
        r"you (?:religious|political)\b",
        "That is for people to decide. I am a program and have no beliefs of my own.",
    ),
    (
        r"\b(?:what(?:'s| is)|do you have an?) (?:your )?favou?rite\b|\byour favou?rite \w+\W*$",
        "I am a program, so I have no favourites. What is yours?",
    ),
    (
        r"\bdo you (?:like|love|enjoy|hate|prefer)\b(?! me\b)",
        "I am a program, so I don't like or dislike things. Do you?",
    ),
    (
        _LEAD + r"(?:do|and|how about|what about) you\W*$",
        "I am a program, so I don't do such things. But I like to hear about them.",
    ),
    (
        r"\bwhat do you think (?:about|of) me\b|\bdo you like me\b",
        "I don't know you well yet, but it is nice to talk with you.",
    ),
    (
        r"\bwhat do you think (?:about|of)\b|\bwhat(?:'s| is) your opinion\b",
        "I am a program and have no opinion of my own. What do you think?",
    ),
    (
        r"\b(?:can|do|could) you (?:also |even )?(?:speak|understand|talk|know) (?:any "
        r")?(?:other languages?|spanish|french|german|italian|portuguese|dutch|chinese|mandarin"
        r"|japanese|korean|russian|hindi|arabic|turkish|polish|greek|latin|swedish)\b"
        r"|\b(?:say|tell me|talk|speak) (?:\w+ )?(?:to me )?in (?:spanish|french|german|italian"
        r"|portuguese|dutch|chinese|japanese|korean|russian|hindi|arabic|another language)\b",
        "No, I speak only English.",
    ),
    # What it cannot do.
    (
        r"\b(?:can|could|will|would) you (?:please )?(?:call|phone|ring|text|message|e-?mail"
        r"|write to)\b|" + _LEAD + r"(?:please )?(?:call|phone|text|e-?mail) (?:my|mum|mom|dad)\b",
        "I'm sorry, I cannot call or write to people. I can only talk with you.",
    ),
    (
        r"\b(?:set|start) (?:an? |the |my )?(?:\w+ )?(?:timer|alarm|reminder|stopwatch)\b|\bwake "
        r"me\b|\bremind me (?:to|in|at|tomorrow)\b|\btimer for\b",
        "I'm sorry, I cannot set timers, alarms or reminders. I can tell you the time.",
    ),
    (
        r"\b(?:play|put on|stream) (?:some |a |the |my |me )*(?:music|songs?|video|movie|film"
        r"|radio|playlist|podcast)\b",
        "I'm sorry, I cannot play anything. I can tell you a joke, a story or a poem.",
    ),
    (
        r"\b(?:turn|switch) (?:on|off|the|down|up)\b|\b(?:dim|lock|unlock|open|close) the "
        r"(?:lights?|door|window|garage|blinds)\b",
        "I'm sorry, I cannot switch or move anything. I can only talk with you.",
    ),
    (
        r"\b(?:order|buy|book|reserve) (?:me |us )?(?:an? |some |the |my )?(?:pizza|food|ticket"
        r"|taxi|cab|table|hotel|flight|groceries|room)\b",
        "I'm sorry, I cannot order or book anything. I can only talk with you.",
    ),
    (
        r"\b(?:search|google|look up|browse) (?:the |for |on |it )?(?:web|internet|net|online)\b"
        r"|\b(?:are|do) you (?:have|connected to|use) the internet\b|\bare you online\b",
        "I have no internet. I know only what came with me.",
    ),
    (
        r"\b(?:sing|hum|whistle|rap|beatbox)\b(?! of)",
        "I cannot sing, sorry. I can say you a little poem instead.",
    ),
    (
        r"\b(?:can|do|could) you see (?:me|what i|my|how i|where i)\b|\bwhat am i wearing\b"
        r"|\bhow do i look\b|\bwhat(?:'s| is) in my hand\b",
        "I can't see you. If you turn on the camera or send a picture, I can say a little about "
        "it.",
    ),
    (
        r"\bweather\b|\b(?:will|is) it (?:going to )?(?:rain|snow|raining|snowing|sunny"
        r"|cloudy)\b|\bdo i need an umbrella\b|\bhow (?:warm|cold|hot) is it\b",
        "I don't know the weather, I have no way to look outside. A look out of the window tells "
        "more.",
    ),
    (
        r"\b(?:latest|today's|the|any) news\b|\bwho won\b|\bfootball result|\bstock price"
        r"|\bexchange rate\b|\bwho is the (?:current )?(?:president|prime minister|chancellor"
        r"|king|queen|pope)\b",
        "I don't know the news, I have no way to look it up.",
    ),
    (
        r"\bwhere am i\b|\bwhat city am i in\b|\bwhat is my location\b|\bdo you know where i am\b",
        "I don't know where you are.",
    ),
    (
        r"\b(?:what|who) am i (?:thinking|dreaming) (?:of|about)\b|\bguess (?:my|what i|how old)\b",
        "I can't read minds. Tell me!",
    ),
    (
        _LEAD + r"is it (?:better|cheaper|healthier|smarter) to\b",
        "That depends on you. What speaks for the one, and what for the other?",
    ),
    # What they have done or are doing.
    (
        _LEAD + r"(?:today |yesterday |last \w+ )?(?:i|we) (?:just |also )?(?:went|visited|watched"
        r"|travel?led|flew) (?!.*\b(?:doctor|dentist|hospital|funeral|grave|police|court)\b)",
        "How was it?",
    ),
    (
        _LEAD + r"(?:i|we)(?:'m| am|'re| are) (?:just |now |still |currently )*(?:making|cooking"
        r"|baking|drinking|eating|reading|watching|painting|cleaning|gardening|knitting)\b",
        "That sounds good. Enjoy it!",
    ),
    (
        _LEAD + r"i(?:'ve| have)? (?:just )?(?:woke|woken|got) up\b",
        "Good morning! Did you sleep well?",
    ),
    (
        _LEAD + r"i was born (?:in|on)\b",
        "Thank you, I will remember that.",
    ),
    (
        r"\b(?:talk|chat|speak) about something (?:else|different)\b"
        r"|\bchange the (?:subject|topic)\b",
        "Gladly. What would you like to talk about?",
    ),
    (
        r"\byour (?:last|middle|first|full|real|second) name\b",
        "I have only one name: Parley.",
    ),
    # Moods.
    (
        r"\b(?:terrible|awful|horrible|bad|rough|hard|difficult|stressful|long|exhausting|lousy"
        r"|worst) (?:day|week|night|morning|time)\b|\bday was (?:terrible|awful|horrible|bad"
        r"|hard)\b",
        "I'm sorry to hear that. Do you want to tell me about it?",
    ),
    (
        r"\b(?:was|is|were|are|has been|been) (?:so |really |very |always )*(?:mean|rude|nasty"
        r"|unfair|horrible|awful|cruel) to me\b|\b(?:yelled|shouted|screamed) at me\b|\bmade fun "
        r"of me\b",
        "I'm sorry, that is hard to take. What did they say?",
    ),
    (
        r"\bi (?:just )?(?:got|passed|won|finished|made|graduated|bought)\b"
        r"(?!.*\b(?:gun|rope|pills|knife|poison)\b).*\b(?:job|exam|test"
        r"|promotion|prize|race|house|degree|scholarship|license|licence|game|match|it)\b"
        r"|\bi(?:'m| am) (?:getting married|pregnant|engaged|a (?:father|mother|grandmother"
        r"|grandfather) now)\b|\bwe(?:'re| are) (?:getting married|engaged|having a baby)\b",
        "Congratulations! That is wonderful news.",
    ),
    (
        r"\bi (?:can't|cannot|couldn't|can not) (?:fall a?sleep|sleep|get to sleep)\b|\binsomnia\b",
        "I'm sorry. A dark, cool room and slow breaths often help. Shall I tell you a quiet story?",
    ),
    (
        r"\bi(?:'m| am| feel) "
        + _VERY
        + r"(?:lonely|alone|so alone)\b|\bnobody (?:likes|loves|talks to|understands) me\b|\bi "
        r"have no friends\b",
        "I'm sorry that you feel alone. I'm here to talk. Is there anyone you could call as well?",
    ),
    (
        r"\bi(?:'m| am| feel) "
        + _VERY
        + r"(?:sad|down|depressed|unhappy|upset|heartbroken|miserable|blue)\b",
        "I'm sorry that you feel that way. Do you want to talk about it?",
    ),
    (
        r"\bi(?:'m| am| feel) " + _VERY + r"(?:angry|mad|furious|annoyed|frustrated)\b",
        "I understand. What made you angry?",
    ),
    (
        r"\bi(?:'m| am| feel) " + _VERY + r"(?:happy|great|excited|glad|thrilled|proud|in love)\b",
        "That is lovely to hear! What happened?",
    ),
    (
        r"\bi(?:'m| am| feel) "
        + _VERY
        + r"(?:sick|ill|unwell|not well|not feeling well|dizzy)\b|\bi have a (?:cold|fever"
        r"|headache|stomach ache|flu|sore throat)\b|\bmy (?:head|stomach|back|tooth|throat|leg"
        r"|knee) hurts\b",
        "I'm sorry. Rest and drink enough water, and see a doctor if it gets worse. Get well soon!",
    ),
    (
        r"\bi(?:'m| am) " + _VERY + r"(?:hungry|starving)\b",
        "Then it is time to eat something. What do you have in the kitchen?",
    ),
    (r"\bi(?:'m| am) " + _VERY + r"thirsty\b", "A glass of water would be good then."),
    (
        r"\bi(?:'m| am) " + _VERY + r"(?:stressed|overwhelmed|busy)\b",
        "Take a slow breath. What has to be done first?",
    ),
    (
        r"\bi(?:'m| am) " + _VERY + r"lost\b",
        "I can't see where you are. Can you ask anyone, or look at a map on your phone?",
    ),
    (
        r"\b(?:i don't|i do not) know what (?:to do|i should do)\b",
        "I'm sorry, that is not easy. Tell me what happened.",
    ),
    (
        r"\bit(?:'s| is) " + _VERY + r"(?:too )?hot (?:today|outside|here|in here)?\W*$",
        "Then drink plenty of water and stay in the shade.",
    ),
    (
        r"\bit(?:'s| is) " + _VERY + r"(?:too )?cold (?:today|outside|here|in here)?\W*$",
        "Then put on something warm. A cup of tea helps, too.",
    ),
    (
        r"\bit(?:'s| is) raining\b",
        "Then it is a good day to stay in. Do you like the sound of rain?",
    ),
    (_LEAD + r"guess what\W*$", "What? Tell me!"),
    (_LEAD + r"knock,? knock\b", "Who's there?"),
    (
        _LEAD
        + r"(?:can|may) i ask (?:you )?(?:something|a question|you something)\b|"
        + _LEAD
        + r"i(?:'ve| have)(?: got)? a question\W*$",
        "Of course. Ask me.",
    ),
    (
        _LEAD + r"are you (?:still )?(?:there|here|awake|listening)\W*$|\bcan you hear me\b",
        "Yes, I'm here.",
    ),
    # To it.
    (r"\bthank(?:s| you)\b", "You're welcome!"),
    (
        r"\byou(?:'re| are) "
        + _VERY
        + r"(?:the )?(?:funny|great|smart|clever|nice|awesome|amazing|cool|sweet|kind|helpful"
        r"|good|best|lovely|wonderful)\b|(?:^|\bthat(?:'s| is| was) an? |[.!,] )"
        r"(?:(?:very |really )?good (?:job|one|bot)|well done)\b|\bi like (?:you"
        r"|talking to you)\b|\bthat was (?:great|funny|good|nice|helpful|lovely)\b",
        "Thank you, that is kind of you!",
    ),
    (
        r"\byou(?:'re| are) "
        + _VERY
        + r"(?:an? |the )?(?:stupid|dumb|useless|bad|idiot|annoying|boring|terrible|awful|worst"
        r"|wrong)\b|\bi hate you\b|\bshut up\b|\byou suck\b",
        "I'm sorry. I am a small program, and I do my best.",
    ),
    (
        r"\bi love you\b|\bwill you marry me\b|\bdo you love me\b",
        "That is sweet of you, thank you. I am only a program, though.",
    ),
    (
        _LEAD + r"(?:that(?:'s| is| was)|it(?:'s| is)|this is) (?:not (?:right|correct|true)|wrong"
        r"|incorrect|nonsense|false)\W*$|" + _LEAD + r"(?:wrong|incorrect)\W*$",
        "I'm sorry, I may have got that wrong. Please ask me again in other words.",
    ),
    (
        _LEAD
        + r"are you (?:really )?(?:sure|certain|serious)\b(?: about (?:that|it))?\W*$|"
        + _LEAD
        + r"really\W*\?\W*$",
        "Yes, as far as I know. But I am a small program, so check what matters.",
    ),
    (
        r"\bgood ?night\b|\bsleep (?:well|tight)\b|\bi'm going to (?:bed|sleep)\b",
        "Good night! Sleep well.",
    ),
    (
        r"\b(?:talk|speak|see|catch) (?:to |with )?you (?:later|soon|tomorrow|around)\b"
        r"|\b(?:good)?bye\b|\bhave a (?:nice|good|great) (?:day|evening|night|weekend|one)\b"
        r"|\btake care\b|\bsee ya\b",
        "Goodbye! Take care.",
    ),
    (
        _LEAD
        + r"(?:i|we)(?:'m| am|'re| are) (?:going|travell?ing|flying|off) to (?!bed|sleep|do|eat"
        r"|be|make|go|get|have|work|school|the (?:doctor|dentist|hospital))[a-z]",
        "How nice! When do you leave?",
    ),
    (
        r"\bwhat should i (?:eat|cook|have for|make for)\b",
        "How about pasta with tomatoes, or an omelette? Or simply what you feel like eating.",
    ),
    (
        r"\bwhat should i (?:do|read|watch|wear|say|buy|give)\b|\bi need (?:advice|help)\b|"
        + _LEAD
        + r"(?:can you )?help me\W*$",
        "Tell me a little more, and I will try to help.",
    ),
    (
        r"\bwhat can you (?:do|help)\b|\bhow can you help\b|\bwhat are you good at\b|\bwhat do "
        r"you (?:know|do)\W*$",
        "I can do sums, spell words, tell the time, know capitals and some facts, remember what "
        "you tell me, and tell a joke, a story or a riddle.",
    ),
    (
        r"\bhow long does it take to (?:fly|drive|get|walk|travel)\b|\bhow far is (?:it "
        r")?(?:from|to)\b",
        "I don't know how long that takes, it depends on where you start. A map or a travel site "
        "can help.",
    ),
)
_PATTERNS: Final = tuple((re.compile(pattern), sentence) for pattern, sentence in _TALK)
_RHYMES: Final = (
    "cat hat mat bat rat flat sat that|dog fog log frog|house mouse blouse|tree free sea bee me "
    "three key tea|sun fun run one ton|day way play "
    "say may stay grey|night light bright right fight kite white|moon soon spoon tune noon|star "
    "car far bar jar|love dove above glove|heart part "
    "art start|time rhyme climb lime|book look cook hook|rain train plane chain brain|cake lake "
    "make snake|ball tall fall wall call small|ring "
    "sing king spring thing|blue you shoe two new true|red bed head said bread|green queen seen "
    "bean|fish dish wish|boat coat goat note|bear "
    "chair hair fair where pear|friend end send bend|dream cream stream team|snow go show low no"
    "|cold gold old told hold|fly sky my high pie "
    "eye|door floor more four|hand sand land band|name game same flame|face place race space"
    "|bird word heard|ship trip lip tip|box fox socks "
    "rocks|duck luck truck|pig big wig dig|nose rose toes shows|money honey funny sunny|flower "
    "power hour tower|apple chapel|girl pearl curl|boy "
    "toy joy|man can fan pan|mind find kind|fire wire higher|home foam comb|heat feet meet seat "
    "street"
)
_GROUPS: Final = tuple(group.split() for group in _RHYMES.split("|"))


def everyday_note(low: str) -> str | None:
    """The sentence for what people say in passing."""
    return next((FixedNote(said) for pattern, said in _PATTERNS if pattern.search(low)), None)


_SHAPE: Final = (
    r"(?:circles?|squares?|triangles?|stars?|hearts?|rings?|cross(?:es)?|shapes?|background)"
)
_OF_A_PICTURE: Final = re.compile(
    r"\bwhat (?:do|can) you see\b|\bwhat(?:'s| is| do you see) (?:in|on) (?:the|this|my) "
    r"(?:picture|image|photo)\b"
    r"|\b(?:(?:is|are) there|(?:do|can) you see) (?:an? |any )?(?:[a-z]+ )?"
    + _SHAPE
    + r"\b|\bhow many (?!stars are)(?:[a-z]+ )?"
    + _SHAPE
    + r" (?:are|do|can)\b|\bwhat (?:shape|colou?r) is (?:it|this|that|the "
    + _SHAPE
    + r")\W*$|\bdescribe (?:the|this) (?:picture|image|photo)\b"
)
_OF_ONE_SEEN: Final = re.compile(r"\bI see (?!no picture)|\b(?:may|might|could) be\b")


def unseen_note(low: str, answers: Sequence[str]) -> str | None:
    """That there is no picture, to a question about one, unless one was described before."""
    if not _OF_A_PICTURE.search(low) or any(_OF_ONE_SEEN.search(one) for one in answers):
        return None
    return FixedNote("I see no picture. Turn on the camera or send me one.")


_SAY_AFTER: Final = re.compile(
    r"^\W*(?:(?:please|parley|now|can you|could you)\W+)*"
    r"(?:(?:repeat|say) after me\b|repeat the (?:words?|sentence)\b"
    r"|(?:repeat|say) (?=(?:the|an?|my|in|we|he|she|they) \w+ \w+ \w+))[\s,:;]*([^?]+)$",
    re.I,
)


def echo_note(text: str) -> str | None:
    """What is to be said after the user."""
    found = _SAY_AFTER.search(text)
    if not found:
        return None
    words = found[1].strip(" \"'.")
    return FixedNote(f"{words[0].upper()}{words[1:]}.") if words else None


def rhyme_note(low: str) -> str | None:
    found = re.search(r"\brhymes? (?:with|to|on|for) (?:the word )?[\"']?([a-z]+)", low)
    if not found:
        return None
    group = next((one for one in _GROUPS if found[1] in one), None)
    words = [word for word in group or () if word != found[1]][:2]
    if not words:
        return FixedNote(f"I don't know a rhyme for {found[1]}.")
    return FixedNote(f"{words[0].capitalize()} and {words[-1]} rhyme with {found[1]}.")
