#include "common/cli.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <new>
#include <sstream>

#include <fcntl.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lamina/io/file.h>

namespace lamina::cli {
namespace {

int report(const std::string& program, std::string message, int code) {
  // What a file holds may stand in a message: neither more lines nor orders to the terminal.
  std::ranges::replace_if(
      message, [](unsigned char c) { return c < 0x20 || c == 0x7F; }, ' ');
  std::fflush(stdout);
  std::fprintf(stderr, "%s: %s\n", program.c_str(), message.c_str());
  return code;
}

// CLI11's words for a config file, in ours.
std::string reworded(const CLI::ParseError& error) {
  const std::string message = error.what(), extras = "INI was not able to parse ";
  if (message.starts_with(extras)) return "--config: unknown key '" + message.substr(extras.size()) + "' in the file";
  return message;
}

// CLI11 takes sections for subcommands, of which there are none, and passes over some lines that say nothing.
class OptionsFile : public CLI::ConfigTOML {
 public:
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::string text;
    int number = 0;
    for (std::string line; std::getline(input, line); text += line + '\n') {
      ++number;
      const std::string_view from = std::string_view(line).substr(std::min(line.find_first_not_of(" \t\r"), line.size()));
      if (from.starts_with('[') || from.starts_with('='))
        throw CLI::ConfigError(fmt::format("--config: line {}: expected 'name = value', got '{}'", number, from), CLI::ExitCodes::ConfigError);
    }
    std::istringstream checked(text);
    return CLI::ConfigTOML::from_config(checked);
  }
};

// What is opened in place of a closed stream refuses what the stream is for, so that lost output is noticed.
void occupy_standard_streams() {
  for (const int fd : {0, 1, 2})
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);  // takes the lowest free number: this one
}

// CLI11 passes over empty entries of a list.
void refuse_gaps(const CLI::App& app, int argc, char** argv) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_delimiter() == '\0') continue;
    const std::string name = option->get_name(), delimiter(1, option->get_delimiter());
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      const std::string list = word.starts_with(name + "=") ? word.substr(name.size() + 1) : word == name && i + 1 < argc ? argv[i + 1] : "";
      if (list.starts_with(delimiter) || list.ends_with(delimiter) || list.find(delimiter + delimiter) != std::string::npos)
        throw InputError(fmt::format("{}: an entry of '{}' is empty", name, list));
    }
  }
}

CLI::Validator check(const std::string& expected, const std::function<bool(double)>& accepts) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        double value = 0;
        const bool number = CLI::detail::lexical_cast(text, value) && std::isfinite(value);
        return number && accepts(value) ? "" : fmt::format("expected {}, got {}", expected, text);
      },
      "");
}

}  // namespace

void spin_briefly(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  const std::filesystem::path self = io::program_path();  // "/proc/self/exe" itself would be the process's name in ps
  const char* started = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
  std::error_code error;
  const auto is_this_program = [&](const std::filesystem::path& file) {
    return std::filesystem::equivalent("/proc/self/exe", file, error) && !error;
  };
  // Not where another program (ld.so, valgrind) has loaded this one, nor where another file lies there now.
  if (self.empty() || !started || !is_this_program(started) || !is_this_program(self)) return;
  if (::setenv("GOMP_SPINCOUNT", "2000", 1) == 0) ::execv(self.c_str(), argv);  // where that fails, all goes on as it would have
}

int run(const std::string& program, const std::function<int()>& body) {
  std::signal(SIGXFSZ, SIG_IGN);
  occupy_standard_streams();
  try {
    const int code = body();
    if (std::fflush(stdout) != 0 || std::ferror(stdout))
      return report(program, fmt::format("cannot write to standard output: {}", std::strerror(errno)), 1);
    return code;
  } catch (const InputError& error) {
    return report(program, error.what(), 2);
  } catch (const std::bad_alloc&) {
    return report(program, "out of memory", 1);
  } catch (const std::exception& error) {
    return report(program, error.what(), 1);
  }
}

bool parse(CLI::App& app, int argc, char** argv) {
  app.set_version_flag("--version", app.get_name() + " of lamina " LAMINA_VERSION, "Print the version and exit");
  refuse_gaps(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return false;
  } catch (const CLI::CallForVersion& version) {
    std::fprintf(stdout, "%s\n", version.what());
    return false;
  } catch (const CLI::ParseError& error) {
    throw InputError(reworded(error) + " (--help lists the options)");
  }
  return true;
}

void set_up(CLI::App& app) {
  app.option_defaults()->always_capture_default();
  app.set_config("--config", "", "Read options from this TOML file (name = value, names as here without the dashes)")->type_name("FILE");
  app.config_formatter(std::make_shared<OptionsFile>());
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.get_formatter()->column_width(34);
}

CLI::Validator whole_at_least(int64_t least) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        CLI::detail::trim(text);  // "128, 4"
        int64_t value = 0;
        const char* end = text.data() + text.size();
        const auto [read, error] = std::from_chars(text.data(), end, value);
        if (error == std::errc::invalid_argument || read != end) return fmt::format("expected a whole number, got '{}'", text);
        if (error != std::errc()) return fmt::format("expected at most {} in size, got {}", std::numeric_limits<int64_t>::max(), text);
        if (value < least) return fmt::format("expected at least {}, got {}", least, text);
        text = std::to_string(value);
        return "";
      },
      "");
}

CLI::Validator at_least(double least) {
  return check(fmt::format("at least {}", least), [=](double x) { return x >= least; });
}
CLI::Validator greater_than(double limit) {
  return check(fmt::format("a number above {}", limit), [=](double x) { return x > limit; });
}
CLI::Validator from_to(double low, double high) {
  return check(fmt::format("a number from {} to {}", low, high), [=](double x) { return x >= low && x <= high; });
}
CLI::Validator from_to_below(double low, double high) {
  return check(fmt::format("a number from {} to below {}", low, high), [=](double x) { return x >= low && x < high; });
}

void add_machine(CLI::App& app, Machine& machine, const std::string& group, bool trains) {
  app.add_option("--device", machine.device, "auto (a GPU if there is one), cpu, cuda, cuda:1 ...")->group(group)->type_name("NAME");
  app.add_flag("--tf32", machine.tf32, "On a GPU, round the operands of f32 products to TF32 (10 bits of mantissa) for speed")->group(group);
  if (trains)
    app.add_flag("--cuda-graph", machine.cuda_graph, "On a GPU, run training steps as a CUDA graph: the same results with less work for the host")
        ->group(group);
}

Device choose_device(const std::string& program, const Machine& machine) {
  Device device;
  try {
    device = Device::parse(machine.device);
  } catch (const InputError& error) {
    throw InputError(fmt::format("--device: {}", error.what()));
  }
  if (machine.device == "auto" && device.is_cpu() && built_with_cuda()) {
    try {
      Device::cuda();
    } catch (const Error& error) {
      fmt::print(stderr, "{}: no GPU, so this runs on the CPU: {}\n", program, error.what());
    }
  }
  if (machine.cuda_graph && device.is_cpu()) throw InputError("--cuda-graph: needs a GPU, and this would run on the CPU");
  allow_tf32(machine.tf32);
  return device;
}

std::string describe_device(Device device, const Machine& machine) {
  if (!built_with_cuda()) return "";
  if (device.is_cpu()) return "cpu";
  return fmt::format("{} ({}){}", device.str(), device_name(device), machine.tf32 ? ", f32 products in TF32" : "");
}

void fail_twice(const std::string& option, const std::string& value) { throw InputError(fmt::format("{}: {} is named twice", option, value)); }

}  // namespace lamina::cli
