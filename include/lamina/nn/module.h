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

/// A trainable tensor. Its value is drawn by Module::init(seed) from the initialiser, depending on the seed and the path alone, unless the
/// initialiser is a constant, which holds at once. Using a parameter that was neither initialised nor loaded throws Error
/// "[parameter] used before init(seed) or load_state_dict: shape [1000, 784]". Optimisers hold pointers to parameters: keep the module where it is
/// while one is in use.
class Parameter {
 public:
  Parameter() = default;  // absent (e.g. a Linear without bias): defined() is false, converts to an undefined tensor
  Parameter(const Shape& shape, Init init, DType dtype = DType::f32);  // f32 or f64, on the host, trainable
  Parameter(const Parameter& other);                                   // copies the values and whether it is frozen; not the gradient, not the ties
  Parameter& operator=(const Parameter& other);
  Parameter(Parameter&&) noexcept = default;
  Parameter& operator=(Parameter&&) noexcept = default;

  bool defined() const { return tensor_.defined(); }
  bool ready() const { return ready_ && *ready_; }
  const Shape& shape() const { return tensor_.shape(); }

  /// The leaf tensor, for use in ops (undefined when absent). Throws Error when not ready.
  const Tensor& value() const;
  operator const Tensor&() const { return value(); }  // NOLINT: a parameter is used where a tensor is
  Tensor grad() const { return tensor_.grad(); }

  /// Makes this parameter the same as `other`: one tensor, seen once by optimisers and under both names by the state dict.
  /// The value, the readiness and (in Module::init) the initialiser of the first of the two in the module hold for both.
  /// Throws Error when one is absent or the shapes differ.
  void tie(Parameter& other);
  /// Frozen parameters take part in the forward pass only.
  void freeze(bool on = true) { tensor_.set_requires_grad(!on); }
  bool frozen() const { return !tensor_.requires_grad(); }

  const Init& init() const { return init_; }
  /// Draws the value; normally called through Module::init.
  void draw(Rng rng);
  /// Writes a value (same shape; dtype converted between f32 and f64, devices crossed) and makes the parameter ready.
  /// Throws Error when the shape differs or the value is of integers.
  void set(const Tensor& value);
  /// Swap the data inside the same tensor, so that optimisers and ties stay valid; the gradient is cleared when anything changes.
  void to(Device device);
  void cast(DType dtype);  // f32 or f64

  /// The tensor whether ready or not; for optimisers and checkpoints.
  Tensor& tensor() { return tensor_; }
  const Tensor& tensor() const { return tensor_; }

 private:
  void swap_data(const Tensor& data);

  Tensor tensor_;
  Init init_;
  std::shared_ptr<bool> ready_;  // shared by tied parameters, as the tensor is
};

/// State that is saved but not trained: running statistics, or the position in a random stream.
class Buffer {
 public:
  Buffer() = default;  // absent
  explicit Buffer(Tensor initial) : tensor_(std::move(initial)), initial_(tensor_.clone()) {}
  /// A position in a random stream, i64 [2] on the host: the key and counter of an Rng. Module::init(seed) puts it at the start of the stream named
  /// by the seed and the buffer's path. Files without it (PyTorch has no such state) load all the same: then it stays, or starts from seed 0 if it
  /// was not set.
  static Buffer stream();
  bool is_stream() const { return is_stream_; }
  bool ready() const;  // false for a stream that no init, load or set_rng has set
  Rng rng() const;     // of a stream; throws Error when not ready
  void set_rng(const Rng& rng);
  Buffer(const Buffer& other);
  Buffer& operator=(const Buffer& other);
  Buffer(Buffer&&) noexcept = default;
  Buffer& operator=(Buffer&&) noexcept = default;

  bool defined() const { return tensor_.defined(); }
  operator const Tensor&() const { return tensor_; }  // NOLINT
  Tensor& tensor() { return tensor_; }
  const Tensor& tensor() const { return tensor_; }
  void reset() {
    if (defined()) tensor_.copy_(initial_);
  }
  void to(Device device);  // streams stay on the host
  void cast(DType dtype);  // integers stay

 private:
  Tensor tensor_, initial_;
  bool is_stream_ = false;
};

class Module;

/// Receives the members of a module, in order. Names are joined with dots into paths ("0.weight"); two members of one name are an error.
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
  std::string path;  // "" for the root
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
  /// Called by init() when all parameters are drawn: for a value that depends on another's (the g of a weight norm).
  virtual void drawn() {}

  /// Draws every parameter from (seed, path), resets buffers and starts the streams. Returns the module, for chaining.
  Module& init(uint64_t seed);

  /// Training mode (the default) or evaluation mode, for this module and all below.
  void train(bool on = true);
  void eval() { train(false); }
  bool training() const { return training_; }
  void set_training(bool on) { training_ = on; }  // of this module alone

  /// Where it stands below the module whose init(), train() or eval() was called last, e.g. "0.norm"; "" before that, and for that one itself.
  const std::string& path() const { return path_; }
  void set_path(const std::string& path) { path_ = path; }  // for modules that hold others without listing them
  /// For messages: "0.norm (LayerNorm(1000))", or the description alone where there is no path.
  std::string title() const { return path_.empty() ? describe() : path_ + " (" + describe() + ")"; }

  /// All parameters with their paths; `unique` lists tied ones once (under their first path).
  std::vector<NamedParameter> named_parameters(bool unique = true);
  std::vector<Parameter*> parameters();
  std::vector<NamedBuffer> named_buffers();
  std::vector<NamedModule> modules();
  int64_t parameter_count();  // elements, tied ones once

  /// Parameters (tied ones under each name) and buffers; tensors are detached handles on the live values.
  /// Throws Error while a parameter is not ready.
  StateDict state_dict();
  /// Checks everything (missing, unknown and duplicate names, shapes, dtypes), then copies: on error nothing has changed. Throws InputError with one
  /// line that lists what differs. f32 and f64 are converted. Accepted as well: "gamma" and "beta" for a norm's weight and bias,
  /// "parametrizations.weight.original0" and "...1" for a weight norm's "weight_g" and "weight_v", one name of several that are tied, and files
  /// without the streams of Dropout.
  void load_state_dict(const StateDict& state);

  void zero_grad();
  void to(Device device);
  void cast(DType dtype);
  /// A table: path, description, parameters (tied ones once), a line for each module that has parameters of its own or no modules below; and the
  /// total.
  std::string summary();

 private:
  bool training_ = true;
  std::string path_;
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
