#pragma once
// Reference values of tests/golden/<name>.safetensors, written by scripts/make_golden.py and make_golden_rnn.py.

#include <cstdlib>
#include <map>
#include <string>

#include <lamina/io/safetensors.h>

#include "support/catch.h"
#include "support/device.h"

namespace lamina::test {

class Golden {
 public:
  explicit Golden(const std::string& name) : file_(io::read_safetensors(sources() + "/tests/golden/" + name + ".safetensors")) {}

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }

  /// A tensor by name, on the device of the tests; floats converted to `dtype` (the inputs are exact in f32), integers as they are.
  Tensor operator()(const std::string& name, DType dtype = DType::f64) const {
    INFO("golden value " << name);
    const Tensor* tensor = file_.find(name);
    REQUIRE(tensor != nullptr);
    return on_device(is_float(tensor->dtype()) ? tensor->cast(dtype) : *tensor);
  }

  double number(const std::string& name) const { return (*this)(name).item(); }

  /// All tensors whose name begins with `prefix`, by the rest of their name.
  std::map<std::string, Tensor> below(const std::string& prefix, DType dtype = DType::f64) const {
    std::map<std::string, Tensor> result;
    for (const auto& entry : file_.tensors)
      if (entry.first.starts_with(prefix)) result[entry.first.substr(prefix.size())] = (*this)(entry.first, dtype);
    REQUIRE(!result.empty());
    return result;
  }

 private:
  /// The environment wins, for programs that run on another machine than the one that built them.
  static std::string sources() {
    const char* here = std::getenv("LAMINA_SOURCE_DIR");
    return here ? here : LAMINA_SOURCE_DIR;
  }

  io::Safetensors file_;
};

}  // namespace lamina::test
