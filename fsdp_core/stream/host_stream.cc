#include "fsdp_core/stream/stream.h"

namespace tessera::fsdp {
namespace {

class HostStream final : public Stream {
 public:
  explicit HostStream(std::string name) : Stream(std::move(name), true) {}
  Event record() override { return {}; }
  void wait(const Event& event) override { event.synchronize(); }

 private:
  void launch(std::function<void()> work, const Communicator*) override { work(); }
};

class HostStreams final : public StreamFactory {
 public:
  std::shared_ptr<Stream> compute() override { return make("compute", false); }
  std::shared_ptr<Stream> make(std::string name, bool) override {
    return std::make_shared<HostStream>(std::move(name));
  }
};

}  // namespace

std::shared_ptr<StreamFactory> host_streams() { return std::make_shared<HostStreams>(); }

}  // namespace tessera::fsdp
