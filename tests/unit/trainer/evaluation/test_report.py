import numpy as np

from trainer.evaluation.report import Mistake, Report, summary


def lines_of(report):
    return [" ".join(line.split()) for line in summary(report)]


def test_classes_and_mistakes_are_listed():
    mistakes = (Mistake(7, "train#7", 0, 1, 0.75, 0.125, 2.0794), Mistake(9, None, 0, 1, 0.5, 0.25, 1.3863))
    report = Report(("ape", "bee", "cat"), np.array([[1198, 2, 0], [0, 3, 0], [0, 0, 0]]), 0.5, mistakes)
    assert lines_of(report) == [
        "class examples precision recall most often taken for",
        "ape 1,200 1.0000 0.9983 bee (2)",
        "bee 3 0.6000 1.0000",
        "cat 0 - -",
        "",
        "worst mistakes label prediction probability loss",
        "train#7 ape bee 0.7500 2.08",
        "record 9 ape bee 0.5000 1.39",
    ]


def test_of_many_classes_those_of_the_lowest_recall_are_shown():
    matrix = np.diag(np.arange(30))  # class 0 has no examples
    matrix[:, 0] += 30 - np.arange(30)
    matrix[0, 0] = 0
    found = lines_of(Report(tuple(f"c{i}" for i in range(30)), matrix, 0.5, ()))
    assert len(found) == 22
    assert found[1].startswith("c1 30 1.0000 0.0333 c0 (29)")
    assert found[-1] == "and 10 more classes of higher recall"
