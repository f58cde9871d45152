#!/usr/bin/python3
"""Draws the runs of mnist_batchsize or of train_lstm --norms.

mnist_batchsize, in the manner of figure 6 of "Layer Normalization": training NLL (log axis) above, test error below, against epochs; one column per
batch size, one line per norm (mean over seeds, band from the lowest to the highest seed).
train_lstm: training loss above, validation below, against steps on the left and against seconds (evaluation included) on the right; one line per norm.

    scripts/plot.py RUNDIR [--out DIR] [--title TEXT]
RUNDIR holds one folder per run with metrics.csv (step,epoch,wall_s,split,metric,value; the last value of a step wins) and run.json.
Unfinished runs are drawn as far as they go. Writes figure.svg and figure.png to DIR (RUNDIR by default). The same runs give the same SVG.
"""
import argparse
import csv
import json
import math
import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib import ticker

# Colours that stay apart for colour-blind readers (Okabe and Ito) and in grey; drawn in this order, the paper's subject on top.
NORMS = {
    "none": ("Baseline", "#6b6b6b", "s"), "weight": ("WeightNorm", "#000000", "P"), "meanbatch": ("Mean-only BN", "#56b4e9", "v"),
    "weight+meanbatch": ("WeightNorm + mean BN", "#8c564b", "X"), "group": ("GroupNorm", "#f0a000", "D"), "rms": ("RMSNorm", "#009e73", "<"),
    "prms": ("pRMSNorm", "#cc79a7", ">"), "batch": ("BatchNorm", "#0072b2", "^"), "layer-cell": ("LayerNorm, cell alone", "#b8860b", "p"),
    "layer-carry": ("LayerNorm, carried", "#7f3b08", "h"), "layer-gates": ("LayerNorm, by gate", "#cc3377", "*"), "layer": ("LayerNorm", "#d55e00", "o"),
}
SCORES = {"bpc": "bits per symbol", "error": "error (%)", "mse": "mean squared error", "nll": "NLL (nats)"}
STYLE = {
    "font.family": "DejaVu Sans", "font.size": 9, "axes.titlesize": 10, "axes.labelsize": 9, "legend.fontsize": 9,
    "xtick.labelsize": 8, "ytick.labelsize": 8, "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8,
    "axes.edgecolor": "#444444", "xtick.color": "#444444", "ytick.color": "#444444", "axes.grid": True, "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6, "axes.axisbelow": True, "svg.hashsalt": "lamina", "svg.fonttype": "path",
}


def read_curves(path):
    """{(split, metric): {step: (epoch, value, seconds)}}; lines cut short by a crash are left out."""
    curves = {}
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        for row in csv.DictReader(file):
            try:
                step, point = int(row["step"]), (float(row["epoch"]), float(row["value"]), float(row["wall_s"]))
            except (KeyError, TypeError, ValueError):
                continue
            curves.setdefault((row["split"], row["metric"]), {})[step] = point
    return curves


def read_run(folder):
    """(norm, batch size, seed, config) of a run, from run.json or, where that is damaged, from the folder's name."""
    config = {}
    try:
        config = json.loads((folder / "run.json").read_text()).get("config", {})
        return str(config["norm"]), int(config["batch_size"]), int(config.get("seed", 0)), config
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        match = re.fullmatch(r"(.+)-n(\d+)-s(\d+)", folder.name)
        return (match[1], int(match[2]), int(match[3]), config) if match else None


def read_runs(root):
    """({(norm, batch size): {seed: curves}}, a run's config)"""
    runs, config = {}, {}
    for metrics in sorted(root.glob("*/metrics.csv")):
        run = read_run(metrics.parent)
        curves = read_curves(metrics)
        if run is None or not curves:
            print(f"plot: {metrics.parent} skipped: {'no run.json' if run is None else 'no metrics yet'}", file=sys.stderr)
            continue
        norm, batch, seed, run_config = run
        runs.setdefault((norm, batch), {})[seed] = curves
        config = config or run_config
    return runs, config


def over_seeds(seeds, split, metric):
    """Arrays epoch, mean, lowest, highest over the seeds that have a finite value there (NaN where none has: a gap in the line)."""
    values = {}
    for curves in seeds.values():
        for epoch, value, _ in curves.get((split, metric), {}).values():
            values.setdefault(round(epoch, 6), []).append(value)
    rows = []
    for epoch in sorted(values):
        finite = [v for v in values[epoch] if math.isfinite(v)] or [math.nan]
        rows.append((epoch, sum(finite) / len(finite), min(finite), max(finite)))
    return np.array(rows).reshape(-1, 4).T


def styles(norms):
    """{norm: (label, colour, marker, line)}, in the order of drawing; "group:8" is "GroupNorm (8)", and of two of a kind the second is dashed."""
    kinds, result = list(NORMS), {}
    place = lambda norm: (kinds.index(kind) if (kind := norm.partition(":")[0]) in NORMS else len(kinds), norm)
    for norm in sorted(norms, key=place):
        kind, _, number = norm.partition(":")
        label, colour, marker = NORMS.get(kind, (kind, None, "d"))
        before = sum(other.partition(":")[0] == kind for other in result)
        result[norm] = (f"{label} ({number})" if number else label, colour, marker, ("-", "--", ":", "-.")[before % 4])
    return result


def draw_line(axes, seeds, split, metric, style, scale=1.0, log=False):
    """Returns what was drawn: (epochs, lowest, highest)."""
    epoch, mean, low, high = over_seeds(seeds, split, metric)
    if not len(epoch):
        return epoch, low, high
    mean, low, high = (np.where(v > 0, v, np.nan) * scale if log else v * scale for v in (mean, low, high))   # log of 0: a gap
    label, colour, marker, dashes = style
    few = len(epoch) <= 12
    line, = axes.plot(epoch, mean, color=colour, label=label, linestyle=dashes, linewidth=1.6 if few else 1.3, marker=marker if few else None,
                      markersize=4.5, markeredgewidth=0, clip_on=not few, zorder=3)
    if len(seeds) > 1:
        axes.fill_between(epoch, low, high, color=line.get_color(), alpha=0.18, linewidth=0, zorder=2)
    return epoch, low, high


def error_limits(drawn):
    """Limits of the error axis over all columns: in long runs the first tenth may leave at the top, so that the rest can be told apart."""
    last = max((e[-1] for e, _, _ in drawn if len(e)), default=0)
    late = [v for e, low, high in drawn for v in np.concatenate([low[e > 0.1 * last], high[e > 0.1 * last]]) if math.isfinite(v)] if last > 12 else []
    values = late or [v for _, low, high in drawn for v in np.concatenate([low, high]) if math.isfinite(v)]
    if not values:
        return None
    room = 0.08 * (max(values) - min(values)) or 0.1 * max(values) or 1.0
    return max(0.0, min(values) - room), max(values) + room


def plain_log_axis(axis):
    """A log axis that names a few values of each decade when it spans little, and powers of ten when it spans much."""
    low, high = axis.get_view_interval()
    decades = math.log10(high / low) if low > 0 else 99
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 3, 5, 7) if decades < 1 else (1, 2, 5) if decades <= 2.2 else (1,), numticks=12))
    axis.set_minor_locator(ticker.LogLocator(subs=range(1, 10) if decades <= 5 else (1,), numticks=99))
    axis.set_minor_formatter(ticker.NullFormatter())
    if decades <= 2.2:
        axis.set_major_formatter(ticker.FuncFormatter(lambda v, _: f"{v:g}"))


def describe(runs, config, cut):
    """The line under the title: what was run, and how it is drawn."""
    seeds = {len(s) for s in runs.values()}
    count = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else f"{max(seeds)}"
    parts = [f"{ {'adam': 'Adam', 'sgd': 'SGD'}.get(config['optimizer'], config['optimizer']) }"] if isinstance(config.get("optimizer"), str) else []
    if isinstance(config.get("limit"), int) and config["limit"] > 0:
        parts.append(f"{config['limit']:,} training images")
    parts.append(f"{count} seed" + ("" if count == "1" else "s") + (", line: mean, band: lowest to highest" if max(seeds) > 1 else ""))
    if cut:
        parts.append("first epochs above the error axis")
    return "; ".join(parts)


def draw(runs, config, title):
    lines = styles({norm for norm, _ in runs})
    batches = sorted({batch for _, batch in runs}, reverse=True)
    width = max(4.2, 0.9 + 3.25 * len(batches))
    figure, grid = plt.subplots(2, len(batches), figsize=(width, 5.4), sharex="col", sharey="row", squeeze=False)
    drawn_error, handles = [], {}
    for column, batch in enumerate(batches):
        top, bottom = grid[:, column]
        top.set_yscale("log", nonpositive="mask")
        for norm, style in lines.items():
            seeds = runs.get((norm, batch), {})
            draw_line(top, seeds, "train", "nll", style, log=True)
            drawn_error.append(draw_line(bottom, seeds, "test", "error", style, scale=100))
        top.set_title(f"batch size {batch}", pad=6)
        bottom.set_xlabel("epoch")
        bottom.xaxis.set_major_locator(ticker.MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
        for axes in (top, bottom):
            handles.update({label: handle for handle, label in zip(*axes.get_legend_handles_labels())})
    grid[0, 0].set_ylabel("training NLL (nats)")
    grid[1, 0].set_ylabel("test error (%)")
    plain_log_axis(grid[0, 0].yaxis)
    cut = False
    if (limits := error_limits(drawn_error)) is not None:
        grid[1, 0].set_ylim(*limits)
        cut = any(np.nanmax(high, initial=0) > limits[1] for _, _, high in drawn_error)
    figure.align_ylabels(grid[:, 0])
    names = {"mnist": "MNIST", "fashion": "Fashion-MNIST"}
    figure.suptitle(title or f"{names.get(config.get('dataset'), 'MNIST')}, 784-1000-1000-10", fontsize=11.5, y=0.985)
    figure.text(0.5, 0.935, describe(runs, config, cut), ha="center", va="top", fontsize=8, color="#555555")
    rows = 1
    if handles:
        labels = [label for label, *_ in reversed(list(lines.values())) if label in handles]
        columns = min(len(labels), 2 * len(batches)) if len(labels) > 3 else len(labels)
        rows = math.ceil(len(labels) / columns)
        figure.legend([handles[l] for l in labels], labels, loc="upper center", bbox_to_anchor=(0.5, 0.912), ncol=columns, frameon=False,
                      handlelength=1.8, columnspacing=2.2)
    figure.tight_layout(rect=(0, 0, 1, 0.915 - 0.038 * (rows - 1)), h_pad=1.2, w_pad=1.6)
    return figure


def draw_comparison_panel(axes, runs, lines, split, metric, by_seconds):
    """One line per norm; returns whether there was anything to draw."""
    drawn = False
    for norm, (label, colour, marker, dashes) in lines.items():
        for curves in (c for (name, _), seeds in runs.items() if name == norm for c in seeds.values()):
            points = curves.get((split, metric), {})
            if not points:
                continue
            steps = sorted(points)
            x = [points[s][2] if by_seconds else s for s in steps]
            y = [points[s][1] * (100 if metric == "error" else 1) for s in steps]
            few = len(steps) <= 12
            axes.plot(x, y, color=colour, label=label, linestyle=dashes, linewidth=1.5, marker=marker if few else None, markersize=4.5, markeredgewidth=0)
            drawn = True
    return drawn


def draw_comparison(runs, config, title):
    """The figure of train_lstm --norms."""
    lines = styles({norm for norm, _ in runs})
    names = {key for seeds in runs.values() for curves in seeds.values() for key in curves}
    loss = "mse" if ("train", "mse") in names else "nll"
    score = next((m for m in SCORES if ("validation", m) in names), loss)
    figure, grid = plt.subplots(2, 2, figsize=(7.6, 5.4), sharex="col", sharey="row", squeeze=False)
    for row, (split, metric, text) in enumerate((("train", loss, f"training {SCORES[loss]}, epoch so far"), ("validation", score, f"validation {SCORES[score]}"))):
        for column in (0, 1):
            drawn = draw_comparison_panel(grid[row, column], runs, lines, split, metric, by_seconds=column == 1)
        if drawn and loss == "mse":
            grid[row, 0].set_yscale("log", nonpositive="mask")
        grid[row, 0].set_ylabel(text)
    grid[1, 0].set_xlabel("step")
    grid[1, 1].set_xlabel("seconds")
    figure.align_ylabels(grid[:, 0])
    cell, task = str(config.get("cell", "")).upper(), config.get("task", "")
    what = {"text": "characters of a text", "rows": "MNIST by rows", "pixels": "MNIST by pixels", "adding": "the adding problem", "copy": "the copying problem"}
    figure.suptitle(title or f"{cell} of {config.get('hidden', '?')} on {what.get(task, task)}", fontsize=11.5, y=0.985)
    handles = dict(zip(*reversed(grid[0, 0].get_legend_handles_labels())))
    labels = [label for label, *_ in reversed(list(lines.values())) if label in handles]
    if labels:
        figure.legend([handles[l] for l in labels], labels, loc="upper center", bbox_to_anchor=(0.5, 0.945), ncol=min(len(labels), 4), frameon=False,
                      handlelength=1.8, columnspacing=2.2)
    figure.tight_layout(rect=(0, 0, 1, 0.93 - 0.038 * (math.ceil(len(labels) / 4) - 1)), h_pad=1.2, w_pad=1.6)
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rundir", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--title")
    args = parser.parse_args()
    runs, config = read_runs(args.rundir) if args.rundir.is_dir() else ({}, {})
    if not runs:
        print(f"plot: {args.rundir}: no run with metrics in it", file=sys.stderr)
        sys.exit(2)
    out = args.out or args.rundir
    out.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        figure = (draw_comparison if "cell" in config else draw)(runs, config, args.title)
        for name, options in (("figure.svg", {"metadata": {"Date": None}}), ("figure.png", {"dpi": 200, "metadata": {"Software": None}})):
            figure.savefig(out / name, facecolor="white", **options)
            print(out / name)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:   # what cannot be read or written
        print(f"plot: {error}", file=sys.stderr)
        sys.exit(2)
