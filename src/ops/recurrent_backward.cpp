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
class Backward {
 public:
  Backward(const RecurrentCall& call, autograd::Backward& b) : spec_(call.spec), plan_(*call.plan), b_(b), sums_at_(call.spec) {
    for (int i = 0; i < In::count; ++i) in_.tensors[static_cast<size_t>(i)] = b.saved(i);
    for (int i = 0; i < Trace::count; ++i) trace_.tensors[static_cast<size_t>(i)] = b.saved(In::count + i);
    inputs_ = in_[In::weight_ih].size(1);
  }

  void run() {
    work_.in_walk = recurrent_in_walk(spec_, device(), plan_, inputs_, static_cast<int64_t>(sizeof(T)));
    const std::vector<RecurrentPlan::Chunk> chunks = plan_.chunks(work_.in_walk ? kRowsInWalk : recurrent_chunk_rows(spec_, device()));
    prepare(chunks);
    if (work_.in_walk) prepare_products();
    for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk) {
      work_.steps = plan_.walk(*chunk);
      work_.da_x.origin = work_.da_h.origin = chunk->begin;
      kernels::recurrent<T>(device())->backward(work_);
      if (work_.in_walk) {
        work_.goes_on = true;
        x_beta_ = h_beta_ = 1;
        continue;
      }
      if (dw_ih_.defined()) weight_gradient(dw_ih_, chunk->count, work_.da_x.data, x_.data<T>() + chunk->begin * inputs_, x_beta_);
      if (dw_hh_.defined()) recurrent_gradient(*chunk);
      if (dx_.defined()) input_gradient(*chunk);
    }
    give_states_and_inputs();
    give_weights();
    if (sums_.defined()) give_sums();
  }

 private:
  /// Rows that a walk with all its products takes at once: until partial sums are added up.
  static constexpr int64_t kRowsInWalk = 1024 * kernels::kSumParts;

  const Tensor& like() const { return in_[In::weight_hh]; }
  Device device() const { return like().device(); }
  bool lstm() const { return spec_.cell == kernels::Cell::lstm; }
  Tensor rows(int64_t count, int64_t width) const { return Tensor::empty({count, width}, like().dtype(), device()); }
  OverTime<const T> kept(Trace::Index index) { return {data_or_null<T>(trace_[index])}; }
  kernels::ColumnStatistics<const T> columns(Trace::Index first) const {
    const auto at = [&](int i) { return data_or_null<T>(trace_.tensors[static_cast<size_t>(first + i)]); };
    return {at(0), at(1), nullptr, at(2)};
  }
  bool needs_sums() const {
    for (const In::Index i : {In::bias_ih, In::bias_hh, In::gain_ih, In::gain_hh, In::gain_c, In::bias_c})
      if (b_.needs(i)) return true;
    return false;
  }

  void prepare(const std::vector<RecurrentPlan::Chunk>& chunks) {
    const int64_t hidden = spec_.hidden, width = spec_.width();
    work_.spec = spec_;
    work_.parts = biases_.parts<T>(spec_, in_);
    weight_ = kernels::gemm<T>(device())->pack(width, hidden, {in_[In::weight_hh].data<T>(), std::max<int64_t>(hidden, 1), false}, plan_.batch);
    work_.weight = &weight_;
    work_.to_start = b_.needs(In::h0);
    h0_ = recurrent_state(plan_, hidden, in_[In::h0], like());
    work_.h0 = h0_.data<T>();
    work_.a_x = kept(Trace::a_x), work_.a_h = kept(Trace::a_h), work_.gates = kept(Trace::gates), work_.raw_c = kept(Trace::raw_c);
    work_.y = kept(Trace::y), work_.n_term = kept(Trace::n_term), work_.statistics = kept(Trace::statistics);
    work_.x_columns = columns(Trace::x_mean), work_.h_columns = columns(Trace::h_mean), work_.c_columns = columns(Trace::c_mean);

    dy_ = plan_.ragged ? gathered_rows(b_.dy(0), plan_.source, hidden) : b_.dy(0);
    work_.dy = {dy_.data<T>()};
    dh_ = recurrent_state(plan_, hidden, b_.dy(1), like());
    work_.dh = dh_.mutable_data<T>();
    if (lstm()) {
      c0_ = recurrent_state(plan_, hidden, in_[In::c0], like());
      dc_ = recurrent_state(plan_, hidden, b_.dy(2), like());
      work_.c0 = c0_.data<T>();
      work_.dc = dc_.mutable_data<T>();
    }
    int64_t most = 0;
    for (const RecurrentPlan::Chunk& chunk : chunks) most = std::max(most, work_.in_walk ? work_.in_walk * plan_.batch : chunk.count);
    da_x_ = apart(most, width, Trace::statistics, like());
    work_.da_x = {da_x_.mutable_data<T>(), 0, work_.in_walk};
    if (!spec_.one_gradient()) {
      da_h_ = apart(most, width, Trace::y, like());
      work_.da_h = {da_h_.mutable_data<T>(), 0, work_.in_walk};
    }
    if (needs_sums()) {
      sums_ = Tensor::zeros({sums_at_.count}, like().dtype(), device());
      work_.sums = sums_.mutable_data<T>();
      if (device().is_cpu() && chunks.size() > 1) {
        sum_parts_ = Tensor::zeros({kernels::kSumParts, sums_at_.count}, like().dtype(), device());
        work_.sum_parts = sum_parts_.mutable_data<T>();
      }
    }
    if (b_.needs(In::weight_ih)) {
      dw_ih_ = rows(width, inputs_);
      x_ = plan_.ragged ? gathered_rows(in_[In::x], plan_.source, inputs_) : in_[In::x];
    }
    if (b_.needs(In::weight_hh)) {
      dw_hh_ = rows(width, hidden);
      if (plan_.ragged && !work_.in_walk) before_ = rows(most, hidden);
    }
    if (b_.needs(In::x)) dx_ = rows(plan_.rows + (plan_.ragged ? 1 : 0), inputs_);
  }

  void prepare_products() {
    work_.inputs = inputs_;
    work_.from_zero = !in_[In::h0].defined();
    if (dw_ih_.defined()) {
      work_.x = {x_.data<T>()};
      work_.dw_ih = dw_ih_.mutable_data<T>();
    }
    if (dw_hh_.defined()) work_.dw_hh = dw_hh_.mutable_data<T>();
    if (!dx_.defined()) return;
    weight_ih_ =
        kernels::gemm<T>(device())->pack(spec_.width(), inputs_, {in_[In::weight_ih].data<T>(), std::max<int64_t>(inputs_, 1), false}, plan_.batch);
    work_.weight_ih = &weight_ih_;
    work_.dx = {dx_.mutable_data<T>()};
  }

  /// dw (+)= da^T values.
  void weight_gradient(Tensor& dw, int64_t count, const T* da, const T* values, T& beta) const {
    const int64_t width = dw.size(0), columns = dw.size(1), ld = std::max<int64_t>(columns, 1);
    kernels::gemm<T>(device())->gemm(width, columns, count, {da, std::max<int64_t>(width, 1), true}, {values, ld, false}, beta, dw.mutable_data<T>(),
                                     ld);
    beta = 1;
  }

  /// The product of each step's gradient with the h before it.
  void recurrent_gradient(const RecurrentPlan::Chunk& chunk) {
    const int64_t hidden = spec_.hidden, width = spec_.width();
    const T* const da = spec_.one_gradient() ? work_.da_x.data : work_.da_h.data;
    const T* const y = trace_[Trace::y].template data<T>();
    const auto offset = [&](int64_t step) { return plan_.offset[static_cast<size_t>(step)]; };
    if (plan_.ragged) {
      const int64_t bytes = hidden * static_cast<int64_t>(sizeof(T)), fresh = chunk.first == 0 ? plan_.alive[0] : 0;  // from h0
      T* const before = before_.mutable_data<T>();
      if (hidden > 0) {
        const auto move = kernels::move(device());
        move->copy(fresh * bytes, h0_.data<T>(), before);
        move->gather_rows(chunk.count - fresh, plan_.rows, bytes, y, plan_.before.on(device()) + chunk.begin + fresh, before + fresh * hidden);
      }
      return weight_gradient(dw_hh_, chunk.count, da, before_.data<T>(), h_beta_);
    }
    if (chunk.first == 0 && in_[In::h0].defined())
      weight_gradient(dw_hh_, plan_.batch, da + (offset(0) - chunk.begin) * width, h0_.data<T>(), h_beta_);
    const int64_t first = std::max<int64_t>(chunk.first, 1), last = chunk.last - 1;
    if (first > last) return;
    const int64_t begin = std::min(offset(first), offset(last)), before = std::min(offset(first - 1), offset(last - 1));
    weight_gradient(dw_hh_, (last - first + 1) * plan_.batch, da + (begin - chunk.begin) * width, y + before * hidden, h_beta_);
  }

  void input_gradient(const RecurrentPlan::Chunk& chunk) {
    const int64_t width = spec_.width(), ld = std::max<int64_t>(inputs_, 1);
    kernels::gemm<T>(device())->gemm(chunk.count, inputs_, width, {work_.da_x.data, std::max<int64_t>(width, 1), false},
                                     {in_[In::weight_ih].data<T>(), ld, false}, T{0}, dx_.mutable_data<T>() + chunk.begin * inputs_, ld);
  }

  void give_states_and_inputs() {
    const auto in_order = [&](const Tensor& state) { return plan_.ragged ? gathered_rows(state, plan_.rank, spec_.hidden) : state; };
    if (b_.needs(In::h0)) b_.give(In::h0, in_order(dh_));
    if (b_.needs(In::c0)) b_.give(In::c0, in_order(dc_));
    if (!dx_.defined()) return;
    if (plan_.ragged) {
      kernels::move(device())->fill(like().dtype(), inputs_, 0, dx_.mutable_data<T>() + plan_.rows * inputs_);
      dx_ = gathered_rows(dx_, plan_.place, inputs_);
    }
    b_.give(In::x, detail::view(dx_, {plan_.time, plan_.batch, inputs_}));
  }

  void give_weights() {
    if (dw_ih_.defined()) {
      if (x_beta_ == T{0}) dw_ih_.fill_(0);  // there was no step
      b_.give(In::weight_ih, dw_ih_);
    }
    if (dw_hh_.defined()) {
      if (h_beta_ == T{0}) dw_hh_.fill_(0);
      b_.give(In::weight_hh, dw_hh_);
    }
  }

  void give_sums() {
    const T* const sums = sums_.data<T>();
    const auto copy = [&](const T* from, int64_t width, T* to) { kernels::move(device())->copy(width * static_cast<int64_t>(sizeof(T)), from, to); };
    const auto give = [&](In::Index index, int64_t at, int64_t width) {
      if (!b_.needs(index)) return;
      Tensor gradient = Tensor::empty({width}, like().dtype(), device());
      copy(sums + at, width, gradient.mutable_data<T>());
      if (index == In::bias_hh && sums_at_.n_bias >= 0) copy(sums + sums_at_.n_bias, spec_.hidden, gradient.mutable_data<T>() + 2 * spec_.hidden);
      b_.give(index, std::move(gradient));
    };
    give(In::bias_ih, sums_at_.bias, spec_.width());
    give(In::bias_hh, sums_at_.bias, spec_.width());
    give(In::gain_ih, sums_at_.gain_ih, spec_.width());
    give(In::gain_hh, sums_at_.gain_hh, spec_.width());
    give(In::gain_c, sums_at_.gain_c, spec_.hidden);
    give(In::bias_c, sums_at_.bias_c, spec_.hidden);
  }

  const kernels::RecurrentSpec& spec_;
  const RecurrentPlan& plan_;
  autograd::Backward& b_;
  kernels::RecurrentSums sums_at_;
  RecurrentInputs in_;
  RecurrentTrace trace_;
  int64_t inputs_ = 0;
  kernels::RecurrentBackward<T> work_;
  kernels::Packed<T> weight_, weight_ih_;
  RecurrentBiases biases_;
  Tensor x_, h0_, c0_, dy_, dh_, dc_, da_x_, da_h_, before_, sums_, sum_parts_, dx_, dw_ih_, dw_hh_;
  T x_beta_ = 0, h_beta_ = 0;  // 0 until something was written
};

}  // namespace

void recurrent_backward(const RecurrentCall& call, autograd::Backward& b) {
  with_float("recurrent", b.dy(0).dtype(), [&](auto zero) { Backward<decltype(zero)>(call, b).run(); });
}

}  // namespace lamina::ops
