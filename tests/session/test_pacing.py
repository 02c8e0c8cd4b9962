"""Sound that is sent when it is to be played."""

from parley.session.pacing import PacedOutput


def test_sound_is_due_a_little_before_it_is_played():
    paced = PacedOutput()
    paced.put(["text", "a", "b", "c"], [0, 100, 200, 100], 10.0)

    assert paced.take_due(10.0) == ["text", "a", "b"]
    assert paced.next_due_s is not None
    assert 10.09 < paced.next_due_s < 10.11
    assert paced.take_due(10.05) == []
    assert paced.take_due(10.11) == ["c"]
    assert not paced.waiting


def test_sound_follows_what_is_being_played():
    paced = PacedOutput()
    paced.put(["a"], [1000], 10.0)
    paced.take_due(10.0)
    paced.put(["b"], [1000], 10.5)

    assert paced.take_due(10.7) == []
    assert paced.take_due(10.81) == ["b"]


def test_after_a_pause_sound_is_due_immediately():
    paced = PacedOutput()
    paced.put(["a"], [1000], 10.0)
    paced.take_due(10.0)
    paced.put(["b"], [1000], 20.0)

    assert paced.take_due(20.0) == ["b"]


def test_what_is_dropped_is_neither_sent_nor_waited_for():
    paced = PacedOutput()
    paced.put(["a", "b", "c"], [100, 500, 500], 10.0)
    paced.take_due(10.0)

    assert paced.drop(10.1) == 500
    assert paced.next_due_s is None
    paced.put(["d"], [100], 10.2)
    assert paced.take_due(10.2) == ["d"]


def test_all_of_it_can_be_taken_at_the_end():
    paced = PacedOutput()
    paced.put(["a", "b"], [1000, 1000], 10.0)

    assert paced.take_all() == ["a", "b"]
    assert not paced.waiting
