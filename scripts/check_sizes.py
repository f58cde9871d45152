#!/usr/bin/env python3
"""Small enough to read: reports files of more than 450 lines and functions of more than 80; exit code 1 if there is any.

    scripts/check_sizes.py [--self-test]
Looks at the C++ and Python files of include/, src/, apps/, tests/ and scripts/, and prints the lines of each part of the project.
"""
import ast
import re
import sys
from pathlib import Path

FILE_LIMIT = 450
FUNCTION_LIMIT = 80
FOLDERS = ("include", "src", "apps", "tests", "scripts")
CPP = {".h", ".cpp", ".cu", ".cuh"}
# Comments, raw strings, strings and characters (not the ' in 1'000), which may hold braces.
OPAQUE = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^\s()\\]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.S)
CONTAINER = re.compile(r"(namespace|class|struct|union|enum)\b(?!.*\)\s*(const|noexcept|override|final|\s)*$)|extern\s*$", re.S)


def cpp_functions(text):
    """(name, first line, number of lines) of each outermost function body (TEST_CASEs too; lambdas and local structs count to theirs)."""
    blank = lambda m: re.sub(r"[^\n]", " ", m[0])
    text = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*", blank, OPAQUE.sub(blank, text), flags=re.M)
    stack, start, parens = [], 0, 0   # stack of [is it a container, where its head starts, head]
    for at, c in enumerate(text):
        if c in "()":
            parens += 1 if c == "(" else -1
        elif c == "{":
            head = text[start:at]
            container = parens == 0 and bool(CONTAINER.search(head)) or (parens == 0 and "(" not in head)
            inside = bool(stack) and stack[-1][0] == "function"
            stack.append(("inside" if inside or (stack and stack[-1][0] == "inside") else "container" if container else "function" if parens == 0 else "inside", start, head))
            if stack[-1][0] == "container":
                start = at + 1
        elif c == "}" and stack:
            kind, head_start, head = stack.pop()
            if kind == "function":
                first = head_start + len(head) - len(head.lstrip())
                name = re.search(r"([\w:~]+)\s*\(", head)
                yield name[1] if name else "?", text.count("\n", 0, first) + 1, text.count("\n", first, at) + 1
            if kind != "inside":
                start = at + 1
        elif c == ";" and parens == 0 and (not stack or stack[-1][0] == "container"):
            start = at + 1


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def check(path, text):
    lines = text.count("\n") + 1
    if lines > FILE_LIMIT + 1:
        yield f"{path}: {lines - 1} lines, the limit is {FILE_LIMIT}"
    for name, line, length in (cpp_functions if Path(path).suffix in CPP else python_functions)(text):
        if length > FUNCTION_LIMIT:
            yield f"{path}:{line}: {name} has {length} lines, the limit is {FUNCTION_LIMIT}"


def self_test():
    body = "  x = '{' + \"}\";  // }\n" * 78
    text = ("#define OPEN {\nnamespace a {\nstruct S {\n  int f(int x) const {\n" + body + "  }\n  int g_ = 1'000;\n};\nint array[] = {1, 2};\n"
            "template <class T>\nvoid long_one(std::function<void()> f = [] {}) {\n" + body + "  if (x) {\n  }\n}\n}  // namespace a\n"
            'TEST_CASE("braces {") {\n' + body + body + "}\n")
    found = [(name, length) for name, _, length in cpp_functions(text)]
    assert found == [("f", 80), ("long_one", 83), ("TEST_CASE", 158)], found
    assert len(list(check("a.cpp", text))) == 2
    assert list(check("a.h", "\n" * 451)) == ["a.h: 451 lines, the limit is 450"] and not list(check("a.h", "\n" * 450))
    assert list(check("a.py", "def f():\n" + "  pass\n" * 80)) == ["a.py:1: f has 81 lines, the limit is 80"]
    print("self-test: ok")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if sys.argv[1:]:
        sys.exit(__doc__)
    root = Path(__file__).resolve().parent.parent
    problems, sizes = [], {}
    for folder in FOLDERS:
        for p in sorted((root / folder).rglob("*")):
            if p.suffix in CPP | {".py"} and "__pycache__" not in p.parts:
                text = p.read_text()
                sizes[folder] = sizes.get(folder, 0) + text.count("\n")
                problems += check(str(p.relative_to(root)), text)
    print("\n".join(problems + [", ".join(f"{folder} {lines} lines" for folder, lines in sizes.items())]))
    sys.exit(1 if problems else 0)


main()
