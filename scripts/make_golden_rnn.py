#!/usr/bin/env python3
"""Writes tests/golden/rnn*.safetensors: reference values for recurrent layers, for lamina's tests.

The plain layers are PyTorch's own; the normalised ones are the papers' equations below, written out in float64 torch with its autograd, apart from
lamina's code. Names are the state dict's; d<name> is the gradient of <name>. Usage: scripts/make_golden_rnn.py [output folder]
"""
import pathlib
import sys

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import pytorch_checkpoint
from make_golden import SEED, leaf, normal

GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def gradients(outputs, leaves):
    """{d<name>: gradient} of the leaves, under cotangents drawn for the outputs, which are returned too."""
    cotangents = {f"cotangent.{name}": normal(*value.shape) for name, value in outputs.items()}
    sum((value * cotangents[f"cotangent.{name}"]).sum() for name, value in outputs.items()).backward()
    return cotangents | {f"d{name}": value.grad.clone() for name, value in leaves.items()}


# -- PyTorch's layers --------------------------------------------------------------------------------------------------

LAYERS = {"lstm": (nn.LSTM, nn.LSTMCell), "gru": (nn.GRU, nn.GRUCell), "rnn": (nn.RNN, nn.RNNCell)}
CASES = {   # name: layers, bidirectional, batch_first, bias, lengths
    "plain": (1, False, False, True, None),
    "no_bias": (1, True, False, False, None),
    "deep": (2, True, False, True, [5, 2, 4, 1]),
    "batch_first": (2, False, True, True, [3, 5, 1, 5]),
}


def pytorch(kind):
    out = {}
    steps, batch, inputs, hidden = 5, 4, 3, 4
    for name, (layers, bidirectional, batch_first, bias, lengths) in CASES.items():
        layer = LAYERS[kind][0](inputs, hidden, layers, bias=bias, batch_first=batch_first, bidirectional=bidirectional).double()
        for p in layer.parameters():
            p.data = normal(*p.shape, std=0.5)
        states = layers * (2 if bidirectional else 1)
        given = {"x": leaf(normal(*((batch, steps) if batch_first else (steps, batch)), inputs)), "h0": leaf(normal(states, batch, hidden))}
        if kind == "lstm":
            given["c0"] = leaf(normal(states, batch, hidden))
        x = given["x"] if lengths is None else pack_padded_sequence(given["x"], lengths, batch_first, enforce_sorted=False)
        y, state = layer(x, (given["h0"], given["c0"]) if kind == "lstm" else given["h0"])
        if lengths is not None:
            y, _ = pad_packed_sequence(y, batch_first, total_length=steps)
        outputs = {"y": y} | (dict(zip("hc", state)) if kind == "lstm" else {"h": state})
        leaves = given | dict(layer.named_parameters())
        values = leaves | outputs | gradients(outputs, leaves)
        if lengths is not None:
            values["lengths"] = torch.tensor(lengths)
        out |= {f"{name}.{key}": value for key, value in values.items()}
    cell = LAYERS[kind][1](inputs, hidden).double()
    for p in cell.parameters():
        p.data = normal(*p.shape, std=0.5)
    given = {name: leaf(normal(batch, inputs if name == "x" else hidden)) for name in (["x", "h0", "c0"] if kind == "lstm" else ["x", "h0"])}
    state = cell(given["x"], (given["h0"], given["c0"]) if kind == "lstm" else given["h0"])
    outputs = dict(zip("hc", state)) if kind == "lstm" else {"h": state}
    leaves = given | dict(cell.named_parameters())
    out |= {f"cell.{key}": value for key, value in (leaves | outputs | gradients(outputs, leaves)).items()}
    return out, f"torch.nn.{LAYERS[kind][0].__name__}: 'deep' is bidirectional with two layers and packed lengths; 'cell' one step of the cell"


# -- the papers' equations ---------------------------------------------------------------------------------------------
# Gate order i, f, g, o and r, z, n; a_x = W_ih x_t, a_h = W_hh h_{t-1}.

EPS, MOMENTUM = 1e-5, 0.1


def layer(v):      # Ba, Kiros, Hinton 2016, eq. 15-16: mean and biased variance of the entries
    return (v - v.mean(-1, keepdim=True)) / (v.var(-1, unbiased=False, keepdim=True) + EPS).sqrt()


def rms(v):        # Zhang & Sennrich 2019, eq. 4
    return v / (v.square().mean(-1, keepdim=True) + EPS).sqrt()


def batch(v):      # Cooijmans et al. 2017, eq. 3: of the cases
    return (v - v.mean(0)) / (v.var(0, unbiased=False) + EPS).sqrt()


def lstm(norm, p, x, h, c, seen):
    a_x, a_h = x @ p["weight_ih_l0"].T, h @ p["weight_hh_l0"].T
    b = p["bias_ih_l0"] + p["bias_hh_l0"]
    n = {"rms": rms, "batch": batch}.get(norm, layer)
    if norm in ("layer", "layer-carry", "rms", "batch"):    # LN paper eq. 20, Cooijmans eq. 6: both sums, all gates together
        seen |= {"ih": a_x, "hh": a_h}
        a = n(a_x) * p["gain_ih_l0"] + n(a_h) * p["gain_hh_l0"] + b
    elif norm == "layer-gates":                             # TensorFlow's LayerNormBasicLSTMCell: each gate of the sum by itself
        a = torch.cat([layer(part) for part in (a_x + a_h).chunk(4, -1)], -1) * p["gain_hh_l0"] + b
    else:                                                   # LN paper eq. 29: only c
        a = a_x + a_h + b
    i, f, g, o = a.chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    seen["c"] = c
    k = n(c) * p["gain_c_l0"] + p["bias_c_l0"]
    h = torch.sigmoid(o) * torch.tanh(k)                    # LN paper eq. 22
    return h, k if norm in ("layer-carry", "layer-gates") else c


def gru(norm, p, x, h, _, seen):
    a_x, a_h = x @ p["weight_ih_l0"].T, h @ p["weight_hh_l0"].T
    seen |= {"ih": a_x, "hh": a_h}
    H = h.shape[-1]
    n = {"rms": rms, "batch": batch, "layer": layer}[norm]
    halves = lambda a: torch.cat([n(a[:, : 2 * H]), n(a[:, 2 * H :])], -1)   # LN paper eq. 26-28: r and z together
    from_x = halves(a_x) * p["gain_ih_l0"] + p["bias_ih_l0"]
    from_h = halves(a_h) * p["gain_hh_l0"] + p["bias_hh_l0"]
    r, z = torch.sigmoid(from_x + from_h)[:, : 2 * H].chunk(2, -1)
    new = torch.tanh(from_x[:, 2 * H :] + r * from_h[:, 2 * H :])
    return (1 - z) * new + z * h, None


def rnn(norm, p, x, h, _, seen):
    a_x, a_h = x @ p["weight_ih_l0"].T, h @ p["weight_hh_l0"].T
    seen |= {"ih": a_x, "hh": a_h}
    n = {"rms": rms, "batch": batch, "layer": layer}[norm]
    return torch.tanh(n(a_x) * p["gain_ih_l0"] + p["bias_ih_l0"] + n(a_h) * p["gain_hh_l0"] + p["bias_hh_l0"]), None


NORMS = {"lstm": ["layer", "layer-cell", "layer-carry", "layer-gates", "rms", "batch"], "gru": ["layer", "rms", "batch"], "rnn": ["layer", "rms", "batch"]}
STEP = {"lstm": lstm, "gru": gru, "rnn": rnn}


def normalised(kind):
    """One layer over all steps; for batch also the running statistics, from 0 and 1, after this one pass."""
    out = {}
    steps, cases, inputs, hidden = 3, 4, 3, 5
    rows = GATES[kind] * hidden
    for norm in NORMS[kind]:
        given = {"x": normal(steps, cases, inputs), "h0": normal(1, cases, hidden, std=0.5)}
        weights = {"weight_ih_l0": normal(rows, inputs, std=0.5), "weight_hh_l0": normal(rows, hidden, std=0.5), "bias_ih_l0": normal(rows, std=0.3),
                   "bias_hh_l0": normal(rows, std=0.3)}
        if norm in ("layer", "layer-carry", "rms", "batch"):
            weights["gain_ih_l0"] = normal(rows, mean=0.8, std=0.3)
        if norm != "layer-cell":
            weights["gain_hh_l0"] = normal(rows, mean=0.8, std=0.3)
        if kind == "lstm":
            given["c0"] = normal(1, cases, hidden)
            weights |= {"gain_c_l0": normal(hidden, mean=0.8, std=0.3), "bias_c_l0": normal(hidden, std=0.3)}
        leaves = {name: leaf(value) for name, value in (given | weights).items()}
        h, c = leaves["h0"][0], leaves["c0"][0] if kind == "lstm" else None
        y, seen = [], []
        for x in leaves["x"]:
            seen.append({})
            h, c = STEP[kind](norm, leaves, x, h, c, seen[-1])
            y.append(h)
        outputs = {"y": torch.stack(y), "h": h[None]} | ({"c": c[None]} if kind == "lstm" else {})
        values = leaves | outputs | gradients(outputs, leaves)
        if norm == "batch":
            for name in seen[0]:
                values[f"running_mean_{name}_l0"] = torch.stack([MOMENTUM * s[name].mean(0) for s in seen])
                values[f"running_var_{name}_l0"] = torch.stack([1 - MOMENTUM + MOMENTUM * s[name].var(0, unbiased=True) for s in seen])
        out |= {f"{norm}.{key}": value for key, value in values.items()}
    return out, f"{kind} with normalisation, the papers' equations in elementary operations"


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "tests" / "golden"
    for kind in GATES:
        for name, make in ((f"rnn_{kind}", pytorch), (f"rnn_{kind}_norms", normalised)):
            torch.manual_seed(SEED)
            tensors, note = make(kind)
            metadata = {"made_by": "scripts/make_golden_rnn.py", "seed": str(SEED), "torch": torch.__version__.split("+")[0], "note": note}
            path = folder / f"{name}.safetensors"
            pytorch_checkpoint.write(path, tensors, metadata)
            print(f"{path.name}: {len(tensors)} tensors, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
