"""Words that decide about turns, per language: this is the one place that has them.

`UNFINISHED`: words after which a sentence goes on. `COMMANDS` stop an answer, `ACKNOWLEDGEMENTS` do
not. Languages: English, Spanish, French, German, Chinese, Hindi. Lower case, without punctuation.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

UNFINISHED: Final[dict[str, str]] = {
    "en": "and|or|but|because|so|the|a|an|of|to|in|on|at|with|for|from|if|that|my|your|our|their|"
    "his|is|are|was|were|will|would|could|should|can|what|what's|how|why|who|where|when|which|i|"
    "i'm|we|you|they|um|uh|er|hmm|like|about|than|plus|minus|times|can you|could you|would you|"
    "tell me|please tell me",
    "es": "y|o|pero|porque|el|la|los|las|un|una|de|del|a|en|con|por|para|que|si|mi|tu|su|es|son|"
    "cómo|cuándo|dónde|eh|pues",
    "fr": "et|ou|mais|parce que|le|la|les|un|une|des|de|du|à|en|avec|pour|par|que|si|mon|ma|mes|"
    "ton|votre|est|sont|je|tu|vous|nous|euh|comment|où|quand",
    "de": "und|oder|aber|weil|der|die|das|den|dem|ein|eine|einen|von|zu|in|mit|für|auf|dass|wenn|"
    "mein|meine|dein|ihr|ist|sind|ich|wir|äh|ähm|wie|wo|wann",
    "zh": "和|或者|但是|因为|所以|的|在|跟|如果|我|你|我想|请|呃|嗯|那个",
    "hi": "और|या|लेकिन|क्योंकि|कि|अगर|मेरा|मेरी|आपका|का|की|के|में|से|को|पर|मैं|आप",
}

COMMANDS: Final[dict[str, str]] = {
    "en": "stop|stop it|stop that|stop please|please stop|no|no no|no stop|nope|wait|wait a second|"
    "wait a minute|wait a moment|hold on|hang on|hold it|one moment|just a moment|just a second|"
    "excuse me|sorry|be quiet|quiet|silence|shut up|hush|enough|that's enough|"
    "that's enough thank you|thank you that's enough|pause|cancel|never mind|forget it|hey|hello|"
    "listen|actually|but|what",
    "es": "para|basta|no|espera|espere|un momento|un segundo|perdón|perdona|disculpa|silencio|"
    "cállate|ya basta|cancela|oye|escucha",
    "fr": "stop|arrête|arrêtez|non|attends|attendez|un moment|une seconde|pardon|excusez-moi|"
    "silence|tais-toi|ça suffit|annule|écoute",
    "de": "stopp|halt|nein|warte|warten sie|moment|einen moment|sekunde|entschuldigung|ruhe|"
    "sei still|genug|das reicht|abbrechen|hör auf|hör zu|pause",
    "zh": "停|停下|停一下|不|不是|不要|等一下|等等|等会儿|打断一下|对不起|安静|够了|别说了|取消|喂",
    "hi": "रुको|रुकिए|बस|नहीं|एक मिनट|एक सेकंड|माफ़ कीजिए|चुप|चुप रहो|सुनो|सुनिए|ठहरो|बंद करो",
}

ACKNOWLEDGEMENTS: Final[dict[str, str]] = {
    "en": "mhm|mm|mmm|hm|hmm|uh huh|aha|ah|oh|uh|yeah|yes|yep|yup|okay|ok|right|all right|alright|"
    "sure|i see|got it|great|good|nice|cool|fine|true|exactly|indeed|of course|really|wow|"
    "interesting|oh okay|oh yeah|yeah yeah|that's right|makes sense",
    "es": "ajá|sí|vale|claro|ya|bien|muy bien|bueno|entiendo|exacto|de acuerdo|mm|mhm|ah",
    "fr": "mhm|mm|oui|ouais|d'accord|ok|bien|très bien|je vois|exact|bien sûr|ah|ah oui|voilà",
    "de": "mhm|mm|ja|jaja|okay|gut|genau|stimmt|richtig|klar|verstehe|ach so|aha|schön|alles klar",
    "zh": "嗯|嗯嗯|哦|啊|对|对对|是|是的|好|好的|行|明白|知道了|没错|原来如此",
    "hi": "हाँ|हां|हम्म|अच्छा|ठीक|ठीक है|सही|जी|जी हाँ|बिल्कुल|समझ गया|समझ गई",
}

_NO_SPACES: Final = ("zh",)


def _ending(language: str) -> str:
    words = "|".join(re.escape(word) for word in UNFINISHED[language].split("|"))
    before = "" if language in _NO_SPACES else r"(?:^|[\s,;:])"
    return f"{before}(?:{words})$"


_UNFINISHED_END: Final = re.compile("|".join(map(_ending, UNFINISHED)))
_FINISHED_SHORT: Final = re.compile(
    r"^\W*(?:what|why|who|how|where|when|so|what's that|how so|i am|i do)\W*$", re.I
)


def is_unfinished(text: str) -> bool:
    """Whether somebody who says this is likely to go on, by its last words."""
    said = text.strip()
    if said.endswith(("?", "!", "？", "！")) or _FINISHED_SHORT.match(said):
        return False
    return said.endswith(("...", "…", ",", "-", "，")) or bool(_UNFINISHED_END.search(plain(said)))


def plain(text: str) -> str:
    """Lower case, without punctuation around and between words."""
    lower = unicodedata.normalize("NFC", text).lower()
    return " ".join("".join(sign if _is_word_sign(sign) else " " for sign in lower).split())


def _is_word_sign(sign: str) -> bool:
    # Vowel signs of Devanagari are marks, not letters.
    return sign.isalnum() or sign in "'-" or unicodedata.category(sign).startswith("M")
