// Normalisers by name: one parser, one list, one factory.

#include <lamina/nn/norm.h>

#include <charconv>

#include "core/format.h"

namespace lamina::nn {

namespace {

using Kind = NormSpec::Kind;
using Variant = NormSpec::Variant;

constexpr std::pair<Variant, const char*> variants[] = {
    {Variant::cell, "layer-cell"}, {Variant::carry, "layer-carry"}, {Variant::gates, "layer-gates"}};

/// The whole text as a number.
template <class T>
std::optional<T> number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<NormSpec> parse_activations(std::string_view text) {
  NormSpec spec;
  const auto named = [&](std::string_view name, Kind kind) { return text == name && (spec.kind = kind, true); };
  if (named("none", Kind::none) || named("layer", Kind::layer) || named("batch", Kind::batch) || named("instance", Kind::instance) ||
      named("rms", Kind::rms))
    return spec;
  if (named("meanbatch", Kind::batch)) {
    spec.mean_only = true;
    return spec;
  }
  for (const auto& [variant, name] : variants) {
    if (!named(name, Kind::layer)) continue;
    spec.variant = variant;
    return spec;
  }
  if (constexpr std::string_view prefix = "group:"; text.starts_with(prefix)) {
    const auto groups = number<int64_t>(text.substr(prefix.size()));
    if (!groups || *groups < 1) return std::nullopt;
    spec.kind = Kind::group;
    spec.groups = *groups;
    return spec;
  }
  if (constexpr std::string_view prefix = "prms:"; text.starts_with(prefix)) {
    const auto partial = number<double>(text.substr(prefix.size()));
    if (!partial || !(*partial > 0 && *partial <= 1)) return std::nullopt;
    spec.kind = Kind::rms;
    spec.partial = *partial;
    return spec;
  }
  return std::nullopt;
}

/// Why `spec` makes no sense at a place; empty if it does.
std::string objection(const NormSpec& spec, const NormPlace& place) {
  switch (spec.kind) {
    case Kind::instance:
      if (place.space == 0) return fmt::format("needs an axis after the channels, as in [N, C, L], got [N, {}]", place.features);
      break;
    case Kind::rms:
      if (place.space > 0) return "needs the features in the last axis, got [N, C, ...]";
      break;
    case Kind::group:
      if (place.features % spec.groups != 0) return fmt::format("does not divide {} features into equal groups", place.features);
      if (place.space == 0 && place.features == spec.groups) return fmt::format("makes groups of one value out of {} features", place.features);
      break;
    case Kind::layer:
      if (spec.variant != Variant::standard) return "is of recurrent layers";
      break;
    case Kind::none:
    case Kind::batch: break;
  }
  return "";
}

}  // namespace

NormSpec NormSpec::parse(const std::string& text, const std::vector<std::string>& names) {
  if (text == "weight" || text == "weight+meanbatch") {
    NormSpec spec;
    spec.weight = true;
    if (text != "weight") spec.kind = Kind::batch, spec.mean_only = true;
    return spec;
  }
  if (const auto spec = parse_activations(text)) return *spec;
  if (text.starts_with("group:")) fail_input("norm", "'{}': expected group:N with a whole number N of groups, 1 or more", text);
  if (text.starts_with("prms:")) fail_input("norm", "'{}': expected prms:P with the measured part P of a row, above 0 and at most 1", text);
  fail_input("norm", "unknown '{}'; expected one of {}", text, fmt::join(names, ", "));
}

std::vector<std::string> NormSpec::names() {
  std::vector<std::string> result = {"none",    "layer", "batch",       "meanbatch", "instance",
                                     "group:8", "rms",   "prms:0.0625", "weight",    "weight+meanbatch"};
  for (const auto& [variant, name] : variants) result.emplace_back(name);
  return result;
}

std::string NormSpec::str() const {
  std::string text = "none";
  switch (kind) {
    case Kind::none: break;
    case Kind::layer:
      text = "layer";
      for (const auto& [known, name] : variants)
        if (variant == known) text = name;
      break;
    case Kind::batch: text = mean_only ? "meanbatch" : "batch"; break;
    case Kind::instance: text = "instance"; break;
    case Kind::group: text = fmt::format("group:{}", groups); break;
    case Kind::rms: text = partial < 1 ? fmt::format("prms:{}", partial) : "rms"; break;
  }
  return !weight ? text : kind == Kind::none ? "weight" : "weight+" + text;
}

std::vector<std::string> norm_names(const NormPlace& place) {
  std::vector<std::string> result;
  for (const std::string& name : NormSpec::names()) {
    NormSpec spec(name);
    if (spec.kind == Kind::group)
      while (spec.groups > 1 && !objection(spec, place).empty()) --spec.groups;
    if (objection(spec, place).empty()) result.push_back(spec.str());
  }
  return result;
}

NormLayer make_norm(const NormSpec& spec, const NormPlace& place, const NormOptions& options) {
  if (const std::string why = objection(spec, place); !why.empty())
    fail_input(place.builder, "norm: '{}' {}; expected one of {}", spec.str(), why, fmt::join(norm_names(place), ", "));
  const double eps = options.eps.value_or(1e-5);
  switch (spec.kind) {
    case Kind::none: break;
    case Kind::layer:
      if (place.space > 0) return GroupNorm(1, place.features, {.eps = eps});
      return LayerNorm(place.features, {.eps = eps});
    case Kind::batch: {
      BatchNormLayerOptions batch_norm = options.batch_norm;
      if (options.eps) batch_norm.eps = *options.eps;
      batch_norm.mean_only = spec.mean_only;
      if (place.space == 2) return BatchNorm2d(place.features, batch_norm);
      return BatchNorm1d(place.features, batch_norm);
    }
    case Kind::instance:
      if (place.space == 2) return InstanceNorm2d(place.features, {.eps = eps, .affine = true});
      return InstanceNorm1d(place.features, {.eps = eps, .affine = true});
    case Kind::group: return GroupNorm(spec.groups, place.features, {.eps = eps});
    case Kind::rms: return RMSNorm(place.features, {.eps = options.eps, .partial = spec.partial});
  }
  return {};
}

Tensor Norm::operator()(const Tensor& x) {
  return std::visit(
      [&](auto& l) -> Tensor {
        if constexpr (std::is_base_of_v<Module, std::decay_t<decltype(l)>>) {
          l.set_training(training());
          if (l.path() != path()) l.set_path(path());
          return l(x);
        } else {
          return x;
        }
      },
      layer);
}

void Norm::members(Visitor& v) {
  std::visit(
      [&](auto& l) {
        if constexpr (std::is_base_of_v<Module, std::decay_t<decltype(l)>>) l.members(v);
      },
      layer);
}

std::string Norm::describe() const {
  return std::visit(
      [](const auto& l) -> std::string {
        if constexpr (std::is_base_of_v<Module, std::decay_t<decltype(l)>>)
          return l.describe();
        else
          return "no norm";
      },
      layer);
}

}  // namespace lamina::nn
