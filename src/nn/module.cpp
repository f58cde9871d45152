#include <lamina/nn/module.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "core/format.h"
#include "nn/walk.h"

namespace lamina::nn {

namespace {

class Collector final : public Visitor {
 public:
  explicit Collector(Module& root) {
    members_.push_back({.path = "", .module = &root});
    names_of(root);
  }

  void operator()(const std::string& name, Parameter& parameter) override {
    check(name);
    if (parameter.defined()) members_.push_back({.path = prefix_ + name, .owner = owner_, .parameter = &parameter});
  }
  void operator()(const std::string& name, Buffer& buffer) override {
    check(name);
    if (buffer.defined()) members_.push_back({.path = prefix_ + name, .owner = owner_, .buffer = &buffer});
  }
  void operator()(const std::string& name, Module& module) override {
    check(name);
    members_.push_back({.path = prefix_ + name, .owner = owner_, .module = &module});
    const std::string prefix = std::exchange(prefix_, prefix_ + name + ".");
    const size_t owner = std::exchange(owner_, members_.size() - 1);
    names_of(module);
    prefix_ = prefix;
    owner_ = owner;
  }

  std::vector<Member> members_;

 private:
  void names_of(Module& module) { module.members(*this); }
  void check(const std::string& name) {
    if (name.empty()) fail("module", "a member of {} has an empty name", members_[owner_].module->describe());
    if (!seen_.insert(prefix_ + name).second) fail("module", "two members are called '{}{}'", prefix_, name);
  }

  std::string prefix_;
  size_t owner_ = 0;
  std::unordered_set<std::string> seen_;
};

// Once a step, so it goes without names and lists.
class GradientEraser final : public Visitor {
 public:
  void operator()(const std::string&, Parameter& parameter) override {
    if (parameter.defined()) parameter.tensor().zero_grad();
  }
  void operator()(const std::string&, Buffer&) override {}
  void operator()(const std::string&, Module& module) override { module.members(*this); }
};

std::string with_separators(int64_t count) {
  std::string digits = std::to_string(count);
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

}  // namespace

std::vector<Member> walk(Module& root) { return std::move(Collector(root).members_); }

Module& Module::init(uint64_t seed) {
  const Rng rng(seed);
  for (const auto& [path, parameter] : named_parameters()) parameter->draw(rng.stream(path));
  for (const auto& [path, buffer] : named_buffers()) {
    if (buffer->is_stream())
      buffer->set_rng(rng.stream(path));
    else
      buffer->reset();
  }
  for (const auto& [path, module] : modules()) {
    module->path_ = path;
    module->drawn();
  }
  return *this;
}

void Module::train(bool on) {
  for (const auto& [path, module] : modules()) {
    module->path_ = path;
    module->training_ = on;
  }
}

std::vector<NamedParameter> Module::named_parameters(bool unique) {
  std::vector<NamedParameter> result;
  std::unordered_set<const lamina::detail::TensorImpl*> seen;
  for (Member& member : walk(*this))
    if (member.parameter && (seen.insert(member.parameter->tensor().impl().get()).second || !unique))
      result.push_back({std::move(member.path), member.parameter});
  return result;
}

std::vector<Parameter*> Module::parameters() {
  std::vector<Parameter*> result;
  for (const auto& [path, parameter] : named_parameters()) result.push_back(parameter);
  return result;
}

std::vector<NamedBuffer> Module::named_buffers() {
  std::vector<NamedBuffer> result;
  for (Member& member : walk(*this))
    if (member.buffer) result.push_back({std::move(member.path), member.buffer});
  return result;
}

std::vector<NamedModule> Module::modules() {
  std::vector<NamedModule> result;
  for (Member& member : walk(*this))
    if (member.module) result.push_back({std::move(member.path), member.module});
  return result;
}

int64_t Module::parameter_count() {
  int64_t count = 0;
  for (const Parameter* parameter : parameters()) count += parameter->shape().numel();
  return count;
}

void Module::zero_grad() {
  GradientEraser eraser;
  members(eraser);
}

void Module::to(Device device) {
  for (const Member& member : walk(*this)) {
    if (member.parameter) member.parameter->to(device);
    if (member.buffer) member.buffer->to(device);
  }
}

void Module::cast(DType dtype) {
  if (!is_float(dtype)) fail("module", "cast: expected f32 or f64, got {}", dtype);  // before anything has changed
  for (const Member& member : walk(*this)) {
    if (member.parameter) member.parameter->cast(dtype);
    if (member.buffer) member.buffer->cast(dtype);
  }
}

std::string Module::summary() {
  struct Row {
    std::string path, layer;
    int64_t parameters = 0;
    bool has_parameters = false, has_modules = false;
  };
  const std::vector<Member> members = walk(*this);
  std::vector<Row> rows(members.size());
  int64_t total = 0, frozen = 0;
  std::unordered_set<const lamina::detail::TensorImpl*> seen;
  for (size_t i = 0; i < members.size(); ++i) {
    const Member& member = members[i];
    if (member.module) {
      rows[i].path = i == 0 ? "(root)" : member.path;
      rows[i].layer = member.module->describe();
      if (i > 0) rows[member.owner].has_modules = true;
    } else if (member.parameter) {
      rows[member.owner].has_parameters = true;
      if (!seen.insert(member.parameter->tensor().impl().get()).second) continue;
      const int64_t count = member.parameter->shape().numel();
      rows[member.owner].parameters += count;
      total += count;
      if (member.parameter->frozen()) frozen += count;
    }
  }
  std::erase_if(rows, [](const Row& row) { return row.layer.empty() || (row.has_modules && !row.has_parameters); });
  size_t path_width = 5, layer_width = 5, count_width = std::max<size_t>(10, with_separators(total).size());
  for (const Row& row : rows) {
    path_width = std::max(path_width, row.path.size());
    layer_width = std::max(layer_width, row.layer.size());
  }
  const auto line = [&](const std::string& path, const std::string& layer, const std::string& count) {
    return fmt::format("{:<{}}  {:<{}}  {:>{}}\n", path, path_width, layer, layer_width, count, count_width);
  };
  std::string text = line("path", "layer", "parameters");
  for (const Row& row : rows) text += line(row.path, row.layer, with_separators(row.parameters));
  text += line("total", "", with_separators(total));
  if (frozen > 0) text += line("", "of these frozen", with_separators(frozen));
  return text;
}

namespace detail {

void retie(Module& original, Module& copy) {
  const std::vector<NamedParameter> from = original.named_parameters(false);
  const std::vector<NamedParameter> to = copy.named_parameters(false);
  if (from.size() != to.size()) fail("module", "clone: the copy lists {} parameters, the original {}", to.size(), from.size());
  std::unordered_map<const lamina::detail::TensorImpl*, Parameter*> first;
  for (size_t i = 0; i < from.size(); ++i) {
    const auto [known, fresh] = first.try_emplace(from[i].parameter->tensor().impl().get(), to[i].parameter);
    if (!fresh) to[i].parameter->tie(*known->second);
  }
}

}  // namespace detail

}  // namespace lamina::nn
