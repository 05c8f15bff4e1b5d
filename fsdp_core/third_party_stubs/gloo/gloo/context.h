#pragma once
// What LibTorch's ProcessGroupGloo.hpp names of gloo's and no wheel ships: declarations alone. All
// are used through pointers, so nothing here assumes how gloo lays its classes out; the functions
// are exported by libtorch_cpu. Never make a c10d::ProcessGroupGloo::GlooStore from a file that
// includes this: the table of virtual functions it would emit is not the library's.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace transport {
class Device;
class UnboundBuffer;
}  // namespace transport

namespace rendezvous {
class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) = 0;
};
}  // namespace rendezvous

}  // namespace gloo
