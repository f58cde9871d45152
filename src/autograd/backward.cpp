// The walk: nodes in descending sequence order from a heap, so a node runs after all its consumers; no recursion anywhere.

#include <algorithm>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "autograd/node.h"
#include "core/format.h"
#include "kernels/kernels.h"

namespace lamina::autograd {

using lamina::detail::accumulated;
using lamina::detail::Gradient;

namespace {

void check_gradient(const char* op, const std::string& what, const Shape& shape, DType dtype, Device device, const Tensor& grad) {
  if (grad.shape() != shape || grad.dtype() != dtype || !(grad.device() == device))
    fail(op, "{}: expected {} {} on {}, got {} {} on {}", what, dtype, shape, device, grad.dtype(), grad.shape(), grad.device());
}

/// The hooks by value: one of them may register another.
Tensor hooked(std::vector<lamina::detail::Hook> hooks, Tensor grad) {
  for (const auto& hook : hooks) {
    Tensor replaced = hook(grad);
    if (!replaced.defined()) continue;
    check_gradient("hook", "returned gradient", grad.shape(), grad.dtype(), grad.device(), replaced);
    grad = replaced.detach();
  }
  return grad;
}

}  // namespace

namespace detail {

struct Frame {
  Node& node;
  Walker& walker;
  std::vector<Tensor> dy;
  std::vector<bool> given;
};

class Walker {
 public:
  explicit Walker(bool retain_graph) : retain_graph_(retain_graph) {}
  ~Walker() {
    for (; !queue_.empty(); queue_.pop()) queue_.top()->pending.clear();  // only after an exception
  }

  /// Restricts the walk to nodes between `root` and the targets, whose gradients end in captured() instead of in leaves.
  void capture(const std::shared_ptr<Node>& root, std::span<const Tensor> targets);

  void arrive(const Edge& edge, Gradient grad) {
    if (edge.node) {
      Node& node = *edge.node;
      if (node.released) fail_released(node);
      if (node.pending.empty()) {
        node.pending.resize(node.outputs.size());
        queue_.push(edge.node);
      }
      lamina::detail::materialise(grad, node.outputs[static_cast<size_t>(edge.output)].shape);
      Tensor& slot = node.pending[static_cast<size_t>(edge.output)];
      slot = slot.defined() ? accumulated(std::move(slot), grad.dense) : std::move(grad.dense);
    } else if (edge.leaf) {
      const auto [entry, fresh] = leaf_index_.try_emplace(edge.leaf.get(), leaves_.size());
      if (fresh)
        leaves_.push_back({edge.leaf, std::move(grad)});
      else
        lamina::detail::accumulate(leaves_[entry->second].grad, std::move(grad), edge.leaf->shape);
    }
  }

  void run() {
    const NoGrad no_grad;
    while (!queue_.empty()) {
      const std::shared_ptr<Node> node = queue_.top();
      queue_.pop();
      visit(*node);
    }
    for (Leaf& leaf : leaves_) {
      if (leaf.impl->hooks.empty()) continue;
      lamina::detail::materialise(leaf.grad, leaf.impl->shape);
      leaf.grad.dense = hooked(leaf.impl->hooks, std::move(leaf.grad.dense));
    }
  }

  /// Only when the whole walk has succeeded, and all memory is at hand, are gradients added to leaves, so a failed backward leaves them as they were.
  void store_leaf_gradients() {
    // It may have been frozen since the forward pass.
    std::erase_if(leaves_, [](const Leaf& leaf) { return !leaf.impl->requires_grad; });
    for (auto& [impl, grad] : leaves_) lamina::detail::prepare(impl->gradient, grad, impl->shape);
    for (auto& [impl, grad] : leaves_) lamina::detail::accumulate(impl->gradient, std::move(grad), impl->shape);
  }

  Tensor captured(const Tensor& target) {
    const auto& impl = *target.impl();
    if (impl.node) {
      const auto found = captured_.find({impl.node.get(), impl.output});
      return found == captured_.end() ? Tensor() : found->second;
    }
    const auto found = leaf_index_.find(target.impl().get());
    if (found == leaf_index_.end()) return Tensor();
    lamina::detail::materialise(leaves_[found->second].grad, impl.shape);
    return leaves_[found->second].grad.dense;
  }

  bool wants(const Edge& edge) const {
    if (!edge.needed()) return false;
    if (!pruned_) return true;
    return edge.node ? useful_.contains(edge.node.get()) : useful_leaves_.contains(edge.leaf.get());
  }

  [[noreturn]] static void fail_released(const Node& node) {
    fail("backward", "the graph was already freed at {}: it ran backward once; pass retain_graph = true the first time to run it again", node.op);
  }

 private:
  struct Leaf {
    std::shared_ptr<lamina::detail::TensorImpl> impl;
    Gradient grad;
  };
  struct BySequence {
    bool operator()(const std::shared_ptr<Node>& a, const std::shared_ptr<Node>& b) const { return a->sequence < b->sequence; }
  };
  struct OutputKey {
    const Node* node;
    int output;
    bool operator==(const OutputKey&) const = default;
  };
  struct HashKey {
    size_t operator()(const OutputKey& key) const { return std::hash<const Node*>{}(key.node) * 31 + static_cast<size_t>(key.output); }
  };

  void visit(Node& node) {
    if (node.released) fail_released(node);
    Frame frame{node, *this, std::move(node.pending), std::vector<bool>(node.edges.size())};
    node.pending.clear();
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (!frame.dy[i].defined()) continue;
      frame.dy[i] = hooked(node.outputs[i].hooks, std::move(frame.dy[i]));
      if (const auto retained = node.outputs[i].retain.lock(); retained && !pruned_)
        lamina::detail::accumulate(retained->gradient, {frame.dy[i], {}, 1}, retained->shape);
      if (const auto found = captured_.find({&node, static_cast<int>(i)}); found != captured_.end()) found->second = frame.dy[i];
    }
    if (pruned_ && std::ranges::none_of(node.edges, [&](const Edge& edge) { return wants(edge); })) return;
    Backward view(frame);
    node.backward(view);
    if (!retain_graph_) node.release();
  }

  bool retain_graph_;
  std::priority_queue<std::shared_ptr<Node>, std::vector<std::shared_ptr<Node>>, BySequence> queue_;
  std::vector<Leaf> leaves_;
  std::unordered_map<const lamina::detail::TensorImpl*, size_t> leaf_index_;

  bool pruned_ = false;
  std::unordered_set<const Node*> useful_;
  std::unordered_set<const lamina::detail::TensorImpl*> useful_leaves_;
  std::unordered_map<OutputKey, Tensor, HashKey> captured_;
};

void Walker::capture(const std::shared_ptr<Node>& root, std::span<const Tensor> targets) {
  pruned_ = true;
  std::unordered_set<const Node*> target_nodes;
  for (const Tensor& target : targets) {
    if (target.impl()->node) {
      target_nodes.insert(target.impl()->node.get());
      captured_[{target.impl()->node.get(), target.impl()->output}];
    } else {
      useful_leaves_.insert(target.impl().get());
    }
  }
  std::vector<Node*> nodes{root.get()};
  std::unordered_set<const Node*> seen{root.get()};
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i]->released) fail_released(*nodes[i]);
    for (const Edge& edge : nodes[i]->edges)
      if (edge.node && seen.insert(edge.node.get()).second) nodes.push_back(edge.node.get());
  }
  // In ascending order every node's inputs have been judged before it.
  std::ranges::sort(nodes, {}, &Node::sequence);
  for (const Node* node : nodes) {
    const bool leads = std::ranges::any_of(node->edges, [&](const Edge& edge) { return wants(edge); });
    if (leads || target_nodes.contains(node)) useful_.insert(node);
  }
}

}  // namespace detail

const Tensor& Backward::dy(int output) {
  Tensor& dy = frame_.dy.at(static_cast<size_t>(output));
  const OutputInfo& info = frame_.node.outputs[static_cast<size_t>(output)];
  if (!dy.defined()) dy = Tensor::zeros(info.shape, info.dtype, info.device);
  return dy;
}

const Tensor& Backward::saved(int index) const {
  const Saved& saved = frame_.node.saved;
  const Tensor& value = saved.values.at(static_cast<size_t>(index));
  if (value.defined() && value.impl()->storage->version.load(std::memory_order_relaxed) != saved.versions[static_cast<size_t>(index)])
    fail("backward",
         "{}: a tensor {} that the forward pass saved was changed since (by an optimiser step or an in-place write between forward and backward)",
         frame_.node.op, value.shape());
  return value;
}

bool Backward::needs(int input) const { return frame_.walker.wants(frame_.node.edges.at(static_cast<size_t>(input))); }

namespace {

/// Checks a gradient's shape, dtype and device against the input's; false when the input needs none.
bool accepts(detail::Frame& frame, int input, const Shape& shape, DType dtype, Device device) {
  const Edge& edge = frame.node.edges.at(static_cast<size_t>(input));
  if (!frame.walker.wants(edge)) return false;
  const std::string_view op = frame.node.op;
  if (frame.given[static_cast<size_t>(input)]) fail(op, "backward gave the gradient of input {} twice", input);
  frame.given[static_cast<size_t>(input)] = true;
  const Shape& wanted_shape = edge.node ? edge.node->outputs[static_cast<size_t>(edge.output)].shape : edge.leaf->shape;
  const DType wanted_dtype = edge.node ? edge.node->outputs[static_cast<size_t>(edge.output)].dtype : edge.leaf->dtype;
  const Device wanted_device = edge.node ? edge.node->outputs[static_cast<size_t>(edge.output)].device : edge.leaf->storage->device;
  if (shape != wanted_shape || dtype != wanted_dtype || !(device == wanted_device))
    fail(op, "backward: gradient of input {}: expected {} {} on {}, got {} {} on {}", input, wanted_dtype, wanted_shape, wanted_device, dtype, shape,
         device);
  return true;
}

}  // namespace

void Backward::give(int input, Tensor dx) {
  if (!needs(input)) return;
  if (!dx.defined()) fail(frame_.node.op, "backward gave an undefined gradient for input {}", input);
  if (accepts(frame_, input, dx.shape(), dx.dtype(), dx.device()))
    frame_.walker.arrive(frame_.node.edges[static_cast<size_t>(input)], {std::move(dx), {}, 1});
}

void Backward::give_product(int input, const Tensor& dy, const Tensor& x) {
  if (!needs(input)) return;
  if (dy.rank() != 2 || x.rank() != 2 || dy.size(0) != x.size(0) || dy.dtype() != x.dtype())
    fail(frame_.node.op, "backward: a product needs dy [N, O] and x [N, C], got {} {} and {} {}", dy.dtype(), dy.shape(), x.dtype(), x.shape());
  const Shape shape{dy.size(1), x.size(1)};
  if (!accepts(frame_, input, shape, x.dtype(), x.device())) return;
  const Edge& edge = frame_.node.edges[static_cast<size_t>(input)];
  Gradient product{Tensor(), {{dy, x}}, 1};
  if (edge.leaf && lamina::detail::worth_factoring(x.size(0), shape, x.device()))
    product.factors[0] = {dy.clone(), x.clone()};
  else
    lamina::detail::materialise(product, shape);
  frame_.walker.arrive(edge, std::move(product));
}

namespace {

Tensor start_gradient(const Tensor& output, const Tensor& dy) {
  if (!output.requires_grad())
    fail("backward",
         "the tensor {} does not depend on anything that requires a gradient (gradients themselves have no graph: there are no second derivatives)",
         output.shape());
  if (dy.defined()) {
    check_gradient("backward", "cotangent", output.shape(), output.dtype(), output.device(), dy);
    return dy.detach();
  }
  if (output.numel() != 1) fail("backward", "expected a scalar, got {}; pass the gradient with respect to it", output.shape());
  return Tensor::ones(output.shape(), output.dtype(), output.device());
}

Edge edge_of(const Tensor& output) {
  const auto& impl = output.impl();
  return impl->node ? Edge{impl->node, impl->output, nullptr} : Edge{nullptr, 0, impl};
}

}  // namespace

std::vector<Tensor> grad(const Tensor& output, std::span<const Tensor> inputs, const Tensor& dy, GradOptions options) {
  if (options.create_graph) fail("grad", "second derivatives are not supported: create_graph must be false");
  for (const Tensor& input : inputs)
    if (!input.requires_grad()) fail("grad", "an input {} does not require a gradient", input.shape());
  std::vector<Tensor> result;
  {
    detail::Walker walker(options.retain_graph);
    Tensor start = start_gradient(output, dy);
    const Edge edge = edge_of(output);
    if (edge.node) walker.capture(edge.node, inputs);
    walker.arrive(edge, {std::move(start), {}, 1});
    walker.run();
    for (const Tensor& input : inputs) result.push_back(walker.captured(input));
  }
  // An op may have handed its cotangent on as it was, to several inputs: each result gets a buffer of its own.
  for (Tensor& gradient : result)
    if (gradient.defined()) gradient = lamina::detail::owned(std::move(gradient));
  return result;
}

}  // namespace lamina::autograd

namespace lamina {

void Tensor::backward(const Tensor& dy, bool retain_graph) const {
  if (!defined()) fail("backward", "called on an undefined tensor");
  autograd::detail::Walker walker(retain_graph);
  Tensor start = autograd::start_gradient(*this, dy);
  walker.arrive(autograd::edge_of(*this), {std::move(start), {}, 1});
  walker.run();
  walker.store_leaf_gradients();
}

}  // namespace lamina
