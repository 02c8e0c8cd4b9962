"""Which language a user writes who does not write English, and the reply to them.

By script, else by the commonest words of each language, else because the lexicon does not know most
of its words. A sentence with as many English words as foreign ones is English: "What does bonjour
mean?"
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Final

from parley.models.cascade.notes.said import FixedNote
from parley.models.cascade.transcript import FOREIGN_SPEECH

ONLY_ENGLISH: Final = "I speak only English."
UNDERSTANDS_ENGLISH: Final = "Sorry, I understand only English."
"""Reply to an unknown language."""
_SENTENCES: Final = {
    "es": "Lo siento, solo hablo inglés.",
    "fr": "Désolé, je ne parle qu'anglais.",
    "de": "Entschuldigung, ich spreche nur Englisch.",
    "it": "Mi dispiace, parlo solo inglese.",
    "pt": "Desculpe, eu só falo inglês.",
    "nl": "Sorry, ik spreek alleen Engels.",
    "pl": "Przepraszam, mówię tylko po angielsku.",
    "sv": "Förlåt, jag talar bara engelska.",
    "tr": "Üzgünüm, sadece İngilizce konuşuyorum.",
    "id": "Maaf, saya hanya berbicara bahasa Inggris.",
    "zh": "对不起，我只会说英语。",
    "ja": "すみません、英語しか話せません。",
    "ko": "죄송합니다. 저는 영어만 할 수 있어요.",
    "ru": "Извините, я говорю только по-английски.",
    "uk": "Вибачте, я розмовляю лише англійською.",
    "hi": "माफ़ कीजिए, मैं सिर्फ़ अंग्रेज़ी बोलता हूँ।",
    "ar": "عذرًا، أنا أتحدث الإنجليزية فقط.",
    "fa": "ببخشید، من فقط انگلیسی صحبت می‌کنم.",
    "he": "סליחה, אני מדבר רק אנגלית.",
    "el": "Συγγνώμη, μιλάω μόνο αγγλικά.",
    "th": "ขอโทษค่ะ ฉันพูดได้แต่ภาษาอังกฤษ",
    "bn": "দুঃখিত, আমি শুধু ইংরেজি বলতে পারি।",
    "vi": "Xin lỗi, tôi chỉ nói được tiếng Anh.",
    "da": "Beklager, jeg taler kun engelsk.",
    "cs": "Promiňte, mluvím jen anglicky.",
    "hu": "Sajnálom, csak angolul beszélek.",
    "ro": "Îmi pare rău, vorbesc doar engleză.",
    "fi": "Anteeksi, puhun vain englantia.",
}
_SCRIPTS: Final = (
    ("HIRAGANA", "ja"), ("KATAKANA", "ja"), ("HANGUL", "ko"), ("CJK", "zh"), ("CYRILLIC", "ru"),
    ("DEVANAGARI", "hi"), ("ARABIC", "ar"), ("HEBREW", "he"), ("GREEK", "el"), ("THAI", "th"),
    ("BENGALI", "bn"),
)  # fmt: skip
_WORDS: Final = {

    "es": (
        "el la los las un una de que y en por para con sin es soy eres estás está están cómo como "
        "qué quién dónde cuándo cuánto cuál hola buenos buenas días tardes noches gracias favor "
        "adiós sí yo tú él ella usted mi tu su me te se lo le puedes puedo quiero tengo hay muy "
        "más pero porque también hablas español ayuda ayúdame hace hora tiempo llamas llamo "
        "nombre eso esto dime cuéntame chiste gustaría hablo entiendo inglés"
    ),
    "fr": (
        "le la les un une des du de et est je tu il elle nous vous ils suis es sommes êtes sont "
        "ne pas que qui quoi où quand comment pourquoi quel quelle bonjour bonsoir salut merci "
        "oui non avec sans pour dans sur ce cette mon ma mes ton ta tes son ça va bien très plus "
        "peux pouvez veux voulez parles parlez français aide aider m'aider s'il plaît heure fait "
        "appelles appelle t'appelles j'ai c'est qu'est moi toi raconte blague temps aujourd'hui"
    ),
    "de": (
        "der die das ein eine einen und ist ich du er sie es wir ihr bin bist sind nicht kein was "
        "wer wo wann wie warum welche hallo guten gute morgen tag abend nacht danke bitte ja nein "
        "mit ohne für auf mein meine dein deine mir dir mich dich kannst können kann möchte will "
        "habe hast haben sehr auch aber weil sprichst sprechen deutsch spät uhr heißt heiße geht "
        "gehts hilf helfen erzähl erzähle witz wetter heute zum zur von"
    ),
    "it": (
        "il lo la i gli le un una di che e è sono sei siamo ho hai ha non per con senza come cosa "
        "chi dove quando quanto perché quale ciao buongiorno buonasera grazie prego sì io tu lui "
        "lei noi mio mia tuo tua mi ti si puoi posso voglio vorrei molto anche ma parli parla "
        "italiano aiuto aiutarmi ore ora tempo chiami chiamo fa oggi stai va bene dimmi "
        "raccontami barzelletta"
    ),
    "pt": (
        "o a os as um uma de que e é sou és está estão não por para com sem como quê quem onde "
        "quando quanto qual olá oi bom boa dia tarde noite obrigado obrigada favor tchau sim eu "
        "tu você ele ela meu minha seu sua me te se pode posso quero tenho há muito mais mas "
        "porque também fala falas português ajuda ajudar horas hora tempo chama chamo hoje tudo "
        "bem conte piada são"
    ),
    "nl": (
        "de het een en is ik jij je hij zij wij ben bent zijn niet geen wat wie waar wanneer hoe "
        "waarom welke hallo hoi goedemorgen goedendag goedenavond dank dankjewel alsjeblieft ja "
        "nee met zonder voor op mijn jouw mij jou kun kan kunt kunnen wil heb hebt heeft zeer ook "
        "maar omdat spreek spreekt praat nederlands laat heet gaat het vertel grap weer vandaag "
        "helpen"
    ),
    "pl": (
        "i w na z do nie to jest się co kto gdzie kiedy jak dlaczego cześć dzień dobry dziękuję "
        "proszę tak ja ty on ona mój moja jestem masz mam możesz mówisz polsku pomóc która "
        "godzina"
    ),
    "sv": (
        "och är jag du han hon vi det den en ett inte vad vem var när hur varför hej god morgon "
        "tack ja nej med för min din kan vill har mycket talar svenska klockan heter mår"
    ),
    "tr": (
        "ve bir bu ben sen o biz ne kim nerede zaman nasıl neden merhaba selam günaydın "
        "teşekkürler evet hayır için benim senin misin mısın musun nasılsın adın saat kaç türkçe "
        "konuşuyor"
    ),
    "id": (
        "dan yang di ini itu saya kamu anda dia apa siapa mana kapan bagaimana kenapa halo "
        "selamat pagi malam terima kasih tidak ya dengan untuk bisa mau apakah bahasa jam berapa "
        "nama kabar"
    ),
    "vi": (
        "tôi bạn là và của không có gì ai đâu khi nào thế tại sao xin chào cảm ơn vâng được tiếng "
        "mấy giờ tên khỏe"
    ),
    "da": (
        "hvordan hvad hva hvem hvor hvornår hvorfor er jeg du han hun vi det ikke ikkje og en et "
        "har kan vil god dag morgen tak takk ja nej nei hej hei med for min din meget klokken "
        "hjælpe hjelpe hedder heter taler snakker dansk norsk mig meg"
    ),
    "cs": (
        "je jsem jsi jste co kdo kde kdy jak proč dobrý den ráno ahoj děkuji díky prosím ano ne ty "
        "já mluvíš mluvíte česky můžeš mi pomoct kolik hodin máš dnes jmenuješ se na"
    ),
    "hu": (
        "az egy és nem igen hogy mi ki hol mikor hogyan miért szia jó napot reggelt köszönöm kérem "
        "te én van vagy tudsz beszélsz magyarul óra nekem segíteni hány hívnak"
    ),
    "ro": (
        "este sunt ești ce cine unde când cum cât bună ziua mulțumesc da nu tu eu vorbești "
        "românește poți mă ajuți faci ceasul mai te"
    ),
    "fi": (
        "on ja ei mikä mitä kuka missä milloin miten miksi hei moi terve kiitos hyvää päivää "
        "huomenta sinä minä olet olen puhutko suomea voitko auttaa minua kello kuuluu paljonko nyt"
    ),
}  # fmt: skip
_SETS: Final = {code: frozenset(words.split()) for code, words in _WORDS.items()}
_ENGLISH: Final = frozenset(
    "the a an and is are am was were be been i you he she it we they my your his her our their "
    "me him "
    "us them what who where when why how which this that these those of in on at to for from "
    "with by "
    "about do does did don't can could would should will shall have has had not no yes hello hi "
    "hey "
    "please thanks thank good morning evening night day tell say said speak talk mean means word "
    "words language english spell know name time today there here like want need go get make give "
    "one two three if or but so just very much many more i'm it's what's that's let's okay ok oh "
    "well ha haha "
    "capital called call meet nice sorry love help me man old new".split()
)
_MARKS: Final = re.compile(r"[¿¡ñãõßőűłąęşğıđơưěřůșță]")
_OWN_LETTERS: Final = {
    "es": "¿¡ñ", "pl": "ąćęłńśźż", "tr": "ğış", "vi": "ơưđ", "de": "ß",
    "cs": "ěřů", "hu": "őű", "ro": "șță",
}  # fmt: skip
_MARKED: Final = re.compile(f"[{''.join(_OWN_LETTERS.values())}]")
_LETTERS: Final = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
_VOWEL: Final = re.compile(r"[^\Wbcdfghjklmnpqrstvwxz]")
_GREETINGS: Final = {
    "hola": "es", "gracias": "es", "adiós": "es", "adios": "es", "bonjour": "fr", "bonsoir": "fr",
    "merci": "fr", "salut": "fr", "hallo": "de", "danke": "de", "tschüss": "de", "ciao": "it",
    "buongiorno": "it", "buonasera": "it", "grazie": "it", "olá": "pt", "oi": "pt",
    "obrigado": "pt", "obrigada": "pt", "hoi": "nl", "dankjewel": "nl", "goedemorgen": "nl",
    "hej": "sv", "merhaba": "tr", "cześć": "pl", "dzień": "pl",
}  # fmt: skip


_ELSEWHERE: Final = frozenset(
    "kamusta kumusta magandang dobar kako zdravo hvala moduz kaixo eskerrik shqip faleminderit "
    "habari sawubona sveiki labas ačiū estàs adéu tere aitäh blagodaria molweni halló".split()
)
"""Greetings in languages of which nothing else is known."""


def language_of(text: str) -> str | None:
    """The code of the language of a text; None for English and what is not known."""
    return _by_script(text) or _by_words(text)


def foreign_note(text: str, is_word: Callable[[str], bool] | None = None) -> str | None:
    """That only English is spoken, in the language of the text if it is known, and in English.

    Args:
        is_word: True for a word (in lower case) of the English lexicon; None: there is none.
    """
    code = language_of(text)
    if code is not None:
        return FixedNote(f"{_SENTENCES[code]} {ONLY_ENGLISH}")
    words = _LETTERS.findall(_plain(text))
    is_known = len(words) <= 3 and bool(_ELSEWHERE.intersection(words))
    if is_known and not _ENGLISH.intersection(words):
        return FixedNote(UNDERSTANDS_ENGLISH)
    if text.strip() == FOREIGN_SPEECH or _is_another_script(text) or _is_strange(text, is_word):
        return FixedNote(UNDERSTANDS_ENGLISH)
    return None


def _is_another_script(text: str) -> bool:
    letters = [sign for sign in text if sign.isalpha()]
    latin = sum(unicodedata.name(sign, "LATIN").startswith("LATIN") for sign in letters)
    return 2 * latin < len(letters) and (len(letters) > 2)


def _is_strange(text: str, is_word: Callable[[str], bool] | None) -> bool:
    """True if most words are in no English lexicon. Names are not counted, nor are abbreviations
    without vowels."""
    words = _LETTERS.findall(_plain(text)) if is_word else []
    if not is_word or len(words) < 2:
        return False
    capital = {word.lower() for word in _LETTERS.findall(text)[1:] if word[0].isupper()}
    strange = [
        word
        for word in words
        if len(word) > 1
        and word not in capital
        and not is_word(word.removesuffix("'s"))
        and _VOWEL.search(word)
    ]
    english = sum(word in _ENGLISH for word in words)
    return len(strange) >= 2 + 2 * english and 2 * len(strange) >= len(words) - len(capital)


def _by_script(text: str) -> str | None:
    names = [unicodedata.name(sign, "") for sign in text if sign.isalpha()]
    counts = {
        code: sum(name.startswith(script) for name in names) for script, code in _SCRIPTS
    }  # of two scripts of a language the later one counts
    counts["ja"] = sum(name.startswith(("HIRAGANA", "KATAKANA")) for name in names)
    if counts["ja"]:
        counts["ja"] += counts.pop("zh")
    code = max(counts, key=lambda one: counts[one])
    if not names or counts[code] * 2 <= len(names):
        return None
    if code == "ru" and re.search("[іїєґ]", text.lower()):
        return "uk"
    if code == "ar" and re.search("[ٹڈڑےں]", text):
        return None  # Urdu
    if code == "ar" and re.search("[پچژگکی]", text):
        return "fa"
    return code


def _plain(text: str) -> str:
    return unicodedata.normalize("NFC", text.lower().replace("’", "'"))


def _by_words(text: str) -> str | None:
    low = _plain(text)
    words = _LETTERS.findall(low)
    if not words:
        return None
    if len(words) <= 2 and words[0] in _GREETINGS and not set(words) & _ENGLISH:
        return _GREETINGS[words[0]]
    english = sum(word in _ENGLISH for word in words)
    scores = {code: sum(word in known for word in words) for code, known in _SETS.items()}
    code = max(scores, key=lambda one: scores[one])
    if marked := _MARKED.search(low):
        # Letters that only one of our languages has.
        own = next(one for one, signs in _OWN_LETTERS.items() if marked[0] in signs)
        code = own if scores[own] + 1 >= scores[code] else code
    score = scores[code] + bool(_MARKS.search(low))
    if score >= 2 and score > english and 2 * score >= len(words):
        return code
    return None
