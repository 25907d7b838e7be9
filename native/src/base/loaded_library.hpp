// Libraries that are found when the program runs.
#pragma once

#include <dlfcn.h>

#include <string>
#include <utility>

namespace ciera::base {

// Looks up symbols until one is missing.
class Symbols {
 public:
  // `path` and `needed` (what would have them all) are for the message.
  Symbols(void* handle, std::string path, std::string needed)
      : handle_(handle), path_(std::move(path)), needed_(std::move(needed)) {}

  template <class Function>
  void find(Function** to, const char* symbol) {
    if (missing_.empty() && !find_optional(to, symbol)) {
      missing_ = path_ + " has no " + symbol + "; " + needed_ + " is needed";
    }
  }

  // One of two: what a function is called now, or was before.
  template <class Function, class Former>
  void find_either(Function** to, const char* symbol, Former** former_to, const char* former) {
    if (missing_.empty() && !find_optional(to, symbol)) {
      find(former_to, former);
    }
  }

  template <class Function>
  bool find_optional(Function** to, const char* symbol) {
    *to = reinterpret_cast<Function*>(dlsym(handle_, symbol));
    return *to != nullptr;
  }

  // The message, empty when all are there.
  const std::string& missing() const { return missing_; }

 private:
  void* handle_;
  std::string path_;
  std::string needed_;
  std::string missing_;
};

// Where the library that holds `symbol` was loaded from; `name` where that cannot be told.
inline std::string path_of(void* handle, const char* symbol, const char* name) {
  if (void* found = dlsym(handle, symbol)) {
    Dl_info info{};
    if (dladdr(found, &info) != 0 && info.dli_fname != nullptr) {
      return info.dli_fname;
    }
  }
  return name;
}

}  // namespace ciera::base
