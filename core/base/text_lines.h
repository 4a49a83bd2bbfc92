// A text file, line by line.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace ringsock {

/// The lines of a text file. A file that cannot be opened has no lines.
class TextLines {
 public:
  explicit TextLines(const char* path) : file_(std::fopen(path, "rce")) {}
  TextLines(const TextLines&) = delete;
  TextLines& operator=(const TextLines&) = delete;
  ~TextLines() { std::free(line_); }

  /// Returns the next line without its end, or nullptr after the last.
  const char* next() {
    if (!file_) return nullptr;
    const ssize_t got = ::getline(&line_, &room_, file_.get());
    if (got <= 0) return nullptr;
    if (line_[got - 1] == '\n') line_[got - 1] = '\0';
    return line_;
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  char* line_ = nullptr;
  std::size_t room_ = 0;
};

}  // namespace ringsock
