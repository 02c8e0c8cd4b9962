"""What a person says who has just found it, and what the pages offer to say: the bundled model's
answers must be acceptable. None of the twenty sentences is in the training texts."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from training.cascade import newcomer

from parley.models import pocket_data
from parley.models.cascade import store
from parley.models.cascade.local import LocalWriter
from parley.settings import ModelSettings

pytestmark = pytest.mark.timeout(240)

WEB = Path(__file__).resolve().parents[3] / "src" / "parley" / "web"
Talk = Callable[..., str]

NEWCOMER = [
    (["Hey, anybody home? My name is Ludmilla."], "ludmilla"),
    (["So who am I talking to?"], "parley|program|assistant"),
    (["Is there a human on the line?"], "program|no\\b"),
    (["What would you say you can do?"], "talk|sums|spell|joke|question"),
    (["Could you work out 36 plus 47?"], "83"),
    (["What do I get when I take 8 from 30?"], "22"),
    (["Spell the word harvest."], "h, a, r, v, e, s, t"),
    (["Capital of Hungary, please."], "budapest"),
    (["What's the capital of Peru?", "And of Cuba?"], "havana"),
    (["Which day follows Friday?"], "saturday"),
    (["How many days does February have?"], "^february has 28"),
    (["What's the opposite of wide?"], "narrow"),
    (["Tell me a joke."], ".{25}"),
    (["Tell me a joke.", "Another one."], ".{25}"),
    (["My aunt is called Griselda.", "What's 2 plus 2?", "What is my aunt called?"], "griselda"),
    (["What is my cousin's name?"], "not told|don't know|haven't"),
    (["What's the weather going to be tomorrow?"], "don't|can't|cannot"),
    (["Please call me a taxi."], "can't|cannot|not able|sorry"),
    (["How much does a new phone cost?"], "don't|can't|not"),
    (["Thanks a lot, that was nice."], "welcome|glad|pleasure|thank"),
    (["Bye for now!"], "bye|see you|talk|care"),
]


@pytest.fixture(scope="module")
def talk() -> Talk:
    """The last answer to some turns of one conversation, greedy."""
    folder = pocket_data.folder(ModelSettings())
    assert folder is not None
    words = store.load_tokenizer(folder)
    writer = LocalWriter(store.load_llama(folder), words, rows=1)

    return lambda turns: newcomer.talk(writer, turns)[-1]


@pytest.mark.parametrize(("turns", "wanted"), NEWCOMER, ids=lambda case: str(case)[:40])
def test_a_newcomer_is_answered(talk: Talk, turns: list[str], wanted: str) -> None:
    answer = talk(turns)

    assert re.search(wanted, answer.lower()), answer


STARTERS = {
    "pocket.sum": r"12|twelve",
    "pocket.spell": "c, a, t",
    "pocket.capital": "paris",
    "pocket.opposite": "sad",
    "pocket.say_name": "anna",
    "pocket.riddle": r"\?|.{25}",
    "pocket.twister": ".{15}",
    "pocket.story": ".{40}",
    "pocket.poem": ".{25}",
    "pocket.joke": ".{25}",
    "pocket.half": r"40|forty",
    "pocket.meaning": "mountain|rock|lava|hot",
}


@pytest.mark.parametrize("key", STARTERS)
def test_what_the_pages_offer_to_say_works(talk: Talk, key: str) -> None:
    sentence = re.search(
        rf"'{re.escape(key)}': '([^']+)'", (WEB / "words" / "en.js").read_text("utf-8")
    )
    assert sentence is not None, f"the pages do not offer {key} any more"

    assert re.search(STARTERS[key], talk([sentence[1]]).lower())


def test_everything_that_the_pages_offer_is_tried() -> None:
    offered = set(
        re.findall(r"'(pocket\.\w+)'", (WEB / "elements" / "model.js").read_text("utf-8"))
    )
    about_pictures, goes_on = {"pocket.see", "pocket.colour"}, {"pocket.another"}

    assert offered - about_pictures - goes_on <= set(STARTERS)
