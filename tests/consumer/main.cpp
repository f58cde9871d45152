// An op of one's own, outside the tree: y = x^3, recorded with its gradient and checked against central differences.
#include <cmath>
#include <cstdio>

#include <lamina/lamina.h>

using namespace lamina;

// `factor` is 3 in the true gradient, factor x^2 dy.
Tensor cube(const Tensor& x, double factor = 3.0) {
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  for (int64_t i = 0; i < x.numel(); ++i) y.mutable_data<double>()[i] = std::pow(x.data<double>()[i], 3);
  return autograd::record("cube", {x}, y, autograd::save({x}),
                          [factor](autograd::Backward& b) { b.give(0, b.dy() * b.saved(0) * b.saved(0) * factor); });
}

int main() {
  const Tensor x = Tensor::from({0.5, -1.25, 2.0, 0.1, -0.7, 1.5}, {2, 3});
  const GradcheckResult right = gradcheck([](const std::vector<Tensor>& in) { return cube(in[0]); }, {x});
  const GradcheckResult wrong = gradcheck([](const std::vector<Tensor>& in) { return cube(in[0], 2.9); }, {x});
  std::printf("cube: %s\na wrong gradient is %s\n", right ? "gradients agree" : right.message.c_str(), wrong ? "accepted" : "found");
  return right && !wrong ? 0 : 1;
}
