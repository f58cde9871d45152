#pragma once
// Table 1 of "Layer Normalization" (Ba, Kiros, Hinton 2016) and the implicit learning rate of section 5.2, measured on one normalised layer.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <lamina/core/device.h>

namespace lamina::norm_table {

struct Settings {
  double eps = 0;       // of the normalisers; the claims hold as it goes to 0
  double factor = 1.7;  // what is re-scaled is multiplied by; above 0
  uint64_t seed = 1;    // of weights, gains, biases and data
  Device device = Device::cpu();
};

/// The columns of the table: what is done to the weights w [units, inputs] or the cases x [N, inputs].
struct Change {
  const char* name;         // for machines
  const char *what, *done;  // for people, in two lines
};
inline constexpr std::array<Change, 6> changes{{
    {"weight_matrix_rescale", "weight matrix", "re-scaled"},    // w -> factor w
    {"weight_matrix_recentre", "weight matrix", "re-centred"},  // w -> w + 1 c^T: the same vector is added to every unit's weights
    {"weight_vector_rescale", "weight vector", "re-scaled"},    // one unit's weights times factor
    {"data_set_rescale", "data set", "re-scaled"},              // x -> factor x
    {"data_set_recentre", "data set", "re-centred"},            // x -> x + 1 c^T: the same vector is added to every case
    {"single_case_rescale", "single case", "re-scaled"},        // one case times factor
}};

struct Cell {
  double deviation = 0;  // largest change of an output, relative to the largest output
  bool expected = false;

  /// Deviations between these are neither: they agree with no table.
  static constexpr double same = 1e-10, different = 1e-3;
  bool measured() const { return deviation < same; }
  bool agrees() const { return expected ? deviation < same : deviation > different; }
};

/// A line of the table.
struct Row {
  std::string norm, source;  // where the expected answers come from
  std::array<Cell, changes.size()> cells;
};
std::vector<Row> invariances(const Settings& settings);

/// What happens to training when the weights in front of a normaliser are s times as large.
struct Growth {
  std::string norm;
  double scale = 1;           // s
  bool invariant = false;     // whether the normaliser hides s, by the first table
  double deviation = 0;       // of the outputs, as above
  double gradient_ratio = 0;  // length of the weights' gradient, relative to that at s = 1: 1/s
  double turn_ratio = 0;      // angle by which one step of SGD turns the weights, relative to that at s = 1: 1/s^2

  bool agrees() const;
};
std::vector<Growth> growths(const Settings& settings);

}  // namespace lamina::norm_table
