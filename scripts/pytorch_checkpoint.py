#!/usr/bin/env python3
"""Weights between lamina and PyTorch, with or without the optimiser's state, as safetensors files. In Python:

    import pytorch_checkpoint as exchange
    exchange.load("best.safetensors", model)                    # a file of lamina (weights or checkpoint) into a torch.nn.Module
    exchange.load("last.safetensors", model, optimizer)         # and into a torch.optim optimiser
    exchange.save("weights.safetensors", model, optimizer)      # for train::load_weights(path, model, &optimizer)

The model must have lamina's layout: torch.nn.Sequential(Linear, LayerNorm, ReLU, ...) for nn::MLP. The optimiser's state goes by the position of a
parameter, the same on both sides; its settings (learning rate, betas, ...) are not part of it. Needs PyTorch >= 1.13.
"""
import json
import pathlib

import torch

KINDS = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.uint8: "U8"}


def write(path, tensors, metadata=None):
    """The safetensors format: header length (u64, little-endian), JSON header padded to 8 bytes, then the values, widest types first so that all are aligned."""
    header, body = {"__metadata__": metadata} if metadata else {}, b""
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):
        tensor = tensor.detach().cpu().contiguous()
        data = tensor.numpy().astype(tensor.numpy().dtype.newbyteorder("<")).tobytes()
        header[name] = {"dtype": KINDS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + body)


def read(path):
    """{name: tensor}"""
    data = pathlib.Path(path).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    types = {name: dtype for dtype, name in KINDS.items()}
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        values = torch.frombuffer(bytearray(data[start + begin:start + end]) or bytearray(8), dtype=types[entry["dtype"]])
        tensors[name] = (values if end > begin else values[:0]).reshape(entry["shape"])
    return tensors


def tensors_of(model, optimizer=None):
    """What lamina's files hold: the model's state dict and, as "optim.<name>.<position>", the optimiser's."""
    tensors = dict(model.state_dict())
    if optimizer:
        for position, state in optimizer.state_dict()["state"].items():
            for name, value in state.items():
                if value is not None:
                    value = torch.as_tensor(value)
                    tensors[f"optim.{name}.{position}"] = value.to(torch.int64).reshape([]) if name == "step" else value
    return tensors


def save(path, model, optimizer=None):
    write(path, tensors_of(model, optimizer))


def load(path, model, optimizer=None):
    tensors = read(path)
    weights = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if not name.startswith("optim.")}
    model.load_state_dict({name: tensor for name, tensor in weights.items() if name.split(".")[-1] != "rng"})   # positions of dropout's streams
    if optimizer:
        state = {}
        for name, tensor in tensors.items():
            if name.startswith("optim."):
                _, kind, position = name.split(".")
                state.setdefault(int(position), {})[kind] = tensor.float() if kind == "step" else tensor
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
