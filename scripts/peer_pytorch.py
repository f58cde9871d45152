#!/usr/bin/env python3
"""Times the named training workloads on PyTorch, one JSON line each: {"name", "us", "peer"}.

lamina's bench uses the same names; compare_peer.sh puts the two side by side from one sitting:
    OMP_NUM_THREADS=2 peer_pytorch.py [--filter step/] [--threads 2] [--repeat 5] [--device cuda]
Needs any PyTorch >= 1.13 (Debian: python3-torch with libopenblas0-openmp, whose BLAS must be the OpenMP one:
the pthread flavour is about 2x slower under OpenMP and would flatter us). Times are the minimum over repeats of
the mean of a burst; "us" is microseconds for one training step (forward, loss, backward, update) or one op (forward + backward).
"""
import argparse, json, time
import torch
from torch import nn
import torch.nn.functional as F


class LayerNormLSTM(nn.Module):
    """The paper's LN-LSTM (equations 20-22): LN over 4H of each product, raw c carried, LN(c) only towards h."""

    def __init__(self, inputs, hidden):
        super().__init__()
        self.ih, self.hh = nn.Linear(inputs, 4 * hidden, bias=False), nn.Linear(hidden, 4 * hidden, bias=False)
        self.bias = nn.Parameter(torch.zeros(4 * hidden))
        self.norm_x, self.norm_h, self.norm_c = nn.LayerNorm(4 * hidden), nn.LayerNorm(4 * hidden), nn.LayerNorm(hidden)
        self.hidden = hidden

    def forward(self, x):
        h = x.new_zeros(x.shape[1], self.hidden)
        c, outputs = h, []
        projected = self.norm_x(self.ih(x)) + self.bias
        for step in projected:
            i, f, g, o = (step + self.norm_h(self.hh(h))).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(self.norm_c(c))
            outputs.append(h)
        return torch.stack(outputs), None


def wait():
    """Until a GPU has done what it was asked."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def burst(run, repeat, budget=0.4):
    run(); run(); wait()
    start = time.perf_counter(); run(); wait()
    count = max(1, int(budget / max(time.perf_counter() - start, 1e-6)))
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        for _ in range(count):
            run()
        wait()
        best = min(best, (time.perf_counter() - start) / count)
    return best * 1e6


def mlp_step(norm, batch, optimizer):
    make = {"none": lambda n: nn.Identity(), "layer": nn.LayerNorm, "batch": nn.BatchNorm1d}[norm]
    model = nn.Sequential(nn.Linear(784, 1000), make(1000), nn.ReLU(), nn.Linear(1000, 1000), make(1000), nn.ReLU(), nn.Linear(1000, 10))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3) if optimizer == "adam" else torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.rand(batch, 784), torch.randint(0, 10, (batch,))

    def run():
        opt.zero_grad(); F.cross_entropy(model(x), y).backward(); opt.step()
    return run


def recurrent_step(kind, T, N, C, H):
    model = nn.LSTM(C, H) if kind == "none" else LayerNormLSTM(C, H)
    opt, x, w = torch.optim.Adam(model.parameters(), lr=1e-3), torch.randn(T, N, C), torch.randn(T, N, H)

    def run():
        opt.zero_grad(); (model(x)[0] * w).mean().backward(); opt.step()
    return run


def op(module, shape):
    x, w = torch.randn(*shape, requires_grad=True), torch.randn(*shape)

    def run():
        x.grad = None; module.zero_grad(); module(x).backward(w)
    return run


def attention(N, heads, T, D):
    q, k, v = (torch.randn(N, heads, T, D, requires_grad=True) for _ in range(3))
    w = torch.randn(N, heads, T, D)
    fused = getattr(F, "scaled_dot_product_attention", None)

    def run():
        for t in (q, k, v):
            t.grad = None
        out = fused(q, k, v) if fused else torch.softmax(q @ k.transpose(-1, -2) / D ** 0.5, -1) @ v
        out.backward(w)
    return run


def transformer_step(N, T, E, heads, norm_first):
    model = nn.TransformerEncoderLayer(E, heads, 4 * E, dropout=0.0, batch_first=True, norm_first=norm_first)
    opt, x, w = torch.optim.Adam(model.parameters(), lr=1e-3), torch.randn(N, T, E), torch.randn(N, T, E)

    def run():
        opt.zero_grad(); (model(x) * w).mean().backward(); opt.step()
    return run


def adam_update(n):
    p = nn.Parameter(torch.randn(n)); p.grad = torch.randn(n)
    opt = torch.optim.Adam([p], lr=1e-3)
    return opt.step


def conv_step(norm, N):
    make = {"none": lambda n: nn.Identity(), "batch": nn.BatchNorm2d, "group": lambda n: nn.GroupNorm(8, n)}[norm]
    model = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), make(32), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Conv2d(32, 64, 3, padding=1), make(64), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 49, 10))
    opt, x, y = torch.optim.Adam(model.parameters(), lr=1e-3), torch.rand(N, 1, 28, 28), torch.randint(0, 10, (N,))

    def run():
        opt.zero_grad(); F.cross_entropy(model(x), y).backward(); opt.step()
    return run


WORKLOADS = {
    **{f"step/mlp-{n}-n{b}-{o}": (mlp_step, n, b, o) for n in ("none", "layer", "batch") for b in (4, 128) for o in ("adam", "sgd")},
    **{f"step/{'ln-lstm' if k == 'layer' else 'lstm'}-t{T}-n{N}-c{C}-h{H}": (recurrent_step, k, T, N, C, H)
       for k in ("none", "layer") for T, N, C, H in ((28, 128, 28, 128), (100, 32, 128, 256), (64, 64, 256, 512), (128, 8, 400, 400))},
    **{f"op/layer_norm-{r}x{c}": (lambda r, c: op(nn.LayerNorm(c), (r, c)), r, c) for r, c in ((128, 1000), (4096, 768), (65536, 256))},
    "op/batch_norm-128x1000": (lambda: op(nn.BatchNorm1d(1000), (128, 1000)),),
    "op/batch_norm-32x64x28x28": (lambda: op(nn.BatchNorm2d(64), (32, 64, 28, 28)),),
    "op/group_norm-32x64x28x28-g8": (lambda: op(nn.GroupNorm(8, 64), (32, 64, 28, 28)),),
    "op/instance_norm-32x64x28x28": (lambda: op(nn.InstanceNorm2d(64, affine=True), (32, 64, 28, 28)),),
    "op/attention-n8-h8-t128-d64": (attention, 8, 8, 128, 64),
    "step/transformer-pre-n8-t128-e256-h8": (transformer_step, 8, 128, 256, 8, True),
    "step/transformer-post-n8-t128-e256-h8": (transformer_step, 8, 128, 256, 8, False),
    "step/conv-batch-n64": (conv_step, "batch", 64),
    "step/conv-group-n64": (conv_step, "group", 64),
    "op/adam-10m": (adam_update, 10_000_000),
}

if __name__ == "__main__":
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--filter", default="", help="only the workloads whose name contains this")
    args.add_argument("--threads", type=int, default=2)
    args.add_argument("--repeat", type=int, default=5)
    args.add_argument("--device", default="cpu", help="cpu, cuda or cuda:<index> (needs PyTorch >= 2)")
    args.add_argument("--list", action="store_true")
    args = args.parse_args()
    if args.device != "cpu":
        if not torch.cuda.is_available():
            raise SystemExit(f"peer_pytorch.py: --device {args.device}: this PyTorch finds no GPU")
        torch.set_default_device(args.device)
    torch.set_num_threads(args.threads)
    for name, (make, *rest) in WORKLOADS.items():
        if args.filter in name:
            if args.list:
                print(name); continue
            print(json.dumps({"name": name, "us": round(burst(make(*rest), args.repeat), 1), "peer": f"torch {torch.__version__}"}), flush=True)
