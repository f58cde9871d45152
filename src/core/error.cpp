#include <lamina/core/error.h>

namespace lamina {

namespace {
std::string message(std::string_view where, std::string_view what) { return "[" + std::string(where) + "] " + std::string(what); }
}  // namespace

void fail(std::string_view where, std::string_view what) { throw Error(message(where, what)); }
void fail_input(std::string_view where, std::string_view what) { throw InputError(message(where, what)); }

}  // namespace lamina
