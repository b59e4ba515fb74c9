"""The tree of a beam: shared beginnings are drawn once, between the sentences that share them."""

from lab.beam_tree import places_of


def test_a_shared_beginning_is_drawn_once_between_its_sentences():
    places = places_of([(5, 6, 2), (7, 2), (5, 8, 2)])
    assert len(places) == 1 + 2 + 3 + 2  # the empty one, then by length; (5,) is shared
    assert places[()] == (0, 1.0)
    assert places[(5,)] == (1, 0.5) and places[(7,)] == (1, 2.0)  # the third sentence moves up
    assert places[(5, 8, 2)] == (3, 1.0)
