#include <lamina/core/device.h>
#include <lamina/core/dtype.h>
#include <lamina/core/error.h>

#include <charconv>

#include "core/format.h"
#include "kernels/kernels.h"

namespace lamina {

using kernels::CudaBackend;

Device Device::cuda(int index) {
  const int count = CudaBackend::count();
  if (count == 0) fail("device", "cuda:{}: {}", index, CudaBackend::why_none());
  if (index < 0 || index >= count) fail("device", "cuda:{}: expected an index below {}, the number of GPUs", index, count);
  return {Kind::cuda, index};
}

Device Device::parse(std::string_view text) {
  if (text == "cpu") return cpu();
  if (text == "auto") return CudaBackend::count() > 0 ? Device{Kind::cuda, 0} : cpu();
  int index = 0;
  const std::string_view number = text.starts_with("cuda:") ? text.substr(5) : "0";
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
  if ((text != "cuda" && !text.starts_with("cuda:")) || number.empty() || number[0] == '-' || error != std::errc() ||
      end != number.data() + number.size())
    fail_input("device", "expected auto, cpu, cuda or cuda:<index>, got '{}'", text);
  try {
    return cuda(index);
  } catch (const Error& failure) {
    throw InputError(failure.what());
  }
}

std::string Device::str() const { return is_cpu() ? "cpu" : fmt::format("cuda:{}", index); }

bool built_with_cuda() { return CudaBackend::built(); }
int cuda_device_count() { return CudaBackend::count(); }
std::string device_name(Device device) { return device.is_cpu() ? "cpu" : CudaBackend::name(device.index); }

void synchronize(Device device) {
  if (kernels::on_cuda(device)) CudaBackend::synchronize();
}

void allow_tf32(bool allow) { CudaBackend::allow_tf32(allow); }

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
