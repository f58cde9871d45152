#pragma once
// Errors of the library. Every message has the form "[where] what", where "where" is an op, a layer or a file format,
// and "what" names the argument, the expected and the actual value:
//   [layer_norm] gain: expected [784], got [1000] (x is [4, 784])

#include <stdexcept>
#include <string>
#include <string_view>

namespace lamina {

/// Wrong use of the library (shapes, types, state) or a failure while it works. Programs print it and exit with 1.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

/// Bad input from outside: an option, a file, a data set. Programs print it and exit with 2.
class InputError : public Error {
 public:
  explicit InputError(const std::string& message) : Error(message) {}
};

/// Throws Error("[where] what").
[[noreturn]] void fail(std::string_view where, std::string_view what);

/// Throws InputError("[where] what").
[[noreturn]] void fail_input(std::string_view where, std::string_view what);

}  // namespace lamina
