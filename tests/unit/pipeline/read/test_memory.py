"""Memory of windows: aligned, reused once nothing refers to it, and never before."""

import numpy as np

from pipeline.read.memory import Buffers, aligned_matrix


def test_matrices_are_aligned_for_tensorflow():
    for rows, columns in ((1, 1), (3, 7), (1000, 3072)):
        for matrix in (aligned_matrix(rows, columns), Buffers(lambda: None).matrix(rows, columns)):
            assert matrix.shape == (rows, columns)
            assert matrix.ctypes.data % 64 == 0
            assert matrix.flags.c_contiguous


def test_memory_that_was_let_go_is_given_out_again():
    buffers = Buffers(lambda: None)
    one, two = buffers.matrix(10, 100), buffers.matrix(10, 100)
    assert not np.shares_memory(one, two)
    place = one.ctypes.data
    del one
    three = buffers.matrix(9, 100)
    assert three.ctypes.data == place
    assert not np.shares_memory(two, three)


def test_a_larger_window_gets_new_memory():
    buffers = Buffers(lambda: None)
    small = buffers.matrix(1, 100)
    del small
    assert buffers.matrix(1000, 100).shape == (1000, 100)


def test_what_holds_the_last_window_but_one_is_asked_to_let_go():
    held, asked = [], []

    def let_go():
        asked.append(1)
        if len(asked) == 2:
            held.pop(0)

    buffers = Buffers(let_go)
    held += [buffers.matrix(2, 2), buffers.matrix(2, 2)]
    assert asked == []
    held.append(buffers.matrix(2, 2))
    assert len(asked) == 2


def test_a_third_window_is_given_where_nobody_lets_go():
    buffers = Buffers(lambda: None)
    held = [buffers.matrix(2, 2) for _ in range(3)]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(held) for b in held[:i])
