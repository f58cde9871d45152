// The walk of a recurrent layer: for each step a product with gemm and one kernel for the rest. The loop over steps runs on the host, which queues
// all of it and waits for nothing.

#include "kernels/cuda/recurrent.h"

#include <algorithm>
#include <vector>

#include "kernels/cuda/backend.h"

namespace lamina::kernels {

namespace cuda {

namespace {

template <class T>
StepParts<T> parts_of(const RecurrentParts<T>& p) {
  return {p.bias, p.bias_h, p.gain_ih, p.gain_hh, p.gain_c, p.bias_c};
}

template <class... P>
bool all_fit(int64_t hidden, const P*... pointers) {
  return (packs_fit(pointers, hidden) && ...);
}
template <class T>
bool parts_fit(const RecurrentParts<T>& p, int64_t hidden) {
  return all_fit(hidden, p.bias, p.bias_h, p.gain_ih, p.gain_hh, p.gain_c, p.bias_c);
}

/// The statistics of a step. A null array stays null.
template <class T>
StepColumns<T> columns_at(const ColumnStatistics<T>& all, int64_t step, int64_t width) {
  const auto at = [&](T* p) { return p ? p + step * width : nullptr; };
  return {at(all.mean), at(all.shift), at(all.var), at(all.rstd)};
}

template <class T>
ForwardStep<T> step_of(const RecurrentForward<T>& w, int64_t step) {
  const int64_t hidden = w.spec.hidden, width = w.spec.width();
  const auto at = [&](const OverTime<T>& array, int64_t of) { return array.row(w.steps, step, 0, of); };
  T *const a_x = at(w.a_x, width), *const a_h = at(w.a_h, width), *const gates = at(w.gates, width), *const raw_c = at(w.raw_c, hidden);
  T *const y = at(w.y, hidden), *const n_term = at(w.n_term, hidden);
  ForwardStep<T> result{
      StepSpec(w.spec), w.steps.alive[step], parts_of(w.parts), a_x, a_h, gates, w.h, w.c, raw_c, y, n_term, at(w.statistics, w.spec.statistics())};
  result.spec.packs = parts_fit(w.parts, hidden) && all_fit(hidden, a_x, a_h, gates, w.h, w.c, raw_c, y, n_term);
  return result;
}

template <class T>
void forward(const RecurrentForward<T>& w) {
  const int64_t hidden = w.spec.hidden, width = w.spec.width();
  const bool sums = w.spec.sums_terms();
  const GemmKernels<T>& gemm = CudaBackend::gemm<T>();
  for (int64_t step = w.steps.first; step < w.steps.last; ++step) {
    const int64_t alive = w.steps.alive[step];
    const Op op("recurrent", {{"step", step}, {"sequences", alive}, {"hidden", hidden}});
    T* const target = (sums ? w.a_x : w.a_h).row(w.steps, step, 0, width);
    if (step > 0 || !w.from_zero)
      gemm.gemm(alive, {w.h, hidden, false}, *w.weight, sums ? T{1} : T{0}, target, width, nullptr);
    else if (!sums)
      check(op, cudaMemsetAsync(target, 0, static_cast<size_t>(alive * width) * sizeof(T), stream()), "cudaMemsetAsync");
    const ForwardStep<T> at = step_of(w, step);
    if (w.spec.norm != TermNorm::columns)
      forward_rows(op, w.spec, at);
    else
      forward_columns(op, w.spec.cell, at, columns_at(w.x_columns, step, width), columns_at(w.h_columns, step, width),
                      columns_at(w.c_columns, step, hidden));
  }
}

/// Steps whose rows follow one another in the arrays over time.
struct RowRun {
  int64_t begin, end;
};

std::vector<RowRun> row_runs(const Steps& steps) {
  std::vector<RowRun> runs;
  for (int64_t step = steps.first; step < steps.last; ++step) {
    const int64_t begin = steps.offset[step], end = begin + steps.alive[step];
    if (!runs.empty() && runs.back().end == begin)
      runs.back().end = end;
    else if (!runs.empty() && runs.back().begin == end)
      runs.back().begin = begin;
    else
      runs.push_back({begin, end});
  }
  return runs;
}

/// Room, from `origin` on, for what column_sums will want and nobody else keeps.
template <class T>
struct Kept {
  Kept(const Op& op, const RecurrentBackward<T>& w, const std::vector<RowRun>& runs) : Kept(op, w, span_of(runs)) {}
  Kept(const Op& op, const RecurrentBackward<T>& w, RowRun span)
      : origin(span.begin),
        pre_x(op, normalised(w) ? (span.end - span.begin) * w.spec.width() : 0),
        pre_n(op, normalised(w) && w.spec.cell == Cell::gru ? (span.end - span.begin) * w.spec.hidden : 0),
        dk(op, w.sums && w.spec.normalise_c && w.spec.norm != TermNorm::columns ? (span.end - span.begin) * w.spec.hidden : 0) {}

  static bool normalised(const RecurrentBackward<T>& w) { return w.sums && (w.spec.norm == TermNorm::terms || w.spec.norm == TermNorm::gates); }
  static RowRun span_of(const std::vector<RowRun>& runs) {
    RowRun span = runs.front();
    for (const RowRun& run : runs) span = {std::min(span.begin, run.begin), std::max(span.end, run.end)};
    return span;
  }

  int64_t origin;
  Scratch<T> pre_x, pre_n, dk;
};

template <class T>
BackwardStep<T> step_of(const RecurrentBackward<T>& w, const Kept<T>& kept, int64_t step) {
  const int64_t hidden = w.spec.hidden, width = w.spec.width(), numbers = w.spec.statistics();
  const auto at = [&](const auto& array, int64_t of) { return array.row(w.steps, step, 0, of); };
  const auto before = [&](const OverTime<const T>& array, const T* start, int64_t of) {
    return step > 0 ? array.row(w.steps, step - 1, 0, of) : start;
  };
  const auto kept_at = [&](const Scratch<T>& array, int64_t of) {
    return array.data() ? array.data() + (w.steps.offset[step] - kept.origin) * of : nullptr;
  };
  const T *const a_x = at(w.a_x, width), *const a_h = at(w.a_h, width), *const gates = at(w.gates, width), *const raw_c = at(w.raw_c, hidden);
  const T *const y = at(w.y, hidden), *const n_term = at(w.n_term, hidden), *const dy = at(w.dy, hidden);
  const T *const c_before = before(w.raw_c, w.c0, hidden), *const h_before = before(w.y, w.h0, hidden);
  const T* const statistics_before = w.spec.carry ? before(w.statistics, nullptr, numbers) : nullptr;
  T *const da_x = at(w.da_x, width), *const da_h = at(w.da_h, width);
  T *const pre_x = kept_at(kept.pre_x, width), *const pre_n = kept_at(kept.pre_n, hidden), *const dk = kept_at(kept.dk, hidden);
  BackwardStep<T> result{StepSpec(w.spec),
                         w.steps.alive[step],
                         parts_of(w.parts),
                         a_x,
                         a_h,
                         gates,
                         raw_c,
                         y,
                         n_term,
                         at(w.statistics, numbers),
                         c_before,
                         h_before,
                         statistics_before ? statistics_before + numbers - 3 : nullptr,
                         dy,
                         w.dh,
                         w.dc,
                         da_x,
                         da_h,
                         pre_x ? pre_x : da_x,
                         pre_n                      ? pre_n
                         : w.spec.cell == Cell::gru ? da_h + 2 * hidden
                                                    : nullptr,
                         dk,
                         pre_n ? hidden : width,
                         pre_x != nullptr};
  result.spec.packs = parts_fit(w.parts, hidden) && all_fit(hidden, a_x, a_h, gates, raw_c, y, n_term, dy, c_before, h_before) &&
                      all_fit<T, T>(hidden, w.dh, w.dc) && all_fit<T, T, T, T, T>(hidden, da_x, da_h, pre_x, pre_n, dk);
  return result;
}

template <class T>
StepSums<T> sums_of(const RecurrentBackward<T>& w) {
  const RecurrentSums at(w.spec);
  return {w.sums, at.bias, at.n_bias, at.gain_ih, at.gain_hh, at.gain_c, at.bias_c};
}

// The sums over the rows of one run.
template <class T>
void add_sums(const Op& op, const RecurrentBackward<T>& w, const Kept<T>& kept, const RowRun& run) {
  const int64_t hidden = w.spec.hidden, width = w.spec.width();
  const auto at = [&](const auto& array, int64_t of) { return array.data ? array.data + (run.begin - array.origin) * of : nullptr; };
  const auto kept_at = [&](const Scratch<T>& array, int64_t of) { return array.data() ? array.data() + (run.begin - kept.origin) * of : nullptr; };
  const T *const pre_x = kept_at(kept.pre_x, width), *const pre_n = kept_at(kept.pre_n, hidden), *const da_h = at(w.da_h, width);
  const bool gru = w.spec.cell == Cell::gru;
  const SumTerms<T> terms{StepSpec(w.spec),
                          run.end - run.begin,
                          gru,
                          w.spec.norm == TermNorm::terms,
                          w.spec.norm == TermNorm::gates,
                          pre_x ? pre_x : at(w.da_x, width),
                          pre_n ? pre_n
                          : gru ? da_h + 2 * hidden
                                : nullptr,
                          kept_at(kept.dk, hidden),
                          at(w.a_x, width),
                          at(w.a_h, width),
                          at(w.raw_c, hidden),
                          at(w.statistics, w.spec.statistics()),
                          pre_n ? hidden : width};
  column_sums(op, terms, sums_of(w));
}

template <class T>
void backward(const RecurrentBackward<T>& w) {
  const int64_t hidden = w.spec.hidden, width = w.spec.width();
  const OverTime<T>& da = w.spec.one_gradient() ? w.da_x : w.da_h;
  const GemmKernels<T>& gemm = CudaBackend::gemm<T>();
  const Op all("recurrent_backward", {{"steps", w.steps.last - w.steps.first}, {"sequences", w.steps.batch}, {"hidden", hidden}});
  const std::vector<RowRun> runs = row_runs(w.steps);
  const Kept<T> kept(all, w, runs);
  for (int64_t step = w.steps.last - 1; step >= w.steps.first; --step) {
    const int64_t alive = w.steps.alive[step];
    const Op op("recurrent_backward", {{"step", step}, {"sequences", alive}, {"hidden", hidden}});
    const BackwardStep<T> at = step_of(w, kept, step);
    if (w.spec.norm != TermNorm::columns)
      backward_rows(op, w.spec, at);
    else
      backward_columns(op, w.spec.cell, at, columns_at(w.x_columns, step, width), columns_at(w.h_columns, step, width),
                       columns_at(w.c_columns, step, hidden), sums_of(w));
    if (step > 0 || w.to_start)
      gemm.gemm(alive, {da.row(w.steps, step, 0, width), width, false}, *w.weight, w.spec.cell == Cell::gru ? T{1} : T{0}, w.dh, hidden, nullptr);
  }
  if (w.sums && w.spec.norm != TermNorm::columns)
    for (const RowRun& run : runs) add_sums(all, w, kept, run);
}

template <class T>
struct CudaRecurrent final : RecurrentKernels<T> {
  void forward(const RecurrentForward<T>& work) const override {
    if (work.steps.first < work.steps.last && work.spec.hidden > 0 && work.steps.batch > 0) cuda::forward(work);
  }
  void backward(const RecurrentBackward<T>& work) const override {
    if (work.steps.first < work.steps.last && work.spec.hidden > 0 && work.steps.batch > 0) cuda::backward(work);
  }
  void move_running(const RunningColumns<T>& work) const override { cuda::move_running(work); }
};

}  // namespace

}  // namespace cuda

template <>
const RecurrentKernels<float>& CudaBackend::recurrent<float>() {
  static const cuda::CudaRecurrent<float> kernels;
  return kernels;
}
template <>
const RecurrentKernels<double>& CudaBackend::recurrent<double>() {
  static const cuda::CudaRecurrent<double> kernels;
  return kernels;
}

}  // namespace lamina::kernels
