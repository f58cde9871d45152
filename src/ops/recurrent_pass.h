#pragma once
// The two passes of recurrent(), between its checks and the kernels.

#include <lamina/autograd/graph.h>
#include <lamina/ops/recurrent.h>

#include <algorithm>
#include <array>
#include <memory>

#include "core/matrix_unit.h"
#include "ops/recurrent_plan.h"

namespace lamina::ops {

/// The tensors of a call that can have a gradient, in the order in which the graph has them; undefined ones included.
struct RecurrentInputs {
  enum Index { x, h0, c0, weight_ih, weight_hh, bias_ih, bias_hh, gain_ih, gain_hh, gain_c, bias_c, count };
  std::array<Tensor, count> tensors;

  Tensor& operator[](Index index) { return tensors[static_cast<size_t>(index)]; }
  const Tensor& operator[](Index index) const { return tensors[static_cast<size_t>(index)]; }
};

/// What forward leaves for backward, beside the inputs. Some are undefined, as kernels::RecurrentForward says.
struct RecurrentTrace {
  enum Index { a_x, a_h, gates, raw_c, y, n_term, statistics, x_mean, x_shift, x_rstd, h_mean, h_shift, h_rstd, c_mean, c_shift, c_rstd, count };
  std::array<Tensor, count> tensors;

  Tensor& operator[](Index index) { return tensors[static_cast<size_t>(index)]; }
};

struct RecurrentCall {
  kernels::RecurrentSpec spec;
  std::shared_ptr<const RecurrentPlan> plan;
  bool training = true;
  double momentum = 0.1;
};

struct RecurrentOutcome {
  RecurrentResult result;
  RecurrentTrace trace;  // empty unless `keep`
};

/// Steps are taken in runs of about this many rows. On a CPU, so that a run's gates and their gradients are still in a cache when they are used
/// again; few rows would make the weights' gradients pass through memory too often, all the more where a matrix unit multiplies. On a GPU runs are as
/// long as the memory for their gradients allows.
inline int64_t recurrent_chunk_rows(const kernels::RecurrentSpec& spec, Device device) {
  struct Limits {
    int64_t elements, least, most;
  };
  const int64_t factor = lamina::detail::has_matrix_unit() ? 2 : 1;
  const Limits of = device.is_cpu() ? Limits{factor << 18, factor << 8, 1024} : Limits{int64_t{1} << 24, 1024, 65536};
  return std::clamp(of.elements / std::max<int64_t>(1, spec.width()), of.least, of.most);
}

/// How many steps at a time a backward pass on a CPU multiplies for the gradients of the weights and of x within its walk, so that the gradients of
/// the summed inputs are never together in memory: where the weights' gradients stay in a thread's cache, and steps have so many sequences, those
/// that have ended not counted, that these are not read and written for a few rows. Else 0.
inline int64_t recurrent_in_walk(const kernels::RecurrentSpec& spec, Device device, const RecurrentPlan& plan, int64_t inputs, int64_t element) {
  constexpr int64_t least_alive = 64, rows = 256, most_bytes = int64_t{1} << 19;
  const bool fits = spec.width() * (spec.hidden + inputs) * element <= most_bytes;
  if (!device.is_cpu() || spec.norm == kernels::TermNorm::columns || spec.hidden == 0 || plan.steps() == 0 || !fits) return 0;
  const int64_t together = std::max<int64_t>(1, rows / std::max<int64_t>(plan.batch, 1)), alive = plan.rows / plan.steps();
  return alive >= least_alive && together * alive >= rows / 2 ? together : 0;
}

/// [count, width], not initialised. Rows are often a multiple of 4 KiB apart and large arrays begin at the same place of a page: read together they
/// would crowd into the same lines of the first cache. So those that are get different `slot`s, up to 7, which begin some lines apart.
Tensor apart(int64_t count, int64_t width, int slot, const Tensor& like);
/// rows[index[i]] for each i, [index.size(), width].
Tensor gathered_rows(const Tensor& rows, const RowList& index, int64_t width);
/// A copy of a state at the start [N, H] (undefined: zeros) with sequences sorted; `like` gives dtype and device.
Tensor recurrent_state(const RecurrentPlan& plan, int64_t hidden, const Tensor& start, const Tensor& like);

/// The biases as the kernels want them; where there are none, zeros. Lives as long as what parts() gives.
class RecurrentBiases {
 public:
  template <class T>
  kernels::RecurrentParts<T> parts(const kernels::RecurrentSpec& spec, const RecurrentInputs& inputs);

 private:
  Tensor bias_, bias_h_, bias_c_;
};

/// `keep`: a backward pass will come.
RecurrentOutcome recurrent_forward(const RecurrentCall& call, const RecurrentInputs& inputs, RecurrentStatistics& running, bool keep);

/// Gives all inputs their gradients. saved(i): the inputs, then the trace.
void recurrent_backward(const RecurrentCall& call, autograd::Backward& b);

}  // namespace lamina::ops
