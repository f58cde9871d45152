#pragma once
// Modules: structs that hold Parameters, Buffers and other modules as members and list them to a visitor. There is no registration state:
//
//   struct Block : nn::Module {
//     nn::Linear linear{784, 1000};
//     nn::LayerNorm norm{1000};
//     void members(nn::Visitor& v) override { v("linear", linear); v("norm", norm); }
//     Tensor operator()(const Tensor& x) { return relu(norm(linear(x))); }
//   };
//
// Everything else (initialisation, state dict, train/eval, summary) is a walk over members. Modules are values: copying one copies its parameters
// (clone() also keeps ties between them); moving one moves them.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <lamina/core/random.h>
#include <lamina/core/tensor.h>
#include <lamina/nn/init.h>

namespace lamina::nn {

/// A trainable tensor. Its value is drawn by Module::init(seed) from the initialiser, depending on the seed and the path alone, unless the initialiser
/// is a constant, which holds at once. Using a parameter that was neither initialised nor loaded throws Error.
class Parameter {
 public:
  Parameter() = default;   // absent (e.g. a Linear without bias): defined() is false, converts to an undefined tensor
  Parameter(const Shape& shape, Init init, DType dtype = DType::f32);
  Parameter(const Parameter& other);              // copies the values
  Parameter& operator=(const Parameter& other);
  Parameter(Parameter&&) noexcept = default;
  Parameter& operator=(Parameter&&) noexcept = default;

  bool defined() const { return tensor_.defined(); }
  bool ready() const { return ready_; }
  const Shape& shape() const { return tensor_.shape(); }

  /// The leaf tensor, for use in ops. Throws Error when not ready.
  const Tensor& value() const;
  operator const Tensor&() const { return value(); }   // NOLINT: a parameter is used where a tensor is
  Tensor grad() const { return tensor_.grad(); }

  /// Makes this parameter the same as `other`: one tensor, seen once by optimisers and under both names by the state dict.
  /// Throws Error when the shapes differ.
  void tie(Parameter& other);
  /// Frozen parameters take part in the forward pass only.
  void freeze(bool on = true) { tensor_.set_requires_grad(!on); }
  bool frozen() const { return !tensor_.requires_grad(); }

  const Init& init() const { return init_; }
  void set_init(Init init) { init_ = std::move(init); }
  /// Draws the value; normally called through Module::init.
  void draw(Rng rng);
  /// Writes a value (same shape; dtype converted between f32 and f64) and makes the parameter ready.
  void set(const Tensor& value);
  /// Swaps the data in place, so that optimisers stay valid.
  void to(Device device);
  void cast(DType dtype);

  /// The tensor whether ready or not; for optimisers and checkpoints.
  Tensor& tensor() { return tensor_; }
  const Tensor& tensor() const { return tensor_; }

 private:
  Tensor tensor_;
  Init init_;
  bool ready_ = false;
};

/// State that is saved but not trained (running statistics).
class Buffer {
 public:
  Buffer() = default;      // absent
  explicit Buffer(Tensor initial) : tensor_(std::move(initial)), initial_(tensor_.clone()) {}
  Buffer(const Buffer& other);
  Buffer& operator=(const Buffer& other);
  Buffer(Buffer&&) noexcept = default;
  Buffer& operator=(Buffer&&) noexcept = default;

  bool defined() const { return tensor_.defined(); }
  operator const Tensor&() const { return tensor_; }   // NOLINT
  Tensor& tensor() { return tensor_; }
  const Tensor& tensor() const { return tensor_; }
  void reset() { if (defined()) tensor_.copy_(initial_); }
  void to(Device device);
  void cast(DType dtype);   // integers stay

 private:
  Tensor tensor_, initial_;
};

class Module;

/// Receives the members of a module, in order. Names are joined with dots into paths ("0.weight").
class Visitor {
 public:
  virtual ~Visitor() = default;
  virtual void operator()(const std::string& name, Parameter& parameter) = 0;
  virtual void operator()(const std::string& name, Buffer& buffer) = 0;
  virtual void operator()(const std::string& name, Module& module) = 0;
};

struct NamedParameter {
  std::string path;
  Parameter* parameter;
};
struct NamedBuffer {
  std::string path;
  Buffer* buffer;
};
struct NamedModule {
  std::string path;   // "" for the root
  Module* module;
};

/// Path -> values, in the order of the members.
using StateDict = std::vector<std::pair<std::string, Tensor>>;

class Module {
 public:
  virtual ~Module() = default;
  Module() = default;
  Module(const Module&) = default;
  Module& operator=(const Module&) = default;
  Module(Module&&) noexcept = default;
  Module& operator=(Module&&) noexcept = default;

  /// Lists the members: v("weight", weight); v("norm", norm). Absent parameters and buffers may be listed; walks skip them.
  virtual void members(Visitor& v) = 0;
  /// One line for summaries and errors, e.g. "Linear(784 -> 1000)".
  virtual std::string describe() const { return "Module"; }

  /// Draws every parameter from (seed, path) and resets buffers. Returns the module, for chaining.
  Module& init(uint64_t seed);

  /// Training mode (the default) or evaluation mode, for this module and all below.
  void train(bool on = true);
  void eval() { train(false); }
  bool training() const { return training_; }

  /// All parameters with their paths; `unique` lists tied ones once (under their first path).
  std::vector<NamedParameter> named_parameters(bool unique = true);
  std::vector<Parameter*> parameters();
  std::vector<NamedBuffer> named_buffers();
  std::vector<NamedModule> modules();
  int64_t parameter_count();   // elements, tied ones once

  /// Parameters (tied ones under each name) and buffers; tensors are detached handles on the live values.
  StateDict state_dict();
  /// Checks everything (missing, unknown and duplicate names, shapes), then copies: on error nothing has changed. Throws InputError listing what differs.
  void load_state_dict(const StateDict& state);

  void zero_grad();
  void to(Device device);
  void cast(DType dtype);
  /// A table: path, description, parameters; and the total.
  std::string summary();

 private:
  bool training_ = true;
};

/// A deep copy of a module that keeps ties between its parameters.
template <class M>
M clone(M& module);

namespace detail {
void retie(Module& original, Module& copy);
}

template <class M>
M clone(M& module) {
  M copy(module);
  detail::retie(module, copy);
  return copy;
}

}  // namespace lamina::nn
