#!/usr/bin/env python3
"""The training example in README.md must be apps/example/main.cpp, which CI compiles and runs."""
import pathlib
import sys

root = pathlib.Path(__file__).resolve().parent.parent
example = (root / "README.md").read_text().split("<!-- readme-example -->\n```cpp\n")[1].split("```")[0]
if example != (root / "apps/example/main.cpp").read_text():
    sys.exit("check_readme: the training example in README.md differs from apps/example/main.cpp; copy one over the other")
missing = [line for line in (root / "README.md").read_text().replace("(", "\n(").splitlines()
           if line.startswith("(docs/") and not (root / line[1:].split(")")[0]).exists()]
if missing:
    sys.exit("check_readme: README.md links to files that do not exist: " + ", ".join(link.split(")")[0][1:] for link in missing))
