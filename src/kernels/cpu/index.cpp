#include "kernels/index.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <numeric>
#include <type_traits>
#include <vector>

#include <lamina/core/parallel.h>
#include "kernels/kernels.h"

namespace lamina::kernels {
namespace {

constexpr int64_t kGrain = 65536;

/// Sources ordered by target row: those of row r are order[start[r] .. start[r + 1]), in rising order.
struct Buckets {
  std::vector<int64_t> start, order;

  Buckets(int64_t count, const int64_t* index, int64_t rows) : start(static_cast<size_t>(rows + 1)), order(static_cast<size_t>(count)) {
    for (int64_t i = 0; i < count; ++i) ++start[static_cast<size_t>(index[i] + 1)];
    std::partial_sum(start.begin(), start.end(), start.begin());
    std::vector<int64_t> next(start.begin(), start.end() - 1);
    for (int64_t i = 0; i < count; ++i) order[static_cast<size_t>(next[static_cast<size_t>(index[i])]++)] = i;
  }
};

/// Calls f(o, first, last) on ranges of inner positions; no two ranges share a target, so that each is summed by one thread in one order.
template <class F>
void for_each_lane(int64_t outer, int64_t inner, int64_t work_per_lane, F&& f) {
  parallel_for(outer * inner, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, work_per_lane)), [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t o = begin / inner, first = begin % inner, last = std::min(inner, first + end - begin);
      f(o, first, last);
      begin += last - first;
    }
  });
}

template <class T>
struct CpuIndex final : IndexKernels<T> {
  void scatter_add_rows(int64_t count, int64_t width, const T* source, const int64_t* index, int64_t rows, T* target) const override {
    if constexpr (std::is_floating_point_v<T>) {
      const Buckets buckets(count, index, rows);
      parallel_for(rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, width * std::max<int64_t>(1, count / std::max<int64_t>(1, rows)))),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t r = begin; r < end; ++r) {
                       T* row = target + r * width;
                       std::fill_n(row, width, T(0));
                       for (int64_t p = buckets.start[static_cast<size_t>(r)]; p < buckets.start[static_cast<size_t>(r + 1)]; ++p) {
                         const T* from = source + buckets.order[static_cast<size_t>(p)] * width;
                         for (int64_t j = 0; j < width; ++j) row[j] += from[j];
                       }
                     }
                   });
    } else {
      std::abort();
    }
  }

  void gather(int64_t outer, int64_t axis, int64_t count, int64_t inner, const T* x, const int64_t* index, T* y) const override {
    parallel_for(outer * count * inner, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t o = i / (count * inner), column = i % inner;
        y[i] = x[(o * axis + index[i]) * inner + column];
      }
    });
  }

  void scatter_add(int64_t outer, int64_t axis, int64_t count, int64_t inner, const T* dy, const int64_t* index, T* dx) const override {
    if constexpr (std::is_floating_point_v<T>) {
      for_each_lane(outer, inner, axis + count, [&](int64_t o, int64_t first, int64_t last) {
        T* target = dx + o * axis * inner;
        for (int64_t a = 0; a < axis; ++a) std::fill(target + a * inner + first, target + a * inner + last, T(0));
        for (int64_t j = 0; j < count; ++j) {
          const int64_t row = (o * count + j) * inner;
          for (int64_t i = first; i < last; ++i) target[index[row + i] * inner + i] += dy[row + i];
        }
      });
    } else {
      std::abort();
    }
  }
};

template <class T>
const IndexKernels<T>& instance() {
  static const CpuIndex<T> kernels;
  return kernels;
}

}  // namespace

template <>
const IndexKernels<float>& CpuBackend::index<float>() {
  return instance<float>();
}
template <>
const IndexKernels<double>& CpuBackend::index<double>() {
  return instance<double>();
}
template <>
const IndexKernels<int64_t>& CpuBackend::index<int64_t>() {
  return instance<int64_t>();
}
template <>
const IndexKernels<uint8_t>& CpuBackend::index<uint8_t>() {
  return instance<uint8_t>();
}

int64_t first_out_of_range(int64_t count, const int64_t* index, int64_t limit) {
  const uint64_t bound = static_cast<uint64_t>(limit);  // negative indices become large
  std::atomic<int64_t> first{count};
  parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (static_cast<uint64_t>(index[i]) < bound) continue;
      int64_t seen = first.load();
      while (i < seen && !first.compare_exchange_weak(seen, i)) {
      }
      return;
    }
  });
  return first.load();
}

}  // namespace lamina::kernels
