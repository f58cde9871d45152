#include <lamina/core/device.h>
#include <lamina/core/dtype.h>

#include "core/format.h"
#include "kernels/kernels.h"

namespace lamina {

Device Device::cuda(int) { kernels::fail_no_cuda(); }

Device Device::parse(std::string_view text) {
  if (text == "cpu" || text == "auto") return cpu();
  if (text == "cuda" || text.starts_with("cuda:")) fail_input("device", "{}: {}", text, kernels::no_cuda);
  fail_input("device", "expected auto, cpu, cuda or cuda:<index>, got '{}'", text);
}

std::string Device::str() const { return is_cpu() ? "cpu" : fmt::format("cuda:{}", index); }

bool built_with_cuda() { return false; }

std::string to_string(DType dtype) {
  switch (dtype) {
    case DType::f32: return "f32";
    case DType::f64: return "f64";
    case DType::i64: return "i64";
    case DType::u8: return "u8";
  }
  return "?";
}

void fail_dtype(const char* op, const char* expected, DType actual) { fail(op, "expected a tensor of {}, got {}", expected, actual); }

}  // namespace lamina
