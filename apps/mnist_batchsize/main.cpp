// The paper's batch-size experiment (section 6.6, figure 6): a net for every norm, batch size and seed, a table, and the figure.

#include "norm_grid/program.h"

namespace {

constexpr const char* description =
    "Trains the permutation-invariant MNIST net of \"Layer Normalization\" (Ba, Kiros, Hinton 2016, section 6.6) for every norm, batch size and "
    "seed,\n"
    "and draws the paper's figure 6: training NLL and test error against epochs. The first 5,000 training images validate, the others train.\n"
    "Training NLL is the mean over an epoch's batches, each at the weights it met. A last batch of one image is left out of training.";

}  // namespace

int main(int argc, char** argv) { return lamina::norm_grid::main({description, {lamina::norm_grid::Options()}}, argc, argv); }
