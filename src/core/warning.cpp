#include <lamina/core/warning.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <unordered_set>
#include <utility>

namespace lamina {

namespace {

struct Told {
  std::mutex mutex;
  std::unordered_set<std::string> texts;
  CatchWarnings* innermost = nullptr;
};

Told& told() {
  static Told instance;
  return instance;
}

}  // namespace

void warn(std::string_view where, std::string_view what) {
  const std::string text = "[" + std::string(where) + "] " + std::string(what);
  Told& all = told();
  const std::lock_guard lock(all.mutex);
  if (all.innermost) {
    std::vector<std::string>& texts = all.innermost->texts_;
    if (std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(text);
  } else if (all.texts.insert(text).second) {
    std::fprintf(stderr, "lamina: warning: %s\n", text.c_str());
  }
}

CatchWarnings::CatchWarnings() {
  const std::lock_guard lock(told().mutex);
  outer_ = std::exchange(told().innermost, this);
}

CatchWarnings::~CatchWarnings() {
  const std::lock_guard lock(told().mutex);
  CatchWarnings** link = &told().innermost;
  while (*link != this) link = &(*link)->outer_;  // one of another thread may have come in between
  *link = outer_;
}

std::vector<std::string> CatchWarnings::texts() const {
  const std::lock_guard lock(told().mutex);
  return texts_;
}

}  // namespace lamina
