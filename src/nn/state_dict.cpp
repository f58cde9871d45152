// State dicts: PyTorch's names, everything checked before anything is written.

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include <lamina/autograd/graph.h>
#include <lamina/nn/module.h>

#include "core/format.h"
#include "core/tensor_impl.h"
#include "nn/walk.h"

namespace lamina::nn {

namespace {

/// Complaints of one kind; the first few are named.
class Complaints {
 public:
  explicit Complaints(const char* kind) : kind_(kind) {}
  void add(const std::string& what) {
    if (++count_ <= shown) text_ += (count_ == 1 ? "" : ", ") + what;
  }
  void append_to(std::string& message) const {
    if (count_ == 0) return;
    if (!message.empty()) message += "; ";
    message += fmt::format("{}: {}", kind_, text_);
    if (count_ > shown) message += fmt::format(" and {} more", count_ - shown);
  }

 private:
  static constexpr int shown = 4;
  const char* kind_;
  int count_ = 0;
  std::string text_;
};

const Tensor& tensor_of(const Member& member) { return member.parameter ? member.parameter->tensor() : member.buffer->tensor(); }

/// The name that other files use: older ones for a norm's weight and bias ("norm.weight" -> "norm.gamma"), those of PyTorch 2 for a weight norm's g
/// and v ("0.weight_g" -> "0.parametrizations.weight.original0"); empty if there is none.
std::string other_spelling(const std::string& path) {
  const size_t dot = path.rfind('.');
  const size_t start = dot == std::string::npos ? 0 : dot + 1;
  const std::string owner = path.substr(0, start), name = path.substr(start);
  if (name == "weight") return owner + "gamma";
  if (name == "bias") return owner + "beta";
  if (name.ends_with("_g")) return owner + "parametrizations." + name.substr(0, name.size() - 2) + ".original0";
  if (name.ends_with("_v")) return owner + "parametrizations." + name.substr(0, name.size() - 2) + ".original1";
  return "";
}

bool convertible(DType from, DType to) { return from == to || (is_float(from) && is_float(to)); }

bool same_values(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype()) return false;
  const Tensor x = a.to(Device::cpu()), y = b.to(Device::cpu());
  return x.nbytes() == 0 || std::memcmp(x.raw_data(), y.raw_data(), static_cast<size_t>(x.nbytes())) == 0;
}

class Loader {
 public:
  Loader(Module& root, const StateDict& state) : members_(walk(root)) {
    std::erase_if(members_, [](const Member& member) { return member.module != nullptr; });
    for (const Member& member : members_) {
      paths_.insert(member.path);
      own_.insert(tensor_of(member).impl()->storage.get());
    }
    for (const auto& [name, value] : state) {
      if (!value.defined()) fail_input("load_state_dict", "{}: an undefined tensor", name);
      if (!given_.emplace(name, Given{&value}).second) duplicates_.add(name);
    }
  }

  void run() {
    const NoGrad no_grad;
    for (const Member& member : members_) match(member);
    for (const auto& [member, key] : missing_)
      if (!by_tensor_.contains(key)) missing_names_.add(member->path);  // a tied parameter may come under one of its names
    Complaints unexpected("unexpected");
    for (const auto& [name, given] : given_)
      if (!given.used) unexpected.add(name);
    std::string message;
    for (const Complaints* complaints : {&missing_names_, &unexpected, &duplicates_, &mismatched_}) complaints->append_to(message);
    if (!message.empty()) fail_input("load_state_dict", message);
    for (const auto& [member, value] : values_) {
      if (member->parameter)
        member->parameter->set(value);
      else
        member->buffer->tensor().copy_(value);
    }
    for (const Member* member : unset_streams_) member->buffer->set_rng(Rng(0).stream(member->path));
  }

 private:
  struct Given {
    const Tensor* value;
    bool used = false;
  };

  void match(const Member& member) {
    auto found = given_.find(member.path);
    if (found == given_.end() && !paths_.contains(other_spelling(member.path))) found = given_.find(other_spelling(member.path));
    const Tensor& mine = tensor_of(member);
    if (found == given_.end()) {
      if (member.buffer && member.buffer->is_stream()) {
        if (!member.buffer->ready()) unset_streams_.push_back(&member);
      } else {
        missing_.emplace_back(&member, mine.impl().get());
      }
      return;
    }
    found->second.used = true;
    const Tensor& value = *found->second.value;
    if (value.shape() != mine.shape()) return mismatched_.add(fmt::format("{}: expected {}, got {}", member.path, mine.shape(), value.shape()));
    if (!convertible(value.dtype(), mine.dtype()))
      return mismatched_.add(fmt::format("{}: expected {}, got {}", member.path, mine.dtype(), value.dtype()));
    const auto [known, fresh] = by_tensor_.try_emplace(mine.impl().get(), found);
    if (!fresh && !same_values(*known->second->second.value, value))
      return mismatched_.add(fmt::format("{}: differs from {}, to which it is tied", found->first, known->second->first));
    // Handles on this module's own values, under other names, would change while they are being copied.
    const bool changes = own_.contains(value.impl()->storage.get()) && value.raw_data() != mine.raw_data();
    values_.emplace_back(&member, (changes ? value.clone() : value.detach()).cast(mine.dtype()));
  }

  using GivenMap = std::map<std::string, Given>;
  std::vector<Member> members_;
  std::set<std::string> paths_;
  std::set<const void*> own_;  // buffers of the module
  GivenMap given_;
  std::map<const lamina::detail::TensorImpl*, GivenMap::iterator> by_tensor_;
  std::vector<std::pair<const Member*, const lamina::detail::TensorImpl*>> missing_;
  std::vector<const Member*> unset_streams_;
  std::vector<std::pair<const Member*, Tensor>> values_;
  Complaints missing_names_{"missing"}, duplicates_{"given twice"}, mismatched_{"mismatched"};
};

}  // namespace

StateDict Module::state_dict() {
  StateDict state;
  for (const Member& member : walk(*this))
    if (!member.module) state.emplace_back(member.path, (member.parameter ? member.parameter->value() : member.buffer->tensor()).detach());
  return state;
}

void Module::load_state_dict(const StateDict& state) {
  Loader(*this, state).run();
  // For messages; what is part of a larger module keeps its place in that.
  for (const auto& [path, module] : modules())
    if (module->path_.empty()) module->path_ = path;
}

}  // namespace lamina::nn
