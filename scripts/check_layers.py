#!/usr/bin/env python3
"""Who may include whom: apps -> train -> nn, optim, data, io -> ops -> autograd -> core, and who sees the kernels.

Reads the #include lines of include/, src/ and apps/; one line for each include that breaks a rule, exit code 1 if there is any.
    scripts/check_layers.py [--self-test]
"""
import re
import sys
from pathlib import Path

# A layer may include itself and these.
BELOW_NN = {"core", "autograd", "ops"}
ALLOWED = {
    "core": set(),
    "autograd": {"core"},
    "ops": {"core", "autograd"},
    "io": BELOW_NN,
    "data": BELOW_NN | {"io"},
    "nn": BELOW_NN,
    "optim": BELOW_NN | {"nn"},
    "train": BELOW_NN | {"nn", "optim", "data", "io"},
    "apps": BELOW_NN | {"nn", "optim", "data", "io", "train"},
    "kernels": {"core"},
}
# Kernels see raw pointers and sizes, never tensors or the graph.
KERNELS_MAY_SEE_CORE = {"device", "dtype", "error", "matrix_unit", "memory", "memory_pool", "parallel", "profile", "random", "shape", "team"}
# Who sees the kernels: every file of these layers, and these files (the tensor's movers, and the sums of gradients in the graph).
SEES_KERNELS = {"ops", "optim", "kernels"}
# And: the gradient checker's single elements, and the training step that is captured as a CUDA graph.
SEES_KERNELS_H = re.compile(r"src/core/[^/]+$|src/autograd/(backward|gradient|gradcheck)\.cpp$|src/train/step_graph\.cpp$")
# What users of the public headers must not need.
NOT_IN_PUBLIC = re.compile(r"(cblas|f77blas|lapacke?|omp|zlib|libgen)\.h$|(hwy|cuda|cublas|fmt|nlohmann|Random123|CLI|catch2)\b|(cuda|cublas)\w*\.(h|hpp)$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def layer_of(path):
    """The layer of a file of the project, or None: include/lamina/<layer>/..., src/<layer>/..., apps/..."""
    parts = Path(path).parts
    if parts[0] == "apps":
        return "apps"
    below = parts[2:] if parts[:2] == ("include", "lamina") else parts[1:]
    return below[0] if len(below) > 1 and below[0] in ALLOWED else None


def target_of(path, quote, name, exists):
    """The project's file that an include means, or None for a system header."""
    if name.startswith("lamina/"):
        return "include/" + name
    if quote == "<":
        return None
    for candidate in (Path(path).parent / name, Path("src") / name, Path("apps") / name, Path("include") / name):
        if exists(str(candidate)):
            return str(candidate)
    return "src/" + name


def violation(path, quote, name, exists):
    """What is wrong with one include of a file, or None."""
    layer, public = layer_of(path), path.startswith("include/")
    if public and quote == "<" and NOT_IN_PUBLIC.match(name):
        return "public headers include no third-party library"
    target = target_of(path, quote, name, exists)
    if target is None:
        return None
    if public and not target.startswith("include/"):
        return "public headers include public headers only"
    if target == "include/lamina/lamina.h":
        return None if layer == "apps" else "lamina/lamina.h is for users; include what you use"
    if target.startswith("tests/"):
        return "nothing includes from tests/"
    other = layer_of(target)
    if layer is None:
        return None if path == "include/lamina/lamina.h" else "this file lies in no layer"
    if other is None:
        return f"{target} lies in no layer"
    if other == "kernels":
        if layer in SEES_KERNELS or (SEES_KERNELS_H.match(path) and target == "src/kernels/kernels.h"):
            return None
        return "kernels are seen by src/ops, src/optim, src/kernels, and (kernels/kernels.h only) by src/core, src/autograd/{backward,gradient,gradcheck}.cpp and src/train/step_graph.cpp"
    if other == layer:
        return None
    if other not in ALLOWED[layer]:
        return f"{layer} may not include {other}"
    if layer == "kernels" and Path(target).stem not in KERNELS_MAY_SEE_CORE:
        return f"kernels may not see {target}"
    return None


def check(files):
    """files: path -> text. One line for each broken rule."""
    problems = []
    for path, text in sorted(files.items()):
        for number, line in enumerate(text.splitlines(), 1):
            match = INCLUDE.match(line)
            why = match and violation(path, match[1], match[2], files.__contains__)
            if why:
                problems.append(f"{path}:{number}: {match[2]}: {why}")
    return problems


def self_test():
    good = {
        "include/lamina/core/tensor.h": "#include <vector>\n#include <lamina/core/shape.h>",
        "include/lamina/lamina.h": "#include <lamina/train/trainer.h>",
        "src/core/tensor.cpp": '#include <lamina/core/tensor.h>\n#include "kernels/kernels.h"\n#include <fmt/format.h>',
        "src/autograd/backward.cpp": '#include "kernels/kernels.h"',
        "src/ops/norm.cpp": '#include <lamina/autograd/graph.h>\n#include "kernels/norm.h"\n#include "ops/check.h"',
        "src/ops/check.h": "",
        "src/kernels/kernels.h": "",
        "src/kernels/norm.h": "",
        "src/kernels/cpu/norm.cpp": '#include <omp.h>\n#include <lamina/core/parallel.h>\n#include "kernels/norm.h"',
        "src/data/idx.cpp": "#include <lamina/io/gzip.h>",
        "src/train/trainer.cpp": "#include <lamina/optim/adam.h>\n#include <lamina/data/loader.h>",
        "apps/mnist/main.cpp": '#include <lamina/lamina.h>\n#include "common/cli.h"\n#include <CLI/CLI.hpp>',
        "apps/common/cli.h": "",
    }
    assert check(good) == [], check(good)
    bad = [
        ("include/lamina/core/a.h", "#include <cblas.h>", "third-party"),
        ("include/lamina/core/a.h", "#include <omp.h>", "third-party"),
        ("include/lamina/ops/a.h", "#include <hwy/highway.h>", "third-party"),
        ("include/lamina/ops/a.h", "#include <cuda_runtime.h>", "third-party"),
        ("include/lamina/ops/a.h", "#include <fmt/format.h>", "third-party"),
        ("include/lamina/io/a.h", "  #  include <nlohmann/json.hpp>", "third-party"),
        ("include/lamina/ops/a.h", '#include "kernels/norm.h"', "public headers only"),
        ("src/core/a.cpp", "#include <lamina/autograd/graph.h>", "core may not include autograd"),
        ("src/core/a.cpp", '#include "kernels/norm.h"', "kernels are seen by"),
        ("src/autograd/graph.cpp", '#include "kernels/kernels.h"', "kernels are seen by"),
        ("src/autograd/graph.cpp", "#include <lamina/ops/elementwise.h>", "autograd may not include ops"),
        ("src/ops/a.cpp", "#include <lamina/nn/linear.h>", "ops may not include nn"),
        ("src/nn/a.cpp", '#include "kernels/norm.h"', "kernels are seen by"),
        ("src/nn/a.cpp", "#include <lamina/data/loader.h>", "nn may not include data"),
        ("src/io/a.cpp", "#include <lamina/data/loader.h>", "io may not include data"),
        ("src/train/a.cpp", '#include "common/cli.h"', "train may not include apps"),
        ("src/train/a.cpp", "#include <lamina/lamina.h>", "for users"),
        ("apps/mnist/main.cpp", '#include "kernels/norm.h"', "kernels are seen by"),
        ("src/kernels/cpu/a.cpp", "#include <lamina/core/tensor.h>", "kernels may not see"),
        ("src/kernels/cpu/a.cpp", "#include <lamina/ops/norm.h>", "kernels may not include ops"),
        ("src/helpers/a.cpp", "#include <lamina/core/tensor.h>", "lies in no layer"),
    ]
    for path, line, expected in bad:
        problems = check({**good, path: "// first line\n" + line})
        assert len(problems) == 1 and problems[0].startswith(path + ":2:") and expected in problems[0], (path, line, problems)
    print(f"self-test: {len(bad)} violations found, {len(good)} right files accepted")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if sys.argv[1:]:
        sys.exit(__doc__)
    root = Path(__file__).resolve().parent.parent
    paths = [p for folder in ("include", "src", "apps") for p in (root / folder).rglob("*") if p.suffix in {".h", ".cpp", ".cu", ".cuh"}]
    files = {str(p.relative_to(root)): p.read_text() for p in paths}
    problems = check(files)
    print("\n".join(problems) if problems else f"{len(files)} files include only what they may")
    sys.exit(1 if problems else 0)


main()
