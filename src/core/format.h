#pragma once
// fmt for lamina's own types, and errors from format strings. Private: public headers do not include fmt.

#include <fmt/format.h>

#include <lamina/core/device.h>
#include <lamina/core/dtype.h>
#include <lamina/core/error.h>
#include <lamina/core/shape.h>

template <>
struct fmt::formatter<lamina::Shape> : fmt::formatter<std::string> {
  template <class Context>
  auto format(const lamina::Shape& shape, Context& context) const {
    return fmt::formatter<std::string>::format(shape.str(), context);
  }
};
template <>
struct fmt::formatter<lamina::DType> : fmt::formatter<std::string> {
  template <class Context>
  auto format(lamina::DType dtype, Context& context) const {
    return fmt::formatter<std::string>::format(lamina::to_string(dtype), context);
  }
};
template <>
struct fmt::formatter<lamina::Device> : fmt::formatter<std::string> {
  template <class Context>
  auto format(const lamina::Device& device, Context& context) const {
    return fmt::formatter<std::string>::format(device.str(), context);
  }
};

namespace lamina {

/// fail("layer_norm", "gain: expected {}, got {}", a, b) with fmt's syntax.
template <class First, class... Rest>
[[noreturn]] void fail(std::string_view where, fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest) {
  fail(where, std::string_view(fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)));
}
template <class First, class... Rest>
[[noreturn]] void fail_input(std::string_view where, fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest) {
  fail_input(where, std::string_view(fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)));
}

}  // namespace lamina
