#!/usr/bin/python3
"""Figures about the normalisers.

    scripts/plot_norms.py table FILE.json [--out DIR]   the heat map of what norm_table --json has measured: norm_table.svg and .png
    scripts/plot_norms.py sharing [--out DIR]           which cells of [N, C, L] share statistics: norm_sharing.svg and .png
DIR is the current folder by default. The same input gives the same SVG.
"""
import argparse
import json
import math
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LinearSegmentedColormap

from plot import STYLE

YES, NO, INK = "#0072b2", "#f0a000", "#222222"
CHANGES = {
    "weight_matrix_rescale": "weight matrix\nre-scaled", "weight_matrix_recentre": "weight matrix\nre-centred",
    "weight_vector_rescale": "weight vector\nre-scaled", "data_set_rescale": "data set\nre-scaled",
    "data_set_recentre": "data set\nre-centred", "single_case_rescale": "single case\nre-scaled",
}


def save(figure, out, name):
    out.mkdir(parents=True, exist_ok=True)
    for suffix, options in ((".svg", {"metadata": {"Date": None}}), (".png", {"dpi": 160, "metadata": {"Software": None}})):
        figure.savefig(out / (name + suffix), facecolor="white", **options)
        print(out / (name + suffix))


# -- what norm_table measured ------------------------------------------------------------------------------------------


def draw_table(record):
    cells = {(c["norm"], c["change"]): c for c in record["invariance"]}
    norms = list(dict.fromkeys(c["norm"] for c in record["invariance"]))
    sources = {c["norm"]: c["source"] for c in record["invariance"]}
    logs = np.array([[math.log10(max(cells[n, c]["deviation"], 1e-17)) for c in CHANGES] for n in norms])
    figure, axes = plt.subplots(figsize=(9.2, 0.44 * len(norms) + 2.1))
    axes.grid(False)
    image = axes.imshow(logs, cmap=LinearSegmentedColormap.from_list("deviation", [YES, "#cfe3f1", "#fdf3dd", NO]), vmin=-17, vmax=0, aspect="auto")
    for row, norm in enumerate(norms):
        for column, change in enumerate(CHANGES):
            cell = cells[norm, change]
            # The colour says the same; dark cells take white letters.
            text = f"{'yes' if cell['measured'] else 'no'}  {cell['deviation']:.0e}" + ("" if cell["agrees"] else "\nnot as expected")
            axes.text(column, row, text, ha="center", va="center", fontsize=8.5, color="white" if logs[row, column] < -12.5 else INK,
                      fontweight="normal" if cell["agrees"] else "bold")
    axes.set_xticks(range(len(CHANGES)), list(CHANGES.values()))
    axes.set_yticks(range(len(norms)), norms)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False, labelsize=9)
    sides = axes.secondary_yaxis("right")
    sides.set_yticks(range(len(norms)), [sources[n] for n in norms])
    sides.tick_params(length=0, labelsize=8, colors="#555555")
    for spine in [*axes.spines.values(), *sides.spines.values()]:
        spine.set_visible(False)
    for edge in range(1, len(norms)):
        axes.axhline(edge - 0.5, color="white", linewidth=2)
    for edge in range(1, len(CHANGES)):
        axes.axvline(edge - 0.5, color="white", linewidth=2)
    agree = "every cell agrees with its source (right)" if all(c["agrees"] for c in record["invariance"]) else "some cells do not agree"
    figure.suptitle("Does the normalised layer give the same output?", fontsize=11.5, y=0.985)
    figure.text(0.5, 0.925, f"largest deviation relative to the largest output, f64, eps {record['eps']:g}, factor {record['factor']:g}; {agree}",
                ha="center", va="top", fontsize=8, color="#555555")
    bar = figure.colorbar(image, ax=axes, orientation="horizontal", fraction=0.035, pad=0.03, aspect=60)
    bar.set_ticks([-16, -12, -8, -4, 0], labels=["1e-16", "1e-12", "1e-8", "1e-4", "1"])
    bar.outline.set_visible(False)
    bar.ax.grid(False)
    figure.subplots_adjust(left=0.15, right=0.86, top=0.80, bottom=0.10)
    return figure


# -- which cells share statistics --------------------------------------------------------------------------------------

SIZE = (4, 6, 5)   # N, C, L
# Of each normaliser: the cells that share their statistics with the cell (n, c, l) = (0, 0, 0).
SHARING = [
    ("batch, meanbatch", "one channel, all cases", lambda n, c, l: c == 0),
    ("layer", "one case, all channels\nand positions", lambda n, c, l: n == 0),
    ("group:2", "one case, half of the channels", lambda n, c, l: (n == 0) & (c < SIZE[1] // 2)),
    ("instance", "one case, one channel", lambda n, c, l: (n == 0) & (c == 0)),
    ("rms (features last)", "one case, one position;\nno mean taken off", lambda n, c, l: (n == 0) & (l == 0)),
    ("prms:0.33 (features last)", "the same, measured on\nthe first third of them", lambda n, c, l: (n == 0) & (l == 0) & (c < 2)),
    ("weight", "no activations: each unit's\nweight vector, on its own", None),
]


def draw_sharing():
    """Cubes of N (to the right), C (into the page) and L (down), as in the figure of the group-norm paper that everybody knows, redrawn."""
    figure, grid = plt.subplots(2, 4, figsize=(10, 6.1), subplot_kw={"projection": "3d", "proj_type": "ortho"})
    panels = [("a tensor [N, C, L]", "N cases, C channels,\nL positions", lambda n, c, l: n < 0), *SHARING]
    n, c, l = np.indices(SIZE)
    for axes, (name, text, shared) in zip(grid.flat, panels):
        axes.set_axis_off()
        axes.set_title(name, fontsize=10, pad=0, fontweight="bold")
        axes.text2D(0.5, -0.04, text, transform=axes.transAxes, ha="center", va="top", fontsize=8.5, color="#555555")
        if shared is None:   # a matrix [units, inputs]
            filled = np.ones((1, SIZE[1], SIZE[2]), bool)
            marked = np.indices(filled.shape)[2] == 0
            labels = ("", "inputs", "units")
        else:
            filled, marked, labels = np.ones(SIZE, bool), shared(n, c, l), ("N", "C", "L")
        colours = np.where(marked, YES, "#f4f4f4")
        size = filled.shape
        # Position 0 is on top.
        axes.voxels(filled[:, :, ::-1], facecolors=colours[:, :, ::-1], edgecolors="#8a8a8a", linewidth=0.5, shade=False)
        axes.view_init(elev=24, azim=-56)
        axes.set_box_aspect(size, zoom=1.1)
        axes.set(xlim=(0, size[0]), ylim=(0, size[1]), zlim=(0, size[2]))
        for position, label in zip(((size[0] / 2, -1.1, 0), (size[0] + 0.9, size[1] / 2, 0), (-0.9, 0, size[2] / 2)), labels):
            axes.text(*position, label, ha="center", va="center", fontsize=8.5, color="#333333")
    figure.suptitle("Which values share one mean and one deviation: those in blue do; every other set of the same form has its own", fontsize=11)
    figure.subplots_adjust(left=0.01, right=0.99, top=0.87, bottom=0.09, wspace=0.0, hspace=0.30)
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    table = commands.add_parser("table")
    table.add_argument("file", type=Path)
    sharing = commands.add_parser("sharing")
    for command in (table, sharing):
        command.add_argument("--out", type=Path, default=Path())
    args = parser.parse_args()
    with plt.rc_context(STYLE):
        if args.command == "table":
            try:
                figure = draw_table(json.loads(args.file.read_text()))
            except (ValueError, KeyError, TypeError) as error:
                print(f"plot_norms: {args.file}: not what norm_table --json prints: {error!r}", file=sys.stderr)
                sys.exit(2)
            save(figure, args.out, "norm_table")
        else:
            save(draw_sharing(), args.out, "norm_sharing")


if __name__ == "__main__":
    try:
        main()
    except OSError as error:   # what cannot be read or written
        print(f"plot_norms: {error}", file=sys.stderr)
        sys.exit(2)
