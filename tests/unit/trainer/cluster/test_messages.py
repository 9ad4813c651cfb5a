from trainer.cluster.messages import difference, is_description, shortened


def test_long_lists_are_cut():
    assert shortened(list("abcde")) == "a, b, c, d, e"
    assert shortened(list("abcdefg")) == "a, b, c, d, e and 2 more"


def test_workers_that_differ_in_the_same_way_are_named_together():
    chief = [{"x": "x=1", "y": "y=1"}]
    others = {"A": [{"x": "x=2", "y": "y=1"}], "B": chief, "C": [{"x": "x=2", "y": "y=1"}], "D": [{"x": "x=1"}]}
    assert difference(chief, others) == "A, C have x=2, the chief has x=1; D has no y, the chief has y=1"
    assert difference(chief, {"B": chief}) is None


def test_only_the_first_part_that_differs_counts():
    chief = [{"version": "v1"}, {"x": "x=1"}, {"order": "o"}]
    assert difference(chief, {"A": [{"version": "v1"}, {"x": "x=2"}, {"order": "p"}]}) == "A has x=2, the chief has x=1"
    assert difference(chief, {"A": chief[:2]}) == "A has no order, the chief has o"


def test_of_digests_the_other_sides_are_named():
    chief = [{"a.py": ["1"], "b.py": ["1"]}, {"x": "x=1"}]
    others = {"A": [{"a.py": ["2"], "b.py": ["1"]}, {"x": "x=2"}], "B": [{"a.py": ["1"], "c.py": ["1"]}, {"x": "x=1"}]}
    assert difference(chief, others) == "A has another a.py; B has no b.py, c.py, which the chief does not have"
    assert difference(chief, {"A": [{"b.py": ("1",), "a.py": ("1",)}, {"x": "x=1"}]}) is None


def test_what_came_from_outside_is_checked():
    assert is_description([{"x": "1", "y": ["1"]}, {}])
    assert not any(map(is_description, (None, {}, "x", [1], [{"x": 1}], [["x"]], [{"x": ["1", "2"]}], [{"x": [1]}])))
