import tensorflow as tf

from trainer.parameter_server.ledger import Ledger, Tally


@tf.function(autograph=False)
def mark(ledger, begun, applied):
    for step in begun:
        ledger.begin(tf.constant(step, tf.int64))
    for step in applied:
        ledger.applied(tf.constant(step, tf.int64))
    return ledger.missing(tf.constant(6, tf.int64), tf.constant(5, tf.int64))


def test_steps_are_told_apart_and_places_used_again():
    ledger = Ledger(span=8)
    missing = mark(ledger, begun=(6, 7, 7, 8, 8, 9), applied=(6, 7, 8, 8))
    assert missing.numpy().tolist() == [9, 10]
    tally = ledger.read(6, 11)
    assert tally == Tally(once=2, twice=1, never=2, again=1)
    assert ledger.read(6, 11) == Tally(never=5)


def test_the_line():
    tally = Tally(once=10, dropped=3)
    tally.add(Tally(once=1, twice=2, never=3, again=4))
    restored = Tally()
    restored.load_state_dict(tally.state_dict())
    assert str(restored) == (
        "ledger: of 16 steps, 11 applied once, 2 twice, 3 not at all; 4 of them begun by a worker that was lost, "
        "and again by another; 3 late gradients dropped, their rows computed again"
    )
