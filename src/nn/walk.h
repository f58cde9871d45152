#pragma once
// The walk over a module's members that everything in Module is made of. Private to src/nn.

#include <lamina/nn/module.h>

namespace lamina::nn {

/// One member; exactly one of the pointers is set. Absent parameters and buffers are left out.
struct Member {
  std::string path;
  size_t owner = 0;  // index in the walk of the module that listed it
  Parameter* parameter = nullptr;
  Buffer* buffer = nullptr;
  Module* module = nullptr;
};

/// The root itself (path "", its own owner) and everything below, in the order of the members: a module, then what it lists.
/// Throws Error when two members of a module have one name.
std::vector<Member> walk(Module& root);

}  // namespace lamina::nn
