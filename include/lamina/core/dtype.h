#pragma once
// Element types: f32 and f64 for arithmetic, i64 for indices and labels, u8 for images and masks. There is no implicit promotion.

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include <lamina/core/error.h>

namespace lamina {

enum class DType : uint8_t { f32, f64, i64, u8 };

constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return 4;
    case DType::f64: return 8;
    case DType::i64: return 8;
    case DType::u8: return 1;
  }
  return 0;
}

constexpr bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::f64; }

/// "f32", "f64", "i64", "u8".
std::string to_string(DType dtype);

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>)
    return DType::f32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::f64;
  else if constexpr (std::is_same_v<T, int64_t>)
    return DType::i64;
  else if constexpr (std::is_same_v<T, uint8_t>)
    return DType::u8;
  else
    static_assert(!sizeof(T), "lamina tensors hold float, double, int64_t or uint8_t");
}

[[noreturn]] void fail_dtype(const char* op, const char* expected, DType actual);

/// Calls f(T{}) with T = float or double; the one place where a floating dtype becomes a template argument.
/// Throws Error "[op] expected a tensor of f32 or f64, got i64" for the others.
template <class F>
decltype(auto) with_float(const char* op, DType dtype, F&& f) {
  if (dtype == DType::f32) return f(float{});
  if (dtype == DType::f64) return f(double{});
  fail_dtype(op, "f32 or f64", dtype);
}

/// Calls f(T{}) with the element type of any dtype.
template <class F>
decltype(auto) with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64: return f(double{});
    case DType::i64: return f(int64_t{});
    case DType::u8: return f(uint8_t{});
    case DType::f32: break;
  }
  return f(float{});
}

}  // namespace lamina
