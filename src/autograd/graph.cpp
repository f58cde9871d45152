#include <lamina/autograd/graph.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "autograd/node.h"
#include "core/format.h"

namespace lamina {

namespace {
thread_local bool recording_enabled = true;
}

bool grad_enabled() { return recording_enabled; }
NoGrad::NoGrad() : previous_(recording_enabled) { recording_enabled = false; }
NoGrad::~NoGrad() { recording_enabled = previous_; }

namespace autograd {

namespace {

thread_local const Observer::Fn* observer = nullptr;
std::atomic<uint64_t> next_sequence{1};
std::atomic<int64_t> node_count{0};
std::atomic<int64_t> byte_count{0};

int64_t bytes_of(const Saved& saved) {
  int64_t bytes = 0;
  for (const Tensor& value : saved.values) bytes += value.defined() ? value.nbytes() : 0;
  return bytes;
}

// Destroying a chain of nodes one inside the other would overflow the stack, so nodes hand their inputs to this list,
// and the outermost destructor on the thread empties it.
void release_edges(std::vector<Edge>& edges) {
  thread_local std::vector<std::shared_ptr<Node>> doomed;
  thread_local bool draining = false;
  for (Edge& edge : edges)
    if (edge.node) doomed.push_back(std::move(edge.node));
  edges.clear();
  if (draining) return;
  draining = true;
  while (!doomed.empty()) {
    const std::shared_ptr<Node> node = std::move(doomed.back());
    doomed.pop_back();
  }
  doomed.shrink_to_fit();
  draining = false;
}

Edge edge_to(const Tensor& input) {
  if (!input.defined()) return {};
  const auto& impl = input.impl();
  if (impl->node) return {impl->node, impl->output, nullptr};
  if (impl->requires_grad) return {nullptr, 0, impl};
  return {};
}

}  // namespace

Node::Node(const char* name, Saved values, BackwardFn fn)
    : op(name), sequence(next_sequence.fetch_add(1, std::memory_order_relaxed)), saved(std::move(values)), backward(std::move(fn)) {
  node_count.fetch_add(1, std::memory_order_relaxed);
  byte_count.fetch_add(bytes_of(saved), std::memory_order_relaxed);
}

Node::~Node() {
  release();
  node_count.fetch_sub(1, std::memory_order_relaxed);
}

void Node::release() {
  if (released) return;
  released = true;
  byte_count.fetch_sub(bytes_of(saved), std::memory_order_relaxed);
  saved = {};
  backward = nullptr;
  release_edges(edges);
}

int64_t live_nodes() { return node_count.load(std::memory_order_relaxed); }
int64_t saved_bytes() { return byte_count.load(std::memory_order_relaxed); }

Saved save(std::span<const Tensor> values) {
  Saved saved;
  saved.values.reserve(values.size());
  saved.versions.reserve(values.size());
  for (const Tensor& value : values) {
    saved.values.push_back(value.defined() ? value.detach() : value);
    saved.versions.push_back(value.defined() ? value.impl()->storage->version.load(std::memory_order_relaxed) : 0);
  }
  return saved;
}

Saved save(std::initializer_list<Tensor> values) { return save(std::span<const Tensor>(values.begin(), values.size())); }

bool recording(std::span<const Tensor> inputs) {
  return recording_enabled && std::ranges::any_of(inputs, [](const Tensor& input) { return input.defined() && input.requires_grad(); });
}

bool recording(std::initializer_list<Tensor> inputs) { return recording(std::span<const Tensor>(inputs.begin(), inputs.size())); }

std::vector<Tensor> record_many(const char* op, std::span<const Tensor> inputs, std::vector<Tensor> outputs, Saved saved, BackwardFn backward) {
  if (!recording(inputs)) return outputs;
  for (size_t i = 0; i < outputs.size(); ++i)
    if (!outputs[i].defined()) fail(op, "record: output {} is undefined", i);
  auto node = std::make_shared<Node>(op, std::move(saved), std::move(backward));
  node->edges.reserve(inputs.size());
  for (const Tensor& input : inputs) node->edges.push_back(edge_to(input));
  node->outputs.reserve(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    auto& impl = *outputs[i].impl();
    if (impl.node || impl.requires_grad) fail(op, "record: output {} must be a fresh tensor, not an input or a tensor already in the graph", i);
    node->outputs.push_back({impl.shape, impl.dtype, outputs[i].device(), {}, {}});
    if (!is_float(impl.dtype)) continue;  // an index output (argmax beside max) takes part without a gradient
    impl.node = node;
    impl.output = static_cast<int>(i);
    impl.requires_grad = true;
  }
  if (observer) (*observer)(op, inputs, outputs);
  return outputs;
}

Tensor record(const char* op, std::span<const Tensor> inputs, Tensor y, Saved saved, BackwardFn backward) {
  if (!recording(inputs)) return y;
  return record_many(op, inputs, {std::move(y)}, std::move(saved), std::move(backward))[0];
}

Tensor record(const char* op, std::initializer_list<Tensor> inputs, Tensor y, Saved saved, BackwardFn backward) {
  return record(op, std::span<const Tensor>(inputs.begin(), inputs.size()), std::move(y), std::move(saved), std::move(backward));
}

Observer::Observer(Fn fn) : fn_(std::move(fn)), previous_(std::exchange(observer, &fn_)) {}
Observer::~Observer() { observer = previous_; }

void refuse_gradient(const char* op, std::initializer_list<Tensor> inputs) {
  if (recording(inputs)) fail(op, "has no gradient; detach() its inputs or use it under NoGrad");
}

}  // namespace autograd

bool Tensor::requires_grad() const { return impl_ && impl_->requires_grad; }
bool Tensor::is_leaf() const { return !impl_ || !impl_->node; }

Tensor& Tensor::set_requires_grad(bool on) {
  if (!defined()) fail("set_requires_grad", "called on an undefined tensor");
  if (on && !is_float(dtype())) fail("set_requires_grad", "only f32 and f64 tensors have gradients, this one is {} {}", dtype(), shape());
  if (!is_leaf()) fail("set_requires_grad", "the tensor {} was computed by the graph ({}); detach() it first", shape(), impl_->node->op);
  impl_->requires_grad = on;
  return *this;
}

Tensor Tensor::grad() const {
  if (!impl_) return Tensor();
  detail::materialise(impl_->gradient, impl_->shape);
  return impl_->gradient.dense;
}

void Tensor::set_grad(const Tensor& grad) {
  if (!defined()) fail("set_grad", "called on an undefined tensor");
  if (grad.defined() && (grad.shape() != shape() || grad.dtype() != dtype() || !(grad.device() == device())))
    fail("set_grad", "expected {} {} on {}, got {} {} on {}", dtype(), shape(), device(), grad.dtype(), grad.shape(), grad.device());
  impl_->gradient = {grad.defined() ? grad.detach() : grad, {}, 1};
}

void Tensor::zero_grad() {
  if (impl_) impl_->gradient = {};
}

void Tensor::retain_grad() {
  if (!requires_grad()) fail("retain_grad", "the tensor does not require a gradient");
  if (impl_->node) impl_->node->outputs[static_cast<size_t>(impl_->output)].retain = impl_;
}

void Tensor::register_hook(std::function<Tensor(const Tensor&)> hook) {
  if (!requires_grad()) fail("register_hook", "the tensor does not require a gradient");
  auto& hooks = impl_->node ? impl_->node->outputs[static_cast<size_t>(impl_->output)].hooks : impl_->hooks;
  hooks.push_back(std::move(hook));
}

Tensor Tensor::to(Device target) const {
  if (target == device()) return *this;
  Tensor y = empty(shape(), dtype(), target);
  y.copy_(*this);
  const Device source = device();
  return autograd::record("to", {*this}, y, {}, [source](autograd::Backward& b) { b.give(0, b.dy().to(source)); });
}

}  // namespace lamina
