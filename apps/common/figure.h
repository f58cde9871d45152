#pragma once
// Figures are drawn by the Python scripts that come with lamina (scripts/, or share/lamina of the installation).

#include <string>
#include <vector>

namespace lamina::cli {

/// Runs scripts/<script> with the system's python3. Returns "", or in one line why there is no figure.
std::string draw_figure(const std::string& script, const std::vector<std::string>& arguments);

}  // namespace lamina::cli
