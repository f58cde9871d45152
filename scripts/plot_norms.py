#!/usr/bin/python3
"""Figures about the normalisers.

    scripts/plot_norms.py table FILE.json [--out DIR]   the heat map of what norm_table --json has measured: norm_table.svg and .png
    scripts/plot_norms.py compare RUNDIR [--out DIR] [--title TEXT]   accuracies of a norm_compare: figure.svg and .png
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

from plot import STYLE, describe, draw_line, over_seeds, read_runs, styles

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


# -- what norm_compare trained -----------------------------------------------------------------------------------------


def with_accuracies(curves):
    """The curves of a run, with accuracies in per cent beside the errors."""
    for split, metric in list(curves):
        if metric == "error":
            curves[split, "accuracy"] = {step: (epoch, 100 * (1 - value), *more) for step, (epoch, value, *more) in curves[split, metric].items()}
    return curves


def limits(drawn):
    """Of an axis that all panels of a row share, from (norm, (epoch, lowest, highest)): what normalised nets do after the first epoch. The first epoch,
    and a plain net that hardly trains, may leave at the bottom."""
    chosen = [curve for norm, curve in drawn if norm != "none"] or [curve for _, curve in drawn]
    values = [v for epoch, low, high in chosen for v in np.concatenate([low[epoch > 1], high[epoch > 1]]) if math.isfinite(v)]
    values = values or [v for _, low, high in chosen for v in np.concatenate([low, high]) if math.isfinite(v)] or [0.0, 100.0]
    room = 0.06 * (max(values) - min(values)) or 1.0
    return max(min(values) - room, -0.5), min(max(values) + room, 100.5)


def draw_compare(runs, config, title):
    """Above training, below validation accuracy; a column for each batch size, and one with the last epoch against the batch size."""
    for seeds in runs.values():
        for curves in seeds.values():
            with_accuracies(curves)
    batches = sorted({batch for _, batch in runs})
    lines = styles({norm for norm, _ in runs})
    columns = len(batches) + (len(batches) > 1)
    figure, grid = plt.subplots(2, columns, figsize=(1.1 + 2.5 * columns, 6.0), sharey="row", squeeze=False)
    handles = {}
    for row, (split, label) in enumerate((("training", "training accuracy (%)"), ("validation", "validation accuracy (%)"))):
        drawn = []
        for column, batch in enumerate(batches):
            axes = grid[row, column]
            for norm, style in lines.items():
                drawn.append((norm, draw_line(axes, runs.get((norm, batch), {}), split, "accuracy", style)))
            for line in axes.get_lines():
                line.set_clip_on(True)
            axes.set_xlabel("epoch" if row == 1 else "")
            axes.set_title(f"batch size {batch}" if row == 0 else "")
            handles.update({h.get_label(): h for h in axes.get_lines()})
        grid[row, 0].set_ylabel(label)
        grid[row, 0].set_ylim(*limits(drawn))
        if len(batches) > 1:
            draw_last_epochs(grid[row, -1], runs, batches, lines, split)
            grid[row, -1].set_xlabel("batch size" if row == 1 else "")
            grid[row, -1].set_title("last epoch" if row == 0 else "")
    figure.suptitle(title or "Normalisers at several batch sizes", fontsize=11.5, y=0.985)
    figure.text(0.5, 0.938, describe(runs, config, False), ha="center", va="top", fontsize=8, color="#555555")
    labels = [style[0] for style in reversed(list(lines.values())) if style[0] in handles]
    if labels:
        figure.legend([handles[label] for label in labels], labels, loc="upper center", bbox_to_anchor=(0.5, 0.915), ncol=min(len(labels), 2 * columns),
                      frameon=False, handlelength=1.8, columnspacing=2.2)
    rows = math.ceil(len(labels) / (2 * columns))
    figure.tight_layout(rect=(0, 0, 1, 0.915 - 0.04 * max(rows - 1, 0)), h_pad=1.2, w_pad=1.2)
    return figure


def draw_last_epochs(axes, runs, batches, lines, split):
    for norm, (label, colour, marker, dashes) in lines.items():
        points = []
        for batch in batches:
            epoch, mean, low, high = over_seeds(runs.get((norm, batch), {}), split, "accuracy")
            if len(epoch):
                points.append((batch, mean[-1], low[-1], high[-1]))
        if points:
            x, mean, low, high = np.array(points).T
            line, = axes.plot(x, mean, color=colour, linestyle=dashes, marker=marker, linewidth=1.6, markersize=4.5, markeredgewidth=0, zorder=3)
            axes.fill_between(x, low, high, color=line.get_color(), alpha=0.18, linewidth=0, zorder=2)
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, batches)
    axes.minorticks_off()


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
    compare = commands.add_parser("compare")
    compare.add_argument("rundir", type=Path)
    compare.add_argument("--title")
    sharing = commands.add_parser("sharing")
    for command in (table, compare, sharing):
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
        elif args.command == "compare":
            runs, config = read_runs(args.rundir) if args.rundir.is_dir() else ({}, {})
            if not runs:
                print(f"plot_norms: {args.rundir}: no run with metrics in it", file=sys.stderr)
                sys.exit(2)
            save(draw_compare(runs, config, args.title), args.out, "figure")
        else:
            save(draw_sharing(), args.out, "norm_sharing")


if __name__ == "__main__":
    try:
        main()
    except OSError as error:   # what cannot be read or written
        print(f"plot_norms: {error}", file=sys.stderr)
        sys.exit(2)
