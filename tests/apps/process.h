#pragma once
// Runs a program of this build and looks at what it prints and how it ends.

#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

namespace support {

struct Ended {
  int code = -1;  // exit code, or 128 + the signal that killed it
  std::string out, err;
};

/// A program started with its output in pipes, one thread each in OpenMP (so that tests beside each other do not spin).
class Process {
 public:
  /// `prepare` runs in the child before the program.
  explicit Process(std::vector<std::string> command, const std::function<void()>& prepare = {}) {
    if (pipe2(out_.data(), O_CLOEXEC) != 0 || pipe2(err_.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    std::vector<char*> arguments;
    for (std::string& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ == 0) {
      dup2(out_[1], 1);
      dup2(err_[1], 2);
      setenv("OMP_NUM_THREADS", "1", 1);
      if (prepare) prepare();
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    close(out_[1]);
    close(err_[1]);
  }
  ~Process() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(out_[0]);
    close(err_[0]);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }

  /// Reads until `text` was seen on standard error; false when the program ended before.
  bool wait_for(const std::string& text) {
    while (ended_.err.find(text) == std::string::npos)
      if (!read_some()) return false;
    return true;
  }

  Ended wait() {
    while (read_some()) {
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    ended_.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return ended_;
  }

 private:
  bool read_some() {
    std::array<pollfd, 2> ends{pollfd{out_open_ ? out_[0] : -1, POLLIN, 0}, pollfd{err_open_ ? err_[0] : -1, POLLIN, 0}};
    if ((!out_open_ && !err_open_) || poll(ends.data(), 2, 60000) <= 0) return false;
    const auto take = [](const pollfd& end, bool& open, std::string& text) {
      if (!(end.revents & (POLLIN | POLLHUP))) return;
      std::array<char, 4096> buffer;
      const ssize_t count = read(end.fd, buffer.data(), buffer.size());
      if (count > 0)
        text.append(buffer.data(), static_cast<size_t>(count));
      else
        open = false;
    };
    take(ends[0], out_open_, ended_.out);
    take(ends[1], err_open_, ended_.err);
    return true;
  }

  pid_t pid_ = -1;
  std::array<int, 2> out_{}, err_{};
  bool out_open_ = true, err_open_ = true;
  Ended ended_;
};

/// The arguments after the program's name; runs build/bin/<name>.
inline Ended run(const std::string& name, std::vector<std::string> arguments, const std::function<void()>& prepare = {}) {
  arguments.insert(arguments.begin(), LAMINA_BIN_DIR "/" + name);
  return Process(std::move(arguments), prepare).wait();
}

}  // namespace support
