"""Words that decide about turns, per language; the only place for them.

`UNFINISHED`: words after which a sentence continues, in lower case and without punctuation.
`COMMANDS` stop an answer, `ACKNOWLEDGEMENTS` (as written) and `ACKNOWLEDGEMENT_SOUNDS` (as
spoken) do not. Languages: English, Spanish, French, German, Chinese, Hindi; as written also
Italian and Russian, whose sounds make the matcher worse at English.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

UNFINISHED: Final[dict[str, str]] = {
    "en": "and|or|but|because|so|the|a|an|of|to|in|on|at|with|for|from|if|that|my|your|our|their|"
    "his|is|are|was|were|will|would|could|should|can|what|what's|how|why|who|where|when|which|i|"
    "i'm|we|you|they|um|uh|er|hmm|like|about|than|plus|minus|times|can you|could you|would you|"
    "tell me|please tell me|into|by|as|until|since|although|unless|it's|that's|there's|i'd|i'll|"
    "i've|he's|she's|we're|they're|very|every|each|another|such as|for example|let me see|"
    "let me think|dot|underscore|slash|dash|hyphen",
    "es": "y|o|pero|porque|el|la|los|las|un|una|de|del|a|en|con|por|para|que|si|mi|tu|su|es|son|"
    "cómo|cuándo|dónde|eh|pues|espera|un momento",
    "fr": "et|ou|mais|parce que|le|la|les|un|une|des|de|du|à|en|avec|pour|par|que|si|mon|ma|mes|"
    "ton|votre|est|sont|je|tu|vous|nous|euh|comment|où|quand|attends|attendez|un moment",
    "de": "und|oder|aber|weil|der|die|das|den|dem|ein|eine|einen|von|zu|in|mit|für|auf|dass|wenn|"
    "mein|meine|dein|ihr|ist|sind|ich|wir|äh|ähm|wie|wo|wann|warte|moment",
    "it": "e|o|ma|perché|perchè|il|lo|la|i|gli|le|un|una|uno|di|del|della|a|in|con|per|che|mio|tuo|"
    "è|sono|quando|dove|vorrei|ehm|aspetta|un attimo|un momento",
    "ru": "и|или|но|а|потому что|если|что|в|на|с|к|для|от|из|мой|моя|моё|твой|как|когда|где|хочу|"
    "ну|э|эм|подожди|минутку",
    "zh": "和|或者|但是|因为|所以|的|在|跟|如果|我|你|我想|请|呃|嗯|那个|等等|等一下",
    "hi": "और|या|लेकिन|क्योंकि|कि|अगर|मेरा|मेरी|आपका|का|की|के|में|से|को|पर|मैं|आप|रुको|एक मिनट",
}

COMMANDS: Final[dict[str, str]] = {
    "en": "stop: S T AA P, S T AO P|stop it: S T AA P IH T|stop that: S T AA P DH AE T|no: N OW|"
    "no no: N OW N OW|no stop: N OW S T AA P|nope: N OW P|wait: W EY T|hang on: HH AE NG AA N|"
    "wait a second: W EY T AH S EH K AH N D|wait a minute: W EY T AH M IH N AH T|"
    "hold on: HH OW L D AA N, HH OW L D AO N|one moment: W AH N M OW M AH N T|"
    "just a moment: JH AH S T AH M OW M AH N T|sorry: S AA R IY|quiet: K W AY AH T|"
    "excuse me: IH K S K Y UW Z M IY, EH K S K Y UW Z M IY|be quiet: B IY K W AY AH T|"
    "shut up: SH AH T AH P|enough: IH N AH F|that's enough: DH AE T S IH N AH F|pause: P AO Z|"
    "thank you: TH AE NG K Y UW|cancel: K AE N S AH L|never mind: N EH V ER M AY N D|hey: HH EY|"
    "forget it: F ER G EH T IH T|hello: HH AH L OW|listen: L IH S AH N|"
    "actually: AE K CH AH L IY, AE K SH AH L IY",
    "es": "para: P AA R AA|basta: B AA S T AA|espera: EH S P EH R AA|perdón: P EH R D OW N|"
    "un momento: UW N M OW M EH N T OW|silencio: S IY L EH N S IY OW|cállate: K AA Y AA T EY|"
    "oye: OY EY",
    "fr": "arrête: AA R EH T|non: N AO N|attends: AA T AA N|attendez: AA T AA N D EY|"
    "un moment: AH N M OW M AA N|pardon: P AA R D AO N|ça suffit: S AA S UH F IY",
    "de": "halt: HH AA L T|nein: N AY N|warte: V AA R T AH|moment: M OW M EH N T|ruhe: R UW AH|"
    "genug: G AH N UH K|hör auf: HH ER AW F",
    "zh": "停: T IH NG|停下: T IH NG SH Y AA|不是: B UW SH ER|不要: B UW Y AW|"
    "等一下: D AH NG IY SH Y AA|安静: AA N JH IH NG|够了: G OW L AH",
    "hi": "रुको: R UH K OW|रुकिए: R UH K IY Y EH|बस: B AH S|नहीं: N AH HH IY|"
    "एक मिनट: EH K M IH N AH T|चुप: CH UH P|सुनो: S UH N OW",
}
"""Spellings and, after a colon, pronunciations in the phones of the English recogniser (ARPAbet);
other languages are approximated."""

ACKNOWLEDGEMENT_SOUNDS: Final[dict[str, str]] = {
    "en": "M HH M|AH M HH M|M HH AH M|AH M HH AH M|EH M HH AH M|M M|M M HH M|HH M|HH AH M|"
    "HH AH M M|AH HH AH|AH HH AH HH|AH N HH AH|AA HH AA|AA|OW|AH|Y AE|Y AE AH|Y EH|Y EH AH|"
    "Y EH S|Y EH P|Y AH P|OW K EY|R AY T|AO L R AY T|AO R AY T|SH UH R|SH ER|SH AO R|AY S IY|"
    "G AA T IH T|G R EY T|G UH D|N AY S|K UW L|F AY N|T R UW|IH G Z AE K T L IY|IH N D IY D|"
    "AH V K AO R S|R IH L IY|W AW|OW OW K EY|OW Y AE|Y AE Y AE|DH AE T S R AY T|M EY K S S EH N S",
    "es": "S IY|B AA L EY|K L AA R OW|Y AA|B Y EH N|B W EH N OW|AA HH AA|EH N T Y EH N D OW",
    "fr": "W IY|W EH|D AA K AO R|B Y EH N|B Y AE N|ZH AH V W AA|V W AA L AA",
    "de": "Y AA|Y AA Y AA|G UW T|G AH N AW|SH T IH M T|R IH CH T IH K|K L AA R|AA K Z OW|SH ER N",
    "zh": "AH NG|D W EY|D W EY D W EY|SH ER|SH ER D AH|HH AW|HH AW D AH|SH IH NG|M IH NG B AY",
    "hi": "HH AA|HH AA N|HH AH M|AH CH AA|TH IY K|TH IY K HH EY|S AH HH IY|JH IY|JH IY HH AA",
}

ACKNOWLEDGEMENTS: Final[dict[str, str]] = {
    "en": "mhm|mm|mmm|mm-hmm|m-hm|hm|hmm|uh huh|uh-huh|aha|ah|oh|uh|yeah|yes|yep|yup|okay|ok|"
    "right|all right|alright|sure|i see|got it|i got it|great|good|nice|cool|fine|true|exactly|"
    "correct|indeed|of course|wow|makes sense|interesting|absolutely|definitely|totally|perfect|"
    "lovely|amazing|fair enough|understood|i understand|i see what you mean|gotcha|good to know|"
    "oh really|okay then|alright then|all right then|for sure|mhmm|mm-hm|hm-hm|ha|haha|hahaha|"
    "ha-ha|heh|hehe",
    "es": "sí|si|vale|claro|claro que sí|claro que si|ya|ya veo|bien|bueno|ajá|aja|entiendo|"
    "lo entiendo|entendido|de acuerdo|muy bien|qué bien|que bien|qué bueno|que bueno|perfecto|"
    "por supuesto|genial|exacto|eso es|okey",
    "fr": "oui|ouais|ouai|d'accord|d accord|daccord|bien|ah bon|je vois|je comprends|voilà|voila|"
    "très bien|tres bien|bien sûr|bien sur|parfait|exactement|c'est ça|c'est ca|c'est vrai|super|"
    "ça marche|ca marche|hum|tout à fait|tout a fait",
    "de": "ja|jaja|ach ja|gut|sehr gut|genau|stimmt|richtig|klar|na klar|alles klar|ach so|achso|"
    "schön|schon|verstehe|ich verstehe|verstanden|aha|super|in ordnung|natürlich|naturlich|"
    "jawohl|eben",
    "it": "sì|si|certo|certo che sì|certo che si|certamente|va bene|va benissimo|d'accordo|capito|"
    "ho capito|capisco|giusto|esatto|esattamente|bene|molto bene|benissimo|perfetto|ottimo|già|"
    "chiaro|ecco",
    "ru": "да|да-да|ну да|ага|угу|хорошо|очень хорошо|понятно|всё понятно|понял|поняла|я понял|"
    "я поняла|понимаю|ясно|всё ясно|конечно|ладно|точно|верно|правильно|так|отлично|здорово|окей|"
    "ок|разумеется|м-м|мм|хм",
    "zh": "嗯|嗯嗯|对|对对|对对对|對|是|是的|是啊|没错|沒錯|好|好的|好吧|好啊|行|可以|明白|"
    "明白了|我明白|我明白了|知道了|我知道了|懂了|我懂了|了解|原来如此|原來如此|当然|當然|哦|啊",
    "hi": "हाँ|हां|हा|हूँ|हूं|हम्म|अच्छा|बहुत अच्छा|ओह|ठीक|ठीक है|ठीक हैं|सही|सही है|सच है|जी|जी हाँ|जी हां|बिल्कुल|"
    "बिलकुल|समझ गया|समझ गई|मैं समझ गया|मैं समझ गई|बढ़िया|ओके",
}
"""Spellings. After an interruption by sound that turns out to be one of them, an answer resumes."""

_USUAL: Final = (
    "Mm.|Hmm.|Uh huh.|Oh.|Ah.|Yeah.|Yes.|Okay.|Right.|All right.|Sure.|I see.|Got it.|Of course.|"
    "Great.|Good.|Nice.|That's nice.|Cool.|True.|Exactly.|Wow.|Makes sense.|I understand."
)
USUAL_ACKNOWLEDGEMENTS: Final = _USUAL.split("|")
USUAL_COMMANDS: Final = [
    "Stop.",
    "Wait.",
    "No.",
    "Hold on.",
    "Hang on.",
    "Hey.",
    "Enough.",
    "Shut up.",
]
"""As an English recogniser writes them. What it writes instead is compared with these."""

_GHOSTS: Final = (
    "you|thank you|thanks for watching|thank you for watching|bye|.|the|so|oh|ah|uh|um|hmm|mm|hm|"
    "thanks|i'm sorry|okay"
)
GHOSTS: Final = frozenset(_GHOSTS.split("|"))
"""Words that Whisper writes for noise. Accepted only for audio that is surely speech."""


def _ending(language: str) -> str:
    words = "|".join(re.escape(word) for word in UNFINISHED[language].split("|"))
    before = "" if language == "zh" else r"(?:^|[\s,;:])"
    return f"{before}(?:{words})$"


_UNFINISHED_END: Final = re.compile("|".join(map(_ending, UNFINISHED)))
_UNFINISHED_ENGLISH: Final = re.compile(_ending("en"))
_ENGLISH: Final = re.compile(
    r"\b(?:the|my|your|his|our|their|is|are|were|to|of|and|it|you|that|what|with|for|she|they|this|"
    r"did|i'm|don't|won't|can't)\b"
)
"""Words of no other language: after them, "son", "die" and "ton" are English words."""
_ENDS_NO_QUESTION: Final = re.compile(
    r"\b(?:but|because|if|of|his|is|are|was|were|will|would|could|should|can|times|er|hmm)$"
)
_DEMANDS: Final = re.compile(
    r"\w (?:and|or|the|a|an|than|my|your|our|their|plus|minus|divided by|multiplied by|um|uh)$"
    r"|\b(?:is|are|was|were|what's) (?:the(?: \w+){1,2} of|[\w-]+ times)$"
    r"|^(?:(?:oh|no|okay|sorry|but|please) )*(?:(?:wait|hold on|hang on)(?: (?:a|one|just a) "
    r"(?:moment|minute|second|sec))?|(?:just )?(?:a|one) (?:moment|minute|second|sec))(?: please)?$"
)
"""Something follows these, regardless of the punctuation: who says "wait" wants to speak."""
_FINISHED: Final = re.compile(
    r"^\W*(?:what|why|who|how|where|when|so|what's that|how so|i am|i do)\W*$"
    r"|\b(?:thank|see|love|miss|bless|about|are|of|for|with|to|help) you\W*$"
    # The TV is on; turn the light on; come in; I hope so; tell me who they are.
    r"|\b(?:is|are|was|were|it|them|come|go|going|move|carry|log|sign) (?:on|in)\W*$"
    r"|\b(?:turn|switch|put|leave|keep|turned|switched|left)(?: [\w']+){1,4} (?:on|in)\W*$"
    r"|\b(?:think|hope|guess|say|said|believe|afraid) so\W*$"
    r"|\b(?:what|who|where|how|which)(?! (?:is|are|was|were|do|does|did|can|will|would)\b)"
    r"(?: [\w']+){1,5} (?:is|are|was|were|for|from|with|about|like|of)\W*$"
    # Thank you; it is me; I know; I am here.
    r"|(?:谢谢|爱|想|等|喜欢|认识|是)[你我]\W*$|(?:[是好真对行会有]|知道|可以|是[你我他她])的\W*$"
    r"|[不还你我他她]在\W*$",
    re.I,
)
"""A sentence may also continue after these: how they are said decides."""
_LISTED: Final = re.compile(r"[A-Za-z\d']*[a-z']{2,}|[.!?]\s|[+*/=:]")
"""Text before the last numbers and letters."""
_DATED: Final = re.compile(r"\W*\d{1,2}\W+(?:1[89]|20)\d\d\W*$")
_DIGITS: Final = re.compile(
    r"(?:\b(?:zero|oh|one|two|three|four|five|six|seven|eight|nine|double|triple)\b\W*){3,}$", re.I
)


def is_unfinished(text: str) -> bool:
    """True if the user is likely to continue after this text, judged by its last words."""
    said = text.strip()
    if _DEMANDS.search(plain(said)):
        return True
    if said.endswith(("?", "!", "？", "！")) or _FINISHED.search(said):
        return False
    words = plain(said)
    ending = _UNFINISHED_ENGLISH if _ENGLISH.search(words) else _UNFINISHED_END
    return said.endswith(("...", "…", ",", "-", "，")) or bool(ending.search(words))


def is_question(text: str) -> bool:
    """True if the text, which is not unfinished, is surely a question: three words or more, or four
    signs of a language without spaces."""
    words = plain(text)
    is_long = len(words.split()) > 2 or bool(re.search("[\u3040-\u9fff]{4}", words))
    is_asked = text.strip().endswith(("?", "？")) and is_long
    return is_asked and not _ENDS_NO_QUESTION.search(words)


def is_listing(text: str) -> bool:
    """True if the text ends in a number said digit by digit, or in letters that are spelled."""
    last = _LISTED.split(text)[-1]
    if _DATED.match(last):
        return False
    letters, numbers = re.findall(r"\b[A-Z]\b", last), re.findall(r"\d+", last)
    is_number = len(numbers) > 1 or len("".join(numbers)) > 4
    return is_number or len(letters) > 1 or bool(_DIGITS.search(text))


def command_sounds() -> Iterator[str]:
    """Pronunciations of all `COMMANDS`."""
    for command in "|".join(COMMANDS.values()).split("|"):
        yield from command.partition(": ")[2].split(", ")


_ACKNOWLEDGEMENTS: Final = frozenset("|".join(ACKNOWLEDGEMENTS.values()).split("|"))
_BEFORE_ACKNOWLEDGEMENTS: Final = {"that's", "that", "very", "so", "how", "sounds"}
_LONGEST_WORDS: Final = max(len(each.split()) for each in _ACKNOWLEDGEMENTS)


def is_acknowledgement(text: str) -> bool:
    """True if the text consists of acknowledgements, such as "Oh, I see."; "Really?" is a
    question."""
    words = [] if text.rstrip().endswith("?") else plain(text).split()
    # Positions up to which the words precede an acknowledgement, and up to which they are some. A
    # pattern would try every division of "yeah yeah yeah".
    opened, said = {0}, set[int]()
    for start in range(len(words)):
        for end in range(start + 1, min(start + _LONGEST_WORDS, len(words)) + 1):
            part = " ".join(words[start:end])
            if start in opened | said and part in _BEFORE_ACKNOWLEDGEMENTS:
                opened.add(end)
            if start in opened | said and part in _ACKNOWLEDGEMENTS:
                said.add(end)
    return len(words) in said


def plain(text: str) -> str:
    """Lower case, without punctuation around and between words."""
    lower = unicodedata.normalize("NFC", text).lower()
    return " ".join("".join(sign if _is_word_sign(sign) else " " for sign in lower).split())


def _is_word_sign(sign: str) -> bool:
    # Vowel signs of Devanagari are marks, not letters.
    return sign.isalnum() or sign in "'-" or unicodedata.category(sign).startswith("M")
