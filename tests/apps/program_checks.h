#pragma once
// What every program's tests ask of its output.

#include <algorithm>
#include <string>

#include <nlohmann/json.hpp>

#include "apps/process.h"
#include "support/catch.h"

namespace support {

inline std::string last_line(std::string text) {
  REQUIRE(text.ends_with("\n"));
  text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

/// The JSON in the last line of a run that ended well.
inline nlohmann::json results(const Ended& ended) {
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  return nlohmann::json::parse(last_line(ended.out));
}

/// Bad usage or input: one line on standard error that says what, exit code 2, nothing on standard output.
inline void check_refused(const std::string& program, const Ended& ended, const std::string& text) {
  INFO(ended.err);
  CHECK(ended.code == 2);
  CHECK(ended.out.empty());
  CHECK(std::count(ended.err.begin(), ended.err.end(), '\n') == 1);
  CHECK(ended.err.starts_with(program + ": "));
  CHECK_THAT(ended.err, contains(text));
}

}  // namespace support
