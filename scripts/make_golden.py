#!/usr/bin/env python3
"""Writes tests/golden/*.safetensors: reference values from PyTorch, for lamina's tests.

Everything is computed in float64 (PyTorch's own float32 layer norm is off at large offsets), from inputs that float32 can hold, so that the values serve
f32 and f64 tests alike. Needs PyTorch >= 1.13, e.g. Debian's python3-torch. Usage: scripts/make_golden.py [output folder]
"""
import math
import pathlib
import sys

import torch
import torch.nn.functional as F
from torch import nn

import pytorch_checkpoint

SEED = 20160721


def write(path, tensors, note):
    metadata = {"made_by": "scripts/make_golden.py", "seed": str(SEED), "torch": torch.__version__.split("+")[0], "note": note}
    pytorch_checkpoint.write(path, tensors, metadata)
    print(f"{path.name}: {len(tensors)} tensors, {path.stat().st_size} bytes")


def normal(*shape, mean=0.0, std=1.0):
    return (torch.randn(*shape, dtype=torch.float32) * std + mean).double()


def number(value):
    return torch.tensor(float(value), dtype=torch.float64)


def leaf(x):
    return x.clone().requires_grad_()


def layer_norm():
    out = {}
    cases = [((3, 4), 1, 0, 1, 1e-5), ((2, 3, 5), 2, 0, 1, 1e-5), ((5, 33), 1, 1e4, 0.1, 1e-5), ((7, 127), 1, -3, 2, 1e-3), ((2, 1, 3, 2, 4), 3, 0, 1e-3, 1e-6)]
    for i, (shape, axes, mean, std, eps) in enumerate(cases):
        normalized = shape[-axes:]
        x, gain, bias = leaf(normal(*shape, mean=mean, std=std)), leaf(normal(*normalized)), leaf(normal(*normalized))
        dy = normal(*shape)
        y = F.layer_norm(x, normalized, gain, bias, eps)
        y.backward(dy)
        case = {"x": x, "gain": gain, "bias": bias, "dy": dy, "y": y, "dx": x.grad, "dgain": gain.grad, "dbias": bias.grad, "eps": number(eps)}
        out |= {f"{i}.{name}": value for name, value in case.items()}
    return out, "layer_norm over the trailing axes that gain has"


def batch_norm():
    """Three batches in training, then one in evaluation; '<i>.<step>.*', momentum -1 means cumulative."""
    out = {}
    for i, (shape, momentum, mean, eps) in enumerate([((7, 5), 0.1, 0, 1e-5), ((4, 3, 6), 0.3, 2, 1e-3), ((33, 2), None, 0, 1e-5), ((2, 3, 2, 2), 0.1, 1e3, 1e-5)]):
        layer = nn.BatchNorm1d(shape[1], eps=eps, momentum=momentum).double()
        layer._check_input_dim = lambda x: None
        layer.weight.data, layer.bias.data = normal(shape[1]), normal(shape[1])
        out |= {f"{i}.gain": layer.weight, f"{i}.bias": layer.bias, f"{i}.momentum": number(-1 if momentum is None else momentum), f"{i}.eps": number(eps)}
        for step in range(4):
            layer.train(step < 3)
            layer.zero_grad()
            x, dy = leaf(normal(*shape, mean=mean)), normal(*shape)
            y = layer(x)
            y.backward(dy)
            case = {"x": x, "dy": dy, "y": y, "dx": x.grad, "dgain": layer.weight.grad, "dbias": layer.bias.grad,
                    "running_mean": layer.running_mean, "running_var": layer.running_var}
            out |= {f"{i}.{step}.{name}": value.clone() for name, value in case.items()}
    return out, "batch_norm: steps 0, 1, 2 in training, step 3 in evaluation; running statistics after the step"


def group_norm():
    out = {}
    cases = [((3, 8), 2, 0, 1, 1e-5), ((2, 6, 5), 3, 0, 1, 1e-3), ((4, 12, 7), 4, 1e4, 0.1, 1e-5), ((2, 4, 3, 2), 1, -3, 2, 1e-5), ((3, 5, 2, 3), 5, 0, 1, 1e-5)]
    for i, (shape, groups, mean, std, eps) in enumerate(cases):
        x, gain, bias = leaf(normal(*shape, mean=mean, std=std)), leaf(normal(shape[1])), leaf(normal(shape[1]))
        dy = normal(*shape)
        y = F.group_norm(x, groups, gain, bias, eps)
        y.backward(dy)
        case = {"x": x, "gain": gain, "bias": bias, "dy": dy, "y": y, "dx": x.grad, "dgain": gain.grad, "dbias": bias.grad, "eps": number(eps), "groups": number(groups)}
        out |= {f"{i}.{name}": value for name, value in case.items()}
    return out, "group_norm, gain and bias by channel"


def instance_norm():
    """Three batches in training, then one in evaluation; '<i>.<step>.*'."""
    out = {}
    for i, (shape, momentum, mean, eps) in enumerate([((4, 3, 6), 0.1, 0, 1e-5), ((2, 5, 3, 4), 0.3, 2, 1e-3), ((1, 2, 9), 0.5, 1e2, 1e-5)]):
        kind = nn.InstanceNorm1d if len(shape) == 3 else nn.InstanceNorm2d
        layer = kind(shape[1], eps=eps, momentum=momentum, affine=True, track_running_stats=True).double()
        layer.weight.data, layer.bias.data = normal(shape[1]), normal(shape[1])
        out |= {f"{i}.gain": layer.weight, f"{i}.bias": layer.bias, f"{i}.momentum": number(momentum), f"{i}.eps": number(eps)}
        for step in range(4):
            layer.train(step < 3)
            layer.zero_grad()
            x, dy = leaf(normal(*shape, mean=mean)), normal(*shape)
            y = layer(x)
            y.backward(dy)
            case = {"x": x, "dy": dy, "y": y, "dx": x.grad, "dgain": layer.weight.grad, "dbias": layer.bias.grad,
                    "running_mean": layer.running_mean, "running_var": layer.running_var}
            out |= {f"{i}.{step}.{name}": value.clone() for name, value in case.items()}
    return out, "instance_norm: steps 0, 1, 2 in training, step 3 in evaluation; running statistics after the step"


class RMSNorm(nn.Module):
    """Zhang & Sennrich 2019, eq. 4; PyTorch 1.13 has none. The part p of the entries is measured."""
    def __init__(self, width, partial=1.0, eps=1e-5):
        super().__init__()
        self.weight, self.measured, self.eps = nn.Parameter(torch.ones(width)), math.ceil(width * partial), eps

    def forward(self, x):
        return x / (x[..., : self.measured].square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weight


def rms_norm():
    out = {}
    cases = [((3, 4), 1.0, 0, 1, 1e-5), ((5, 33), 0.0625, 0, 1, 1e-5), ((7, 127), 1.0, 1e4, 0.1, 1e-5), ((2, 3, 16), 0.3, -1, 2, 1e-3), ((4, 9), 1.0, 0, 1e-3, 1e-8)]
    for i, (shape, partial, mean, std, eps) in enumerate(cases):
        x, gain, bias = leaf(normal(*shape, mean=mean, std=std)), leaf(normal(shape[-1])), leaf(normal(shape[-1]))
        dy = normal(*shape)
        layer = RMSNorm(shape[-1], partial, eps)
        y = x / (x[..., : layer.measured].square().mean(-1, keepdim=True) + eps).sqrt() * gain + bias
        y.backward(dy)
        case = {"x": x, "gain": gain, "bias": bias, "dy": dy, "y": y, "dx": x.grad, "dgain": gain.grad, "dbias": bias.grad, "eps": number(eps), "partial": number(partial)}
        out |= {f"{i}.{name}": value for name, value in case.items()}
    return out, "rms_norm over the last axis, in elementary operations"


def weight_norm():
    out = {}
    for i, (shape, std) in enumerate([((2, 3), 1), ((5, 33), 0.1), ((4, 3, 5), 1), ((3, 2, 3, 3), 10)]):
        layer = nn.Linear(1, 1).double()
        layer.weight = nn.Parameter(normal(*shape, std=std))
        nn.utils.weight_norm(layer)
        layer.weight_g.data = normal(*layer.weight_g.shape)
        dw = normal(*shape)
        w = torch._weight_norm(layer.weight_v, layer.weight_g, 0)
        w.backward(dw)
        case = {"v": layer.weight_v, "g": layer.weight_g, "dw": dw, "w": w, "dv": layer.weight_v.grad, "dg": layer.weight_g.grad}
        out |= {f"{i}.{name}": value for name, value in case.items()}
    return out, "weight_norm, a norm for each entry of the first axis"


class MeanBatchNorm(nn.Module):
    """Salimans & Kingma 2016, section 4: subtracts the batch's mean, adds a bias; running mean as nn.BatchNorm1d keeps it."""
    def __init__(self, width):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x):
        if not self.training:
            return x - self.running_mean + self.bias
        mean = x.mean(0)
        self.running_mean = 0.9 * self.running_mean + 0.1 * mean.detach()
        self.num_batches_tracked += 1
        return x - mean + self.bias


def cross_entropy():
    out = {}
    for i, (rows, classes, smoothing, scale) in enumerate([(6, 5, 0.0, 1), (7, 10, 0.1, 3), (5, 33, 0.3, 20), (3, 2, 0.0, 1000)]):
        labels = torch.randint(0, classes, (rows,))
        labels[1] = -100
        logits = leaf(normal(rows, classes, std=scale))
        weight = normal(rows)
        out |= {f"{i}.logits": logits, f"{i}.labels": labels, f"{i}.smoothing": number(smoothing), f"{i}.weight": weight}
        for reduction in ("none", "mean", "sum"):
            logits.grad = None
            loss = F.cross_entropy(logits, labels, reduction=reduction, label_smoothing=smoothing)
            (loss * weight if reduction == "none" else loss * weight[0]).sum().backward()
            out |= {f"{i}.{reduction}": loss, f"{i}.{reduction}.dlogits": logits.grad.clone()}
    return out, "cross_entropy, ignore_index -100; the cotangent is weight (none) or weight[0]"


def softmax():
    out = {}
    x, dy = leaf(normal(3, 4, 5, std=4)), normal(3, 4, 5)
    out |= {"x": x, "dy": dy}
    for axis in range(3):
        for name, f in (("softmax", F.softmax), ("log_softmax", F.log_softmax)):
            x.grad = None
            y = f(x, dim=axis)
            y.backward(dy)
            out |= {f"{name}.{axis}.y": y, f"{name}.{axis}.dx": x.grad.clone()}
    return out, "softmax and log_softmax along each axis"


def gelu():
    out = {}
    x, dy = leaf(torch.cat([normal(60, std=3), torch.tensor([0.0, -0.0, 30, -30, 1e-6, -1e-6, -5.5]).float().double()])), normal(67)
    out |= {"x": x, "dy": dy}
    for form in ("none", "tanh"):
        x.grad = None
        y = F.gelu(x, approximate=form)
        y.backward(dy)
        name = {"none": "exact", "tanh": "tanh"}[form]
        out |= {f"{name}.y": y, f"{name}.dx": x.grad.clone()}
    return out, "gelu, with the error function (exact) and its tanh approximation"


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, dict(lr=0.1)),
    "sgd_momentum": (torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
    "sgd_dampening": (torch.optim.SGD, dict(lr=0.1, momentum=0.8, dampening=0.4, weight_decay=0.01)),
    "sgd_nesterov": (torch.optim.SGD, dict(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1)),
    "adam": (torch.optim.Adam, dict(lr=1e-3)),
    "adam_decay": (torch.optim.Adam, dict(lr=1e-2, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1)),
    "adamw": (torch.optim.AdamW, dict(lr=1e-3)),
    "adamw_decay": (torch.optim.AdamW, dict(lr=1e-2, betas=(0.5, 0.9), eps=1e-6, weight_decay=0.3)),
}


def optimizers():
    """Ten steps on given gradients; parameter b has none at step 4 and is left alone there."""
    steps, skipped = 10, 4
    start = {"a": normal(3, 4), "b": normal(5)}
    grads = {"a": normal(steps, 3, 4), "b": normal(steps, 5)}
    out = {f"start.{k}": v for k, v in start.items()} | {f"grad.{k}": v for k, v in grads.items()} | {"skipped_step_of_b": torch.tensor(skipped)}
    for name, (kind, options) in OPTIMIZERS.items():
        parameters = {k: leaf(v) for k, v in start.items()}
        optimizer = kind(parameters.values(), **options)
        trajectory = {k: [] for k in start}
        for step in range(steps):
            for k, p in parameters.items():
                p.grad = None if k == "b" and step == skipped else grads[k][step].clone()
            optimizer.step()
            for k, p in parameters.items():
                trajectory[k].append(p.detach().clone())
        settings = dict(optimizer.defaults)
        if "betas" in settings:
            settings["beta1"], settings["beta2"] = settings.pop("betas")
        out |= {f"{name}.{k}": torch.stack(v) for k, v in trajectory.items()}
        known = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "beta1", "beta2", "eps")
        out |= {f"{name}.{k}": number(settings[k]) for k in known if k in settings}
    return out, "ten optimiser steps: <name>.a [10, 3, 4] and <name>.b [10, 5] after each step, on grad.a and grad.b"


NORMS = {"none": lambda n: [], "layer": lambda n: [nn.LayerNorm(n)], "batch": lambda n: [nn.BatchNorm1d(n)], "meanbatch": lambda n: [MeanBatchNorm(n)],
         "group:2": lambda n: [nn.GroupNorm(2, n)], "rms": lambda n: [RMSNorm(n)], "prms:0.2": lambda n: [RMSNorm(n, 0.2)], "weight": lambda n: [],
         "weight+meanbatch": lambda n: [MeanBatchNorm(n)]}


def mlp(norm):
    """Five Adam steps (lr 0.01) of {Linear -> norm -> ReLU} x 2 -> Linear; names as in the state dict of nn::MLP."""
    sizes, batch, steps = [10, 16, 12, 4], 9, 5
    layers = []
    for i, (inputs, outputs) in enumerate(zip(sizes, sizes[1:])):
        layers.append(nn.Linear(inputs, outputs))
        if i + 2 < len(sizes):
            layers += NORMS[norm](outputs) + [nn.ReLU()]
            if norm.startswith("weight"):
                nn.utils.weight_norm(layers[-2 if norm == "weight" else -3])
    model = nn.Sequential(*layers)
    for name, p in model.named_parameters():   # gains and biases other than 1 and 0, so that their order matters
        if p.dim() == 1 or name.endswith("weight_g"):
            p.data += 0.3 * torch.randn_like(p)
    model.double()
    x, labels = normal(steps, batch, sizes[0]), torch.randint(0, sizes[-1], (steps, batch))
    state = lambda prefix: {f"{prefix}.{k}": v.clone() for k, v in model.state_dict().items()}
    out = {"x": x, "labels": labels, "lr": number(0.01)} | state("before")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[step]), labels[step])
        loss.backward()
        if step == 0:
            out |= {f"grad.{k}": p.grad.clone() for k, p in model.named_parameters()}
        optimizer.step()
        losses.append(loss.detach())
    out |= state("after") | {"losses": torch.stack(losses)}
    model.eval()
    out["eval_logits"] = model(x[0])
    return out, f"MLP {sizes}, norm {norm}, ReLU: state before and after five Adam steps, gradients of the first, losses; eval_logits of x[0] after them"


def resume():
    """Six Adam steps with weight decay; everything after three of them, as scripts/pytorch_checkpoint.py writes it, and after six."""
    model = nn.Sequential(nn.Linear(10, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 12), nn.LayerNorm(12), nn.ReLU(), nn.Linear(12, 4)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.02)
    x, labels = normal(6, 9, 10), torch.randint(0, 4, (6, 9))
    out = {"x": x, "labels": labels}
    for step in range(6):
        optimizer.zero_grad()
        F.cross_entropy(model(x[step]), labels[step]).backward()
        optimizer.step()
        if step in (2, 5):
            prefix = "half." if step == 2 else "end."
            out |= {prefix + name: tensor.clone() for name, tensor in pytorch_checkpoint.tensors_of(model, optimizer).items()}
    return out, "MLP of layer norms: weights and Adam's state after three and after six steps"


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "tests" / "golden"
    files = {"layer_norm": layer_norm, "batch_norm": batch_norm, "cross_entropy": cross_entropy, "softmax": softmax, "gelu": gelu, "optimizers": optimizers, "resume": resume,
             "group_norm": group_norm, "instance_norm": instance_norm, "rms_norm": rms_norm, "weight_norm": weight_norm}
    files |= {f"mlp_{norm.replace(':', '_')}": lambda norm=norm: mlp(norm) for norm in NORMS}
    for name, make in files.items():
        torch.manual_seed(SEED)   # each file on its own
        tensors, note = make()
        write(folder / f"{name}.safetensors", tensors, note)


if __name__ == "__main__":
    main()
