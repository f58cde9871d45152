#pragma once
// The reverse-mode graph. record() is the only way into it, for lamina's ops and for yours:
//
//   Tensor cube(const Tensor& x) {
//     Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
//     ...                                                    // fill y from x
//     return autograd::record("cube", {x}, y, autograd::save({x}), [](autograd::Backward& b) {
//       b.give(0, b.dy() * b.saved(0) * b.saved(0) * 3.0);   // runs with grad mode off
//     });
//   }
//
// Kernels overwrite, the graph adds: a backward function gives each input its whole gradient once, and the graph sums over uses.
// Nodes carry sequence numbers; backward() walks them in descending order and frees them as it passes, without recursion.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include <lamina/core/tensor.h>

namespace lamina {

/// Whether ops record (per thread; true at the start).
bool grad_enabled();

/// Turns recording off while it lives: `NoGrad guard;`
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool previous_;
};

namespace autograd {

namespace detail {
struct Frame;
class Walker;
}  // namespace detail

/// Bare values for the backward pass: no graph handles, so no cycles. Each remembers the version of its buffer.
struct Saved {
  std::vector<Tensor> values;
  std::vector<uint64_t> versions;
};
Saved save(std::initializer_list<Tensor> values);
Saved save(std::span<const Tensor> values);

/// What a backward function sees.
class Backward {
 public:
  /// Gradient with respect to the output; zeros where no gradient reached it (only possible with several outputs).
  const Tensor& dy(int output = 0);
  /// Throws Error when the tensor was changed after it was saved.
  const Tensor& saved(int index) const;
  /// Whether input `index` needs a gradient; computing one that nobody needs is waste.
  bool needs(int input) const;
  /// The gradient for an input: its shape, dtype and device. Once per input; ignored for inputs that need none.
  void give(int input, Tensor dx);
  /// The gradient dy^T x [O, C], from dy [N, O] and x [N, C] (a linear layer's weight). For a leaf and few rows it is kept as its factors until
  /// somebody looks at it (grad(), hooks); the optimisers' fused updates never form it. Otherwise the same as give(input, product).
  void give_product(int input, const Tensor& dy, const Tensor& x);

 private:
  friend class detail::Walker;
  explicit Backward(detail::Frame& frame) : frame_(frame) {}
  detail::Frame& frame_;
};

using BackwardFn = std::function<void(Backward&)>;

/// Whether record() would record: grad mode is on and an input requires a gradient. Lets an op skip work that only the backward needs.
bool recording(std::initializer_list<Tensor> inputs);
bool recording(std::span<const Tensor> inputs);

/// Makes `y`, freshly computed from `inputs`, part of the graph and returns it; a no-op when nothing requires a gradient or grad mode is off.
/// `op` must outlive the program (a literal).
Tensor record(const char* op, std::initializer_list<Tensor> inputs, Tensor y, Saved saved, BackwardFn backward);
Tensor record(const char* op, std::span<const Tensor> inputs, Tensor y, Saved saved, BackwardFn backward);
/// Several outputs; Backward::dy(i) belongs to outputs[i].
std::vector<Tensor> record_many(const char* op, std::span<const Tensor> inputs, std::vector<Tensor> outputs, Saved saved, BackwardFn backward);

/// While it lives, `fn(op, inputs, outputs)` is called on this thread for every op that enters the graph, in the order of the forward pass:
/// to look between the layers of a model that is not at hand as a list. The innermost one is called.
class Observer {
 public:
  using Fn = std::function<void(const char* op, std::span<const Tensor> inputs, std::span<const Tensor> outputs)>;
  explicit Observer(Fn fn);
  ~Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

 private:
  Fn fn_;
  const Fn* previous_;
};

/// For ops whose gradient does not exist: throws Error "[op] has no gradient" if recording(inputs).
void refuse_gradient(const char* op, std::initializer_list<Tensor> inputs);

struct GradOptions {
  bool retain_graph = false;
  bool create_graph = false;  // second derivatives do not exist: true throws Error
};
/// Gradients of `output` (a scalar, or with cotangent `dy`) with respect to `inputs` only; no .grad is touched.
/// An input that the output does not depend on gets an undefined tensor.
std::vector<Tensor> grad(const Tensor& output, std::span<const Tensor> inputs, const Tensor& dy = Tensor(), GradOptions options = {});

/// Graph nodes alive in this process, and bytes held by their saved tensors (buffers shared by several are counted once each time).
int64_t live_nodes();
int64_t saved_bytes();

}  // namespace autograd
}  // namespace lamina
