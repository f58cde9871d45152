#include <lamina/ops/elementwise.h>

#include "support/evaluate.h"
#include "support/golden.h"

using namespace lamina;
using namespace lamina::test;

TEST_CASE("gelu: PyTorch's values", "[ops][elementwise][golden]") {
  const Golden golden("gelu");
  for (const auto& [dtype, tolerance] : {std::pair{DType::f64, f64_rounding}, std::pair{DType::f32, f32_rounding}}) {
    for (const Gelu form : {Gelu::exact, Gelu::tanh}) {
      const std::string name = form == Gelu::exact ? "exact" : "tanh";
      INFO(name << " " << to_string(dtype));
      const auto run = evaluate([&](const auto& v) { return gelu(v[0], form); }, {golden("x", dtype)}, golden("dy", dtype));
      check_close(run.y, golden(name + ".y"), tolerance);
      check_close(run.gradients[0], golden(name + ".dx"), tolerance);
    }
  }
}
