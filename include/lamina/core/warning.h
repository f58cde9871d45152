#pragma once
// Warnings: likely mistakes that are no errors. Each text is told once per process, as a line on standard error:
//   lamina: warning: [batch_norm] 1 (BatchNorm1d(1000)): in evaluation without having seen a training batch ...

#include <string>
#include <string_view>
#include <vector>

namespace lamina {

/// Tells "[where] what", unless that was told before. From any thread.
void warn(std::string_view where, std::string_view what);

/// While it lives, warnings of all threads come here instead of standard error, each text once. The innermost one gets them.
class CatchWarnings {
 public:
  CatchWarnings();
  ~CatchWarnings();
  CatchWarnings(const CatchWarnings&) = delete;
  CatchWarnings& operator=(const CatchWarnings&) = delete;

  std::vector<std::string> texts() const;

 private:
  friend void warn(std::string_view where, std::string_view what);

  std::vector<std::string> texts_;
  CatchWarnings* outer_;
};

}  // namespace lamina
