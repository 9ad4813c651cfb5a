"""Messages say `1 shard`, not `1 shards`: a number that may be 1 gets its noun from `count_of`."""

import pathlib
import re

import beam_jobs

# A number in braces and a plural noun; not constants in capitals, nor rates.
_COUNTED = re.compile(
    r"\{(?!count_of|[A-Z_. 0-9]+\})[^{}\"']+\} (finished )?(shards|rows|examples|records|files|bytes|images|values|"
    r"labels|lines|columns|classes|sizes|members)\b(?!/s)"
)
_ALWAYS_MORE = {
    "{remote.num_bytes:,} bytes",  # of a registered file
    "{count} classes",  # above the most that there may be
    "{count} columns",  # of one name, where there are several
    "{count} sizes",  # of a flag's value: 2 or 3
}


def test_a_number_that_may_be_1_gets_its_noun_from_count_of():
    found = {}
    for path in pathlib.Path(beam_jobs.__file__).parent.rglob("*.py"):
        code = re.sub(r'""".*?"""|#.*', "", path.read_text(), flags=re.DOTALL)
        texts = [match[0] for match in _COUNTED.finditer(code) if match[0] not in _ALWAYS_MORE]
        if texts:
            found[path.name] = texts
    assert not found
