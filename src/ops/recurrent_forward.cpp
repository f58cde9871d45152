#include <algorithm>
#include <vector>

#include "core/tensor_impl.h"
#include "kernels/kernels.h"
#include "ops/norm_support.h"
#include "ops/recurrent_pass.h"

namespace lamina::ops {

using kernels::OverTime;
using kernels::TermNorm;

namespace {

using In = RecurrentInputs;
using Trace = RecurrentTrace;

template <class T>
class Forward {
 public:
  Forward(const RecurrentCall& call, const RecurrentInputs& inputs, RecurrentStatistics& running, bool keep)
      : call_(call),
        spec_(call.spec),
        plan_(*call.plan),
        in_(inputs),
        running_(running),
        keep_(keep),
        dtype_(inputs[In::x].dtype()),
        device_(inputs[In::x].device()) {}

  RecurrentOutcome run() {
    // On a CPU, one walk where the rows of all steps are kept anyway.
    const int64_t chunk_rows = recurrent_chunk_rows(spec_, device_);
    const bool columns = spec_.norm == TermNorm::columns, plain_rnn = spec_.cell == kernels::Cell::rnn && spec_.norm == TermNorm::none;
    const bool whole = keep_ && device_.is_cpu() && !columns && !plain_rnn;
    const std::vector<RecurrentPlan::Chunk> chunks = plan_.chunks(whole ? plan_.rows : chunk_rows);
    work_.input_rows = chunk_rows;
    RecurrentResult result{rows(plan_.rows + (plan_.ragged ? 1 : 0), spec_.hidden), recurrent_state(plan_, spec_.hidden, in_[In::h0], in_[In::x]),
                           Tensor()};
    if (lstm()) result.c = recurrent_state(plan_, spec_.hidden, in_[In::c0], in_[In::x]);
    prepare(result, chunks);
    const Tensor x = plan_.ragged ? gathered_rows(in_[In::x], plan_.source, in_[In::x].size(2)) : in_[In::x];
    for (const RecurrentPlan::Chunk& chunk : chunks) {
      input_product(x, chunk);
      work_.steps = plan_.walk(chunk);
      kernels::recurrent<T>(device_)->forward(work_);
    }
    if (spec_.norm == TermNorm::columns && call_.training && running_.mean_ih.defined()) update();
    return finish(std::move(result));
  }

 private:
  bool lstm() const { return spec_.cell == kernels::Cell::lstm; }
  Tensor rows(int64_t count, int64_t width) const { return Tensor::empty({count, width}, dtype_, device_); }

  /// An array over time: kept whole for the backward pass, or room for a chunk (x's term) or a step.
  enum class Room { whole, chunk, step };
  OverTime<T> over_time(Trace::Index index, int64_t width, Room room, const std::vector<RecurrentPlan::Chunk>& chunks = {}) {
    int64_t count = room == Room::whole ? plan_.rows : plan_.batch;
    if (room == Room::chunk) {
      count = 0;
      for (const RecurrentPlan::Chunk& chunk : chunks) count = std::max(count, chunk.count);
    }
    Tensor array = apart(count, width, index, in_[In::x]);
    T* const data = array.mutable_data<T>();
    (room == Room::whole ? trace_ : passing_)[index] = std::move(array);
    return {data, 0, room == Room::step ? 1 : 0};
  }

  void prepare(RecurrentResult& result, const std::vector<RecurrentPlan::Chunk>& chunks) {
    const int64_t hidden = spec_.hidden, width = spec_.width();
    const bool rnn = spec_.cell == kernels::Cell::rnn, gru = spec_.cell == kernels::Cell::gru;
    work_.spec = spec_;
    work_.parts = biases_.parts<T>(spec_, in_);
    weight_ = kernels::gemm<T>(device_)->pack(hidden, width, {in_[In::weight_hh].data<T>(), std::max<int64_t>(hidden, 1), true}, plan_.batch);
    work_.weight = &weight_;
    if (device_.is_cpu() && spec_.norm != TermNorm::columns) {
      const int64_t inputs = in_[In::x].size(2);
      weight_ih_ = kernels::gemm<T>(device_)->pack(inputs, width, {in_[In::weight_ih].data<T>(), std::max<int64_t>(inputs, 1), true},
                                                   std::min(plan_.rows, work_.input_rows));
      work_.weight_ih = &weight_ih_;
    }
    work_.from_zero = !in_[In::h0].defined();
    work_.h = result.h.mutable_data<T>();
    if (lstm()) work_.c = result.c.mutable_data<T>();
    // The gates take the place of x's term, unless that is wanted again.
    const bool normalised = spec_.norm != TermNorm::none, keeps_x = keep_ && normalised;
    const Room whole = keep_ ? Room::whole : Room::step;
    if (keep_ && !normalised && !rnn) {
      work_.gates = work_.a_x = over_time(Trace::gates, width, Room::whole);
    } else {
      work_.a_x = over_time(Trace::a_x, width, keeps_x ? Room::whole : Room::chunk, chunks);
      if (!rnn && !(device_.is_cpu() && spec_.makes_gates_anew())) work_.gates = keeps_x ? over_time(Trace::gates, width, Room::whole) : work_.a_x;
    }
    chunked_ = !keeps_x && !(keep_ && !rnn);
    if (!spec_.sums_terms()) work_.a_h = over_time(Trace::a_h, width, keeps_x ? Room::whole : Room::step);
    if (lstm() && keep_) work_.raw_c = over_time(Trace::raw_c, hidden, Room::whole);
    if (gru && keep_ && (!normalised || spec_.norm == TermNorm::columns)) work_.n_term = over_time(Trace::n_term, hidden, Room::whole);
    if (spec_.statistics() > 0) work_.statistics = over_time(Trace::statistics, spec_.statistics(), whole);
    work_.y = {result.y.mutable_data<T>()};
    if (spec_.norm != TermNorm::columns) return;
    work_.x_columns = columns(Trace::x_mean, width, running_.mean_ih, running_.var_ih, x_var_);
    work_.h_columns = columns(Trace::h_mean, width, running_.mean_hh, running_.var_hh, h_var_);
    if (lstm()) work_.c_columns = columns(Trace::c_mean, hidden, running_.mean_c, running_.var_c, c_var_);
  }

  /// The statistics of each step; in evaluation a row of the running ones. Mean, shift and rstd stand in this order in the trace.
  kernels::ColumnStatistics<T> columns(Trace::Index first, int64_t width, const Tensor& mean, const Tensor& var, Tensor& batch_var) {
    kernels::ColumnStatistics<T> result;
    const auto take = [&](Tensor& array) { return (array = rows(plan_.steps(), width)).template mutable_data<T>(); };
    result.mean = take(trace_.tensors[first]);
    result.rstd = take(trace_.tensors[first + 2]);
    if (!spec_.given) {
      result.shift = take(trace_.tensors[first + 1]);
      result.var = take(batch_var);
      return result;
    }
    // Steps past the last row of the running ones use that one.
    const int64_t own = std::min(plan_.steps(), mean.size(0)), others = plan_.steps() - own;
    const kernels::ChannelNorm channels{.batch = plan_.batch, .channels = own * width, .eps = spec_.eps};
    kernels::move(device_)->copy(own * width * static_cast<int64_t>(sizeof(T)), mean.data<T>(), result.mean);
    kernels::norm<T>(device_)->channel_rstd(channels, var.data<T>(), result.rstd);
    for (T* const numbers : {result.mean, result.rstd})
      if (others > 0) repeat(numbers + (own - 1) * width, others, width, numbers + own * width);
    return result;
  }
  /// `count` times the row.
  void repeat(const T* row, int64_t count, int64_t width, T* target) const {
    kernels::Broadcast space{.rank = 2, .numel = count * width};
    space.sizes = {count, width};
    space.strides[0] = {0, 1};
    kernels::move(device_)->strided_copy(sizeof(T), space, row, target);
  }

  void input_product(const Tensor& x, const RecurrentPlan::Chunk& chunk) {
    const int64_t inputs = x.size(-1), width = spec_.width(), ld = std::max<int64_t>(inputs, 1);
    if (chunked_) {
      work_.a_x.origin = chunk.begin;
      if (work_.gates.data && !keep_) work_.gates.origin = chunk.begin;
    }
    work_.x = {x.data<T>()};
    if (work_.weight_ih) return;  // the walk's own affair
    kernels::gemm<T>(device_)->gemm(chunk.count, width, inputs, {x.data<T>() + chunk.begin * inputs, ld, false},
                                    {in_[In::weight_ih].data<T>(), ld, true}, T{0}, work_.a_x.data + (chunk.begin - work_.a_x.origin) * width,
                                    std::max<int64_t>(width, 1), spec_.norm == TermNorm::none ? work_.parts.bias : nullptr);
  }

  /// Each step moves its row of the running statistics, steps past the last row that one.
  void update() {
    const auto move = [&](Tensor& mean, Tensor& var, const Tensor& batch_mean, const Tensor& batch_var) {
      kernels::RunningColumns<T> work{.steps = {plan_.offset.data(), plan_.alive.data(), 0, plan_.steps(), plan_.batch},
                                      .width = mean.size(1),
                                      .rows = mean.size(0),
                                      .momentum = call_.momentum,
                                      .batch_mean = batch_mean.data<T>(),
                                      .batch_var = batch_var.data<T>(),
                                      .mean = mean.mutable_data<T>(),
                                      .var = var.mutable_data<T>()};
      kernels::recurrent<T>(device_)->move_running(work);
    };
    move(running_.mean_ih, running_.var_ih, trace_.tensors[Trace::x_mean], x_var_);
    move(running_.mean_hh, running_.var_hh, trace_.tensors[Trace::h_mean], h_var_);
    if (lstm()) move(running_.mean_c, running_.var_c, trace_.tensors[Trace::c_mean], c_var_);
  }

  /// From sorted rows to x's order.
  RecurrentOutcome finish(RecurrentResult result) {
    const Shape shape{plan_.time, plan_.batch, spec_.hidden};
    Tensor y = result.y;
    if (plan_.ragged) {
      T* const zeros = y.mutable_data<T>() + plan_.rows * spec_.hidden;
      kernels::move(device_)->fill(dtype_, spec_.hidden, 0, zeros);
      result.y = detail::view(gathered_rows(y, plan_.place, spec_.hidden), shape);
      result.h = gathered_rows(result.h, plan_.rank, spec_.hidden);
      if (lstm()) result.c = gathered_rows(result.c, plan_.rank, spec_.hidden);
    } else {
      result.y = detail::view(y, shape);
    }
    if (!keep_) return {std::move(result), {}};
    trace_[Trace::y] = std::move(y);
    return {std::move(result), std::move(trace_)};
  }

 private:
  const RecurrentCall& call_;
  const kernels::RecurrentSpec& spec_;
  const RecurrentPlan& plan_;
  const RecurrentInputs& in_;
  RecurrentStatistics& running_;
  bool keep_, chunked_ = false;
  DType dtype_;
  Device device_;
  kernels::RecurrentForward<T> work_;
  kernels::Packed<T> weight_, weight_ih_;
  RecurrentBiases biases_;
  RecurrentTrace trace_, passing_;
  Tensor x_var_, h_var_, c_var_;
};

}  // namespace

Tensor apart(int64_t count, int64_t width, int slot, const Tensor& like) {
  constexpr int64_t lines = 9, line = 64;
  const int64_t gap = slot * lines * line, element = like.dtype() == DType::f64 ? 8 : 4;
  return detail::view(Tensor::empty({count * width + gap / element}, like.dtype(), like.device()), {count, width}, gap);
}

Tensor gathered_rows(const Tensor& rows, const RowList& index, int64_t width) {
  const int64_t count = index.size();
  Tensor result = Tensor::empty({count, width}, rows.dtype(), rows.device());
  if (result.numel() == 0) return result;
  const int64_t bytes = result.nbytes() / count;
  kernels::move(rows.device())->gather_rows(count, rows.numel() / width, bytes, rows.raw_data(), index.on(rows.device()), result.mutable_raw_data());
  return result;
}

Tensor recurrent_state(const RecurrentPlan& plan, int64_t hidden, const Tensor& start, const Tensor& like) {
  if (!start.defined()) return Tensor::zeros({plan.batch, hidden}, like.dtype(), like.device());
  return plan.ragged ? gathered_rows(start, plan.order, hidden) : start.clone();
}

template <class T>
kernels::RecurrentParts<T> RecurrentBiases::parts(const kernels::RecurrentSpec& spec, const RecurrentInputs& inputs) {
  const Tensor& like = inputs[In::weight_hh];
  const Tensor *const ih = &inputs[In::bias_ih], *const hh = &inputs[In::bias_hh];
  const int64_t width = spec.width(), inside = spec.cell == kernels::Cell::gru ? 2 * spec.hidden : width;  // from here on b_hh stands inside
  kernels::RecurrentParts<T> parts;
  if (ih->defined() || hh->defined() || spec.norm != TermNorm::none) {
    bias_ = ih->defined() ? ih->clone() : Tensor::zeros({width}, like.dtype(), like.device());
    T* const bias = bias_.mutable_data<T>();
    if (hh->defined()) kernels::elementwise<T>(like.device())->accumulate(inside, hh->data<T>(), bias);
    parts.bias = bias;
  }
  if (inside < width) {
    bias_h_ = Tensor::zeros({width}, like.dtype(), like.device());
    if (hh->defined())
      kernels::move(like.device())
          ->copy((width - inside) * static_cast<int64_t>(sizeof(T)), hh->data<T>() + inside, bias_h_.mutable_data<T>() + inside);
    parts.bias_h = bias_h_.data<T>();
  }
  if (spec.normalise_c) {
    bias_c_ = inputs[In::bias_c].defined() ? inputs[In::bias_c] : Tensor::zeros({spec.hidden}, like.dtype(), like.device());
    parts.bias_c = bias_c_.data<T>();
  }
  parts.gain_ih = data_or_null<T>(inputs[In::gain_ih]);
  parts.gain_hh = data_or_null<T>(inputs[In::gain_hh]);
  parts.gain_c = data_or_null<T>(inputs[In::gain_c]);
  return parts;
}
template kernels::RecurrentParts<float> RecurrentBiases::parts(const kernels::RecurrentSpec&, const RecurrentInputs&);
template kernels::RecurrentParts<double> RecurrentBiases::parts(const kernels::RecurrentSpec&, const RecurrentInputs&);

RecurrentOutcome recurrent_forward(const RecurrentCall& call, const RecurrentInputs& inputs, RecurrentStatistics& running, bool keep) {
  return with_float("recurrent", inputs[In::x].dtype(), [&](auto zero) { return Forward<decltype(zero)>(call, inputs, running, keep).run(); });
}

}  // namespace lamina::ops
