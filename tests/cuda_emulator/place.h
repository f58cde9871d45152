#pragma once
// Where a kernel calls something of the emulator's: std::source_location, which clang before 16 does not have.

#include <source_location>

namespace cuda_emulator {

#if __has_builtin(__builtin_source_location)
using Place = std::source_location;
#else
class Place {
 public:
  static constexpr Place current(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE(), unsigned column = __builtin_COLUMN()) {
    Place place;
    place.file_ = file, place.line_ = line, place.column_ = column;
    return place;
  }
  constexpr const char* file_name() const { return file_; }
  constexpr unsigned line() const { return line_; }
  constexpr unsigned column() const { return column_; }

 private:
  const char* file_ = "";
  unsigned line_ = 0, column_ = 0;
};
#endif

}  // namespace cuda_emulator
