"""Prints how large the code is and how far a change reaches: the figures that a change of structure is held against.

    python docs/measures.py [ROOT]

ROOT: another checkout, by default this one.
"""

from __future__ import annotations

import functools
import pathlib
import re
import subprocess
import sys

PACKAGES = ("stepfeed", "trainer", "beam_jobs", "pipeline")
OPTIONS = ("limit", "skip_steps", "cache_bytes", "max_corrupt")  # that many rooms know of


def sources(root: pathlib.Path, *folders: str) -> dict[pathlib.Path, str]:
    """Returns the text of each Python file in some folders."""
    found = (path for folder in folders for path in sorted((root / folder).rglob("*.py")))
    return {path: path.read_text(encoding="utf-8") for path in found}


def lines(texts: dict[pathlib.Path, str]) -> int:
    """Returns the number of lines of all files."""
    return sum(text.count("\n") for text in texts.values())


def longest_chain() -> list[str]:
    """Returns the longest chain of modules of the packages of which each imports the next."""
    import grimp  # noqa: PLC0415, import-linter's own dependency

    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True)

    @functools.cache
    def below(module: str) -> tuple[str, ...]:
        chains = (below(other) for other in sorted(graph.find_modules_directly_imported_by(module)))
        return (module, *max(chains, key=len, default=()))

    return list(max((below(module) for module in sorted(graph.modules)), key=len))


def loaded(root: pathlib.Path, module: str) -> int:
    """Returns how many modules of the packages an import loads."""
    program = f"import sys, {module}; print(sum(one.split('.')[0] in {PACKAGES!r} for one in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    return int(done.stdout)


def main() -> None:
    """Prints the figures."""
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1]).resolve()
    sys.path.insert(0, str(root))
    sys.setrecursionlimit(10_000)
    product, chain = sources(root, *PACKAGES), longest_chain()
    print(f"modules: {len(product)}")
    print(f"lines of the product, of its tests: {lines(product):,}, {lines(sources(root, 'tests')):,}")
    for option in OPTIONS:
        word = re.compile(rf"\b{option}\b")
        print(f"modules that name {option}: {sum(bool(word.search(text)) for text in product.values())}")
    print(f"modules that `import trainer.run` loads: {loaded(root, 'trainer.run')}")
    print(f"longest chain of imports: {len(chain)}: {' > '.join(chain)}")


if __name__ == "__main__":
    main()
