// The classical comparison of normalisers: a fully connected net with any of them, at several batch sizes.
//   norm_compare                      batches of 8, 32 and 128: batch norm needs large ones, layer norm does not
//   norm_compare --preset cs231n      the set-up of the Stanford course CS231n, assignment 2

#include "norm_grid/program.h"

namespace {

using lamina::norm_grid::Options;

Options classical() {
  Options o;
  o.program = "norm_compare";
  o.comparison = true;
  o.preset = "classical";
  o.out = "runs/norm_compare";
  o.datasets = {"mnist", "fashion", "cifar10"};
  o.batch_sizes = {8, 32, 128};
  o.seeds = {1, 2, 3};
  o.epochs = 10;
  o.limit = 10000;
  o.depth = 10;  // each layer adds the noise of its batch statistics
  o.width = 100;
  o.lr = 3e-4;
  o.bn_variance = "biased";
  o.input_range = "standard";
  return o;
}

// The course takes CIFAR-10 (--dataset cifar10, where it has been fetched), subtracts the mean image without scaling and runs the plain net at
// batches of 5 only.
Options cs231n() {
  Options o = classical();
  o.preset = "cs231n";
  o.out = "runs/norm_compare_cs231n";
  o.batch_sizes = {5, 10, 50};
  o.limit = 1000;
  o.depth = 5;
  o.init = "normal:0.02";
  o.bias_init = "zeros";
  o.lr = 3.1622776601683795e-4;  // 10^-3.5
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  return lamina::norm_grid::main(
      {"Trains a fully connected net (affine, norm, ReLU, dropout; the last layer affine alone) for every norm, batch size and seed, and compares\n"
       "accuracies on the images it was trained on and on validation images (the first 5,000 of the training files), both in evaluation mode.\n"
       "Presets: classical, ten hidden layers, 10,000 images in batches of 8, 32, 128; cs231n, five hidden layers with small initial weights, 1,000\n"
       "images in batches of 5, 10, 50.",
       {classical(), cs231n()}},
      argc, argv);
}
