#pragma once
// A node of the graph: one op application. Private to src/autograd.

#include <memory>
#include <vector>

#include <lamina/autograd/graph.h>

#include "core/tensor_impl.h"

namespace lamina::autograd {

/// Where a gradient of an input goes: output `output` of `node`, or the leaf; neither when the input needs none.
struct Edge {
  std::shared_ptr<Node> node;
  int output = 0;
  std::shared_ptr<lamina::detail::TensorImpl> leaf;

  bool needed() const { return node || leaf; }
};

struct OutputInfo {
  Shape shape;
  DType dtype;
  Device device;
  std::weak_ptr<lamina::detail::TensorImpl> retain;  // set by retain_grad()
  std::vector<lamina::detail::Hook> hooks;
};

struct Node {
  Node(const char* op, Saved saved, BackwardFn backward);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  /// Drops saved tensors, closure and edges; a later backward through it is an error.
  void release();

  const char* const op;
  const uint64_t sequence;  // grows with every node, so an input's node always has a smaller one
  std::vector<Edge> edges;
  std::vector<OutputInfo> outputs;
  Saved saved;
  BackwardFn backward;
  bool released = false;

  // Used while a backward pass walks: gradients that arrived, one per output.
  std::vector<Tensor> pending;
};

}  // namespace lamina::autograd
