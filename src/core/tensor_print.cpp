#include <lamina/core/tensor.h>

#include "core/format.h"

namespace lamina {

namespace {

constexpr int64_t edge = 3;  // elements shown at each end of an abbreviated axis
constexpr int64_t long_axis = 10;

template <class T>
std::string element(T value) {
  if constexpr (std::is_floating_point_v<T>)
    return value == value ? fmt::format("{:.6g}", value) : "nan";  // without the sign that x86 gives its NaNs
  else
    return fmt::format("{}", value);
}

template <class T>
void print(const T* data, const Shape& shape, int axis, std::string& out) {
  if (axis == shape.rank()) {
    out += element(*data);
    return;
  }
  const int64_t size = shape[axis];
  int64_t stride = 1;
  for (int inner = axis + 1; inner < shape.rank(); ++inner) stride *= shape[inner];
  const bool innermost = axis + 1 == shape.rank();
  const std::string separator = innermost ? ", " : ",\n" + std::string(static_cast<size_t>(axis) + 1, ' ');
  out += '[';
  for (int64_t i = 0; i < size; ++i) {
    if (i > 0) out += separator;
    if (size > long_axis && i == edge) {
      out += "...";
      i = size - edge - 1;
      continue;
    }
    print(data + i * stride, shape, axis + 1, out);
  }
  out += ']';
}

}  // namespace

std::string Tensor::str() const {
  if (!defined()) return "undefined";
  std::string out = fmt::format("{} {}", dtype(), shape());
  if (!device().is_cpu()) out += " on " + device().str();
  out += rank() == 0 ? " " : "\n";
  with_type(dtype(), [&](auto zero) {
    const auto values = to_vector<decltype(zero)>();
    print(values.data(), shape(), 0, out);
  });
  return out;
}

}  // namespace lamina
