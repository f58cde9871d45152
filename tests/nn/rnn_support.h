#pragma once
// What the tests of recurrent layers share.

#include <lamina/nn/rnn.h>

#include <cctype>
#include <string>

#include "nn/support.h"

namespace lamina::test {

inline constexpr RecurrentCell recurrent_cells[] = {RecurrentCell::lstm, RecurrentCell::gru, RecurrentCell::rnn};

/// The values of one layer and direction, "_l1_reverse" say, under the names of another.
inline nn::StateDict renamed(const nn::StateDict& state, const std::string& from, const std::string& to) {
  nn::StateDict result;
  for (const auto& [name, value] : state) {
    const size_t at = name.find(from);
    if (at == std::string::npos) continue;
    const std::string rest = name.substr(at + from.size());  // "_g" and "_v" of a weight norm
    if (rest.empty() || rest == "_g" || rest == "_v") result.emplace_back(name.substr(0, at) + to + rest, value);
  }
  return result;
}

}  // namespace lamina::test
