#include <lamina/optim/schedule.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <string_view>
#include <vector>

#include "core/format.h"

namespace lamina::optim {

namespace {

constexpr const char* forms =
    "constant, step:PERIOD:GAMMA, cosine:PERIOD, cosine:PERIOD:FLOOR, linear:PERIOD, linear:PERIOD:FLOOR, inverse_sqrt; with warmup=STEPS, before";

[[noreturn]] void fail_form(const std::string& text) { fail_input("schedule", "'{}' is not one of {}", text, forms); }

template <class Number>
Number number(std::string_view part, const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
  if (error != std::errc() || end != part.data() + part.size()) fail_form(text);
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t at; (at = text.find(separator)) != std::string_view::npos; text.remove_prefix(at + 1)) parts.push_back(text.substr(0, at));
  parts.push_back(text);
  return parts;
}

/// What is out of range, or an empty text.
std::string problem(const Schedule& s) {
  if (s.warmup < 0) return fmt::format("warmup: expected a value >= 0, got {}", s.warmup);
  if (s.period < 1) return fmt::format("period: expected a value >= 1, got {}", s.period);
  if (!(s.gamma >= 0 && std::isfinite(s.gamma))) return fmt::format("gamma: expected a finite value >= 0, got {}", s.gamma);
  if (!(s.floor >= 0 && s.floor <= 1)) return fmt::format("floor: expected a value in [0, 1], got {}", s.floor);
  return "";
}

}  // namespace

double Schedule::factor(int64_t t) const {
  if (t < 0) fail("schedule", "t: expected a value >= 0, got {}", t);
  if (const std::string wrong = problem(*this); !wrong.empty()) fail("schedule", wrong);
  if (t < warmup) return static_cast<double>(t + 1) / static_cast<double>(warmup);
  const auto time = static_cast<double>(t), end = static_cast<double>(period);
  switch (kind) {
    case Kind::step: return std::pow(gamma, static_cast<double>(t / period));
    case Kind::cosine: return t >= period ? floor : floor + (1 - floor) * (1 + std::cos(std::numbers::pi * time / end)) / 2;
    case Kind::linear_warmup: {
      if (t >= period) return floor;
      const auto start = static_cast<double>(warmup);
      return 1 - (1 - floor) * (time - start) / (end - start);
    }
    case Kind::inverse_sqrt: {
      const int64_t knee = std::max<int64_t>(warmup, 1);
      return std::sqrt(static_cast<double>(knee) / static_cast<double>(std::max(t, knee)));
    }
    case Kind::constant: break;
  }
  return 1;
}

Schedule Schedule::parse(const std::string& text) {
  Schedule schedule;
  std::string_view rest = text;
  if (constexpr std::string_view prefix = "warmup="; rest.starts_with(prefix)) {
    const size_t comma = rest.find(',');
    if (comma == std::string_view::npos) fail_form(text);
    schedule.warmup = number<int64_t>(rest.substr(prefix.size(), comma - prefix.size()), text);
    rest.remove_prefix(comma + 1);
  }
  const std::vector<std::string_view> parts = split(rest, ':');
  const bool falls_to_floor = parts[0] == "cosine" || parts[0] == "linear";
  if (parts.size() == 1 && parts[0] == "constant")
    schedule.kind = Kind::constant;
  else if (parts.size() == 1 && parts[0] == "inverse_sqrt")
    schedule.kind = Kind::inverse_sqrt;
  else if (parts.size() == 3 && parts[0] == "step")
    schedule.kind = Kind::step;
  else if ((parts.size() == 2 || parts.size() == 3) && falls_to_floor)
    schedule.kind = parts[0] == "cosine" ? Kind::cosine : Kind::linear_warmup;
  else
    fail_form(text);
  if (parts.size() >= 2) schedule.period = number<int64_t>(parts[1], text);
  if (parts.size() == 3) (falls_to_floor ? schedule.floor : schedule.gamma) = number<double>(parts[2], text);
  if (const std::string wrong = problem(schedule); !wrong.empty()) fail_input("schedule", "'{}': {}", text, wrong);
  return schedule;
}

std::string Schedule::str() const {
  const std::string prefix = warmup > 0 ? fmt::format("warmup={},", warmup) : "";
  const std::string tail = floor > 0 ? fmt::format(":{}", floor) : "";
  switch (kind) {
    case Kind::step: return fmt::format("{}step:{}:{}", prefix, period, gamma);
    case Kind::cosine: return fmt::format("{}cosine:{}{}", prefix, period, tail);
    case Kind::linear_warmup: return fmt::format("{}linear:{}{}", prefix, period, tail);
    case Kind::inverse_sqrt: return prefix + "inverse_sqrt";
    case Kind::constant: break;
  }
  return prefix + "constant";
}

}  // namespace lamina::optim
