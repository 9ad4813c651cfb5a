from trainer.launching.local.tail import Tail


def test_lines_come_as_they_are_completed(tmp_path):
    path = tmp_path / "log"
    path.write_text("of an earlier run\n")
    tail = Tail(path)
    assert tail.lines() == []
    with path.open("ab", buffering=0) as file:
        file.write(b"one\ntw")
        assert tail.lines() == ["one"]
        file.write(b"o\r\n\nthr\xffee")
        assert tail.lines() == ["two", ""]
        assert tail.lines() == []
        assert tail.lines(is_end=True) == ["thr\ufffdee"]
        assert tail.lines(is_end=True) == []
    assert list(tail.last) == ["one", "two", "thr\ufffdee"]
    tail.close()


def test_only_the_last_lines_are_kept(tmp_path):
    path = tmp_path / "log"
    tail = Tail(path)
    path.write_text("".join(f"{i}\n" for i in range(100)))
    assert len(tail.lines()) == 100
    assert list(tail.last) == [str(i) for i in range(80, 100)]
    tail.close()
