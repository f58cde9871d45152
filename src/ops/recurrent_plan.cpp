#include "ops/recurrent_plan.h"

#include <algorithm>
#include <numeric>

namespace lamina::ops {

namespace {
size_t at(int64_t i) { return static_cast<size_t>(i); }
}  // namespace

const int64_t* RowList::on(Device device) const {
  if (device.is_cpu()) return list.data();
  if (!copy_.defined() || !(copy_.device() == device)) copy_ = Tensor::from(list, {size()}, device);
  return copy_.data<int64_t>();
}

RecurrentPlan::RecurrentPlan(int64_t time_, int64_t batch_, std::span<const int64_t> lengths, bool reverse) : time(time_), batch(batch_) {
  ragged = std::ranges::any_of(lengths, [&](int64_t length) { return length < time; });
  if (!ragged) {
    rows = batch > 0 ? time * batch : 0;
    for (int64_t step = 0; batch > 0 && step < time; ++step) {
      offset.push_back((reverse ? time - 1 - step : step) * batch);
      alive.push_back(batch);
    }
    return;
  }
  std::vector<int64_t>& by_length = order.list;
  by_length.resize(at(batch));
  std::iota(by_length.begin(), by_length.end(), int64_t{0});
  std::ranges::stable_sort(by_length, std::greater<>(), [&](int64_t n) { return lengths[at(n)]; });
  rank.list.resize(at(batch));
  for (int64_t i = 0; i < batch; ++i) rank.list[at(by_length[at(i)])] = i;
  int64_t count = batch;
  place.list.assign(at(time * batch), -1);
  for (int64_t step = 0; step < time; ++step) {
    while (count > 0 && lengths[at(by_length[at(count - 1)])] <= step) --count;
    if (count == 0) break;
    const int64_t earlier = step > 0 ? offset.back() : 0;
    offset.push_back(rows);
    alive.push_back(count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t n = by_length[at(i)], t = reverse ? lengths[at(n)] - 1 - step : step;
      source.list.push_back(t * batch + n);
      place.list[at(t * batch + n)] = rows + i;
      before.list.push_back(step > 0 ? earlier + i : 0);
    }
    rows += count;
  }
  std::ranges::replace(place.list, int64_t{-1}, rows);
}

std::vector<RecurrentPlan::Chunk> RecurrentPlan::chunks(int64_t least) const {
  std::vector<Chunk> result;
  for (int64_t step = 0; step < steps(); ++step) {
    if (result.empty() || result.back().count >= least) result.push_back({step, step, offset[at(step)], 0});
    Chunk& chunk = result.back();
    chunk.last = step + 1;
    chunk.begin = std::min(chunk.begin, offset[at(step)]);
    chunk.count += alive[at(step)];
  }
  return result;
}

}  // namespace lamina::ops
