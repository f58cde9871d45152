#include "common/figure.h"

#include <array>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include <lamina/io/file.h>

namespace lamina::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* python = "/usr/bin/python3";  // the system's: matplotlib is a package of the system

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

fs::path find_script(const std::string& script) {
  std::vector<fs::path> places = {LAMINA_SOURCE_SCRIPTS, LAMINA_INSTALL_DATA};
  if (const fs::path program = io::program_path(); !program.empty()) places.push_back(program.parent_path().parent_path() / "share/lamina");
  std::error_code ignored;
  for (const fs::path& folder : places)
    if (fs::exists(folder / script, ignored)) return folder / script;
  return {};
}

}  // namespace

std::string draw_figure(const std::string& script, const std::vector<std::string>& arguments) {
  const fs::path path = find_script(script);
  if (path.empty()) return fmt::format("{} is neither in " LAMINA_SOURCE_SCRIPTS " nor in " LAMINA_INSTALL_DATA, script);
  if (!fs::exists(python)) return fmt::format("{} is missing", python);
  std::string command = fmt::format("{} {}", python, quoted(path.string()));
  for (const std::string& argument : arguments) command += " " + quoted(argument);
  std::FILE* pipe = ::popen((command + " 2>&1 >/dev/null").c_str(), "re");
  if (!pipe) return "cannot start python3";
  std::string last;
  for (std::array<char, 512> line; std::fgets(line.data(), line.size(), pipe);) last = line.data();
  if (::pclose(pipe) == 0) return "";
  if (!last.empty() && last.back() == '\n') last.pop_back();
  return fmt::format("{} failed: {}", script, last);
}

}  // namespace lamina::cli
