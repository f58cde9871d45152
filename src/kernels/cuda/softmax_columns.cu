// Softmax down columns side by side, and of few long rows, which are columns too. Columns that are too few to fill a GPU are cut into parts: one
// launch leaves what it finds in each part, another puts that together, for its column alone, and goes over its own part again. How they are cut
// depends on the shape alone, so every run adds in the same order.

#include "kernels/cuda/device/row.cuh"
#include "kernels/cuda/device/softmax.cuh"

namespace lamina::kernels::cuda {

namespace {

/// A thread's part of a part of a tile; a block takes the units blockIdx.x, blockIdx.x + gridDim.x, ...
struct PartThread : ColumnThread {
  __device__ PartThread(const ColumnTiles& tiles, const Parts& cut, int64_t unit)
      : ColumnThread(tiles, unit / cut.parts), part(unit % cut.parts), begin(part * cut.length) {
    end = begin + cut.length < tiles.axis ? begin + cut.length : tiles.axis;
  }
  /// f(element) for each of its elements.
  template <class F>
  __device__ void each(const ColumnTiles& tiles, F f) const {
    if (!inside) return;
#pragma unroll 4
    for (int64_t j = begin + slice; j < end; j += tiles.slices) f(from + j * tiles.inner);
  }
  __device__ int64_t count(const ColumnTiles& tiles) const {
    return inside && begin + slice < end ? (end - begin - slice + tiles.slices - 1) / tiles.slices : 0;
  }
  int64_t part, begin, end;
};

// Rules: `Found` is what is found in entries of a column, of() in those of one thread, together() in those of two. [columns][parts] are kept.

/// What a thread's column holds: all threads of the column get it. Where columns are not cut there are no parts to read.
template <class Rule>
__device__ typename Rule::Found found_in_column(const Rule& rule, const ColumnTiles& tiles, const Parts& cut, const PartThread& mine,
                                                dptr<const typename Rule::Found> parts) {
  typename Rule::Found found = Rule::nothing();
  if (cut.parts == 1) {
    found = rule.of(tiles, mine);
  } else if (mine.inside) {
    for (int64_t part = mine.slice; part < cut.parts; part += tiles.slices) {
      const typename Rule::Found other = parts[mine.column * cut.parts + part];
      found = Rule::together(found, other);
    }
  }
  return combine_slices(tiles, found, [](const auto& a, const auto& b) { return Rule::together(a, b); });
}

template <class Rule>
__global__ void __launch_bounds__(column_threads) find_in_parts(Rule rule, ColumnTiles tiles, Parts cut, dptr<typename Rule::Found> parts) {
  for (int64_t unit = blockIdx.x; unit < tiles.tiles * cut.parts; unit += gridDim.x) {
    const PartThread mine(tiles, cut, unit);
    const typename Rule::Found found = combine_slices(tiles, rule.of(tiles, mine), [](const auto& a, const auto& b) { return Rule::together(a, b); });
    if (mine.inside && mine.slice == 0) parts[mine.column * cut.parts + mine.part] = found;
  }
}

/// The largest entry, the sum of the exponentials about it, and how far all entries are above it (below 0).
template <class T>
struct Exponentials {
  struct Found {
    T top;
    double sum, above, count;
  };
  dptr<const T> x;

  __device__ static Found nothing() { return {-Bounds<T>::infinite, 0, 0, 0}; }
  __device__ Found of(const ColumnTiles& tiles, const PartThread& mine) const {
    Found found = nothing();
    mine.each(tiles, [&](int64_t at) {
      const T value = x[at];
      if (value > found.top) found.top = value;
    });
    const T from = found.top == -Bounds<T>::infinite ? T(0) : found.top;  // -inf are nothing beside what other parts have
    mine.each(tiles, [&](int64_t at) {
      const T d = x[at] - from;
      found.sum += static_cast<double>(std::exp(d));
      found.above += static_cast<double>(d);
    });
    found.count = static_cast<double>(mine.count(tiles));
    return found;
  }
  /// About another top, which is larger or the same.
  __device__ static void about(T top, Found& found) {
    if (found.top == top) return;
    const double d = static_cast<double>(found.top) - static_cast<double>(top);
    found.sum *= std::exp(d);
    found.above += found.count * d;
    found.top = top;
  }
  __device__ static Found together(Found a, Found b) {
    if (a.count == 0) return b;
    if (b.count == 0) return a;
    const T top = a.top > b.top ? a.top : b.top;
    about(top, a);
    about(top, b);
    return {top, a.sum + b.sum, a.above + b.above, a.count + b.count};
  }
  /// Of a whole column: none but -inf (and NaN) is NaN.
  __device__ static double sum_of(const Found& found) {
    return found.top == -Bounds<T>::infinite ? static_cast<double>(Bounds<T>::not_a_number) : found.sum;
  }
};

struct Sum {
  using Found = double;
  __device__ static double nothing() { return 0; }
  __device__ static double together(double a, double b) { return a + b; }
};

template <class T>
struct GradientTerms : Sum {
  bool log;
  dptr<const T> y, dy;
  __device__ double of(const ColumnTiles& tiles, const PartThread& mine) const {
    double sum = 0;
    mine.each(tiles, [&](int64_t at) {
      const T y_value = y[at], dy_value = dy[at];
      sum += static_cast<double>(gradient_term(log, y_value, dy_value));
    });
    return sum;
  }
};

/// Of the exponentials of a row's logits about its saved log-sum-exp.
template <class T>
struct Probabilities : Sum {
  dptr<const T> logits, lse;
  __device__ double of(const ColumnTiles& tiles, const PartThread& mine) const {
    double sum = 0;
    if (!mine.inside) return sum;
    const T from = lse[mine.column];
    mine.each(tiles, [&](int64_t at) { sum += static_cast<double>(std::exp(logits[at] - from)); });
    return sum;
  }
};

template <class T>
using FoundExponentials = typename Exponentials<T>::Found;

template <class T>
__global__ void __launch_bounds__(column_threads)
    softmax_of_parts(bool log, ColumnTiles tiles, Parts cut, dptr<const T> x, dptr<const FoundExponentials<T>> parts, dptr<T> y) {
  for (int64_t unit = blockIdx.x; unit < tiles.tiles * cut.parts; unit += gridDim.x) {
    const PartThread mine(tiles, cut, unit);
    const FoundExponentials<T> found = found_in_column(Exponentials<T>{x}, tiles, cut, mine, parts);
    const double sum = Exponentials<T>::sum_of(found);
    const T top = found.top, factor = static_cast<T>(log ? std::log(sum) : 1 / sum);
    mine.each(tiles, [&](int64_t at) {
      const T below = x[at] - top;
      y[at] = log ? below - factor : std::exp(below) * factor;
    });
  }
}

template <class T>
__global__ void __launch_bounds__(column_threads)
    softmax_of_parts_backward(GradientTerms<T> terms, ColumnTiles tiles, Parts cut, dptr<const double> parts, dptr<T> dx) {
  for (int64_t unit = blockIdx.x; unit < tiles.tiles * cut.parts; unit += gridDim.x) {
    const PartThread mine(tiles, cut, unit);
    const T total = static_cast<T>(found_in_column(terms, tiles, cut, mine, parts));
    mine.each(tiles, [&](int64_t at) {
      const T y_value = terms.y[at], dy_value = terms.dy[at];
      dx[at] = gradient(terms.log, y_value, dy_value, total);
    });
  }
}

/// A block takes a row.
template <class T>
__global__ void __launch_bounds__(column_threads) loss_of_parts(Targets targets, ColumnTiles tiles, Parts cut, dptr<const T> logits,
                                                                dptr<const FoundExponentials<T>> parts, dptr<T> loss, dptr<T> lse) {
  const int64_t row = blockIdx.x;
  const PartThread mine(tiles, cut, row * cut.parts);
  const FoundExponentials<T> found = found_in_column(Exponentials<T>{logits}, tiles, cut, mine, parts);
  if (threadIdx.x != 0) return;
  targets.store_loss<T>(row, logits + row * targets.classes, found.top, std::log(Exponentials<T>::sum_of(found)), found.above, loss, lse);
}

template <class T>
__global__ void __launch_bounds__(column_threads) loss_of_parts_backward(Targets targets, Probabilities<T> terms, ColumnTiles tiles, Parts cut,
                                                                         dptr<const double> parts, dptr<const T> dloss, dptr<T> dlogits) {
  for (int64_t unit = blockIdx.x; unit < tiles.tiles * cut.parts; unit += gridDim.x) {
    const PartThread mine(tiles, cut, unit);
    const int64_t row = mine.column, label = targets.labels[row];
    const bool ignored = label == targets.ignore;
    if (ignored || label < 0 || label >= targets.classes) {
      if (!ignored && mine.part == 0 && threadIdx.x == 0) targets.report.in_range(row, label, targets.classes);
      mine.each(tiles, [&](int64_t at) { dlogits[at] = T(0); });
      continue;
    }
    const LogitGradient<T> of(targets, static_cast<double>(dloss[row]), found_in_column(terms, tiles, cut, mine, parts));
    const T from = terms.lse[row];
    mine.each(tiles, [&](int64_t at) { dlogits[at] = of(std::exp(terms.logits[at] - from), at - mine.from == label); });
  }
}

// The host's side.

constexpr int64_t few_blocks = 128;  // leave multiprocessors of a large GPU idle

Parts cut_of(const ColumnTiles& tiles) { return tiles.tiles < few_blocks ? parts_of(tiles) : Parts{1, tiles.axis}; }

unsigned blocks_of(const ColumnTiles& tiles, const Parts& cut) { return blocks_for(tiles.tiles * cut.parts, 1, INT32_MAX); }

/// What is found in the parts of columns: null where there is one part.
template <class Rule>
class FoundInParts {
 public:
  FoundInParts(const Op& op, const Rule& rule, const ColumnTiles& tiles, const Parts& cut)
      : parts_(op, cut.parts > 1 ? tiles.columns * cut.parts : 0) {
    if (cut.parts == 1) return;
    launch(op.at("find_in_parts"), find_in_parts<Rule>, blocks_of(tiles, cut), column_threads, 0, stream(), rule, tiles, cut, parts_.data());
  }
  const typename Rule::Found* data() const { return parts_.data(); }

 private:
  Scratch<typename Rule::Found> parts_;
};

}  // namespace

template <class T>
bool few_long_rows(int64_t rows, int64_t width) {
  return width > longest_held<T> && cut_of(ColumnTiles(rows, width, 1)).parts > 1;
}

template <class T>
void softmax_columns(const Op& op, bool log, const ColumnTiles& tiles, const T* x, T* y) {
  const Parts cut = cut_of(tiles);
  const FoundInParts parts(op, Exponentials<T>{x}, tiles, cut);
  launch(op, softmax_of_parts<T>, blocks_of(tiles, cut), column_threads, 0, stream(), log, tiles, cut, x, parts.data(), y);
}

template <class T>
void softmax_columns_backward(const Op& op, bool log, const ColumnTiles& tiles, const T* y, const T* dy, T* dx) {
  const Parts cut = cut_of(tiles);
  const GradientTerms<T> terms{{}, log, y, dy};
  const FoundInParts parts(op, terms, tiles, cut);
  launch(op, softmax_of_parts_backward<T>, blocks_of(tiles, cut), column_threads, 0, stream(), terms, tiles, cut, parts.data(), dx);
}

template <class T>
void cross_entropy_columns(const Op& op, const Targets& targets, const T* logits, T* loss, T* lse) {
  const ColumnTiles tiles(targets.rows, targets.classes, 1);
  const Parts cut = cut_of(tiles);
  const FoundInParts parts(op, Exponentials<T>{logits}, tiles, cut);
  launch(op, loss_of_parts<T>, blocks_for(targets.rows, 1, INT32_MAX), column_threads, 0, stream(), targets, tiles, cut, logits, parts.data(), loss,
         lse);
}

template <class T>
void cross_entropy_columns_backward(const Op& op, const Targets& targets, const T* logits, const T* lse, const T* dloss, T* dlogits) {
  const ColumnTiles tiles(targets.rows, targets.classes, 1);
  const Parts cut = cut_of(tiles);
  const Probabilities<T> terms{{}, logits, lse};
  const FoundInParts parts(op, terms, tiles, cut);
  launch(op, loss_of_parts_backward<T>, blocks_of(tiles, cut), column_threads, 0, stream(), targets, terms, tiles, cut, parts.data(), dloss, dlogits);
}

#define LAMINA_SOFTMAX_COLUMNS(T)                                                                      \
  template bool few_long_rows<T>(int64_t, int64_t);                                                    \
  template void softmax_columns(const Op&, bool, const ColumnTiles&, const T*, T*);                    \
  template void softmax_columns_backward(const Op&, bool, const ColumnTiles&, const T*, const T*, T*); \
  template void cross_entropy_columns(const Op&, const Targets&, const T*, T*, T*);                    \
  template void cross_entropy_columns_backward(const Op&, const Targets&, const T*, const T*, const T*, T*);
LAMINA_SOFTMAX_COLUMNS(float)
LAMINA_SOFTMAX_COLUMNS(double)
#undef LAMINA_SOFTMAX_COLUMNS

}  // namespace lamina::kernels::cuda
