// Streams for the backward of a graph over several GPUs.
//
// The engine synchronizes each node on one stream, the stream on which the node was created: its inputs are ready
// there when it runs, and its outputs must be ready there. The work of such a graph on other GPUs runs on the streams
// that the forward used on them, where the saved values were computed.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <vector>

#include "torch_autograd.h"

namespace smelt::autograd {

using Streams = std::vector<c10::Stream>;

Streams current_streams(const std::vector<c10::Device>& devices);

// Makes `streams` the current streams of their devices for the lifetime of the object, synchronized with the inputs
// of `node`. Does nothing if there are no streams.
class OnStreams {
  public:
    OnStreams(const Streams& streams, Node& node);
    ~OnStreams();
    OnStreams(const OnStreams&) = delete;
    OnStreams& operator=(const OnStreams&) = delete;

    // Makes the work that was started here ready for the nodes that read the outputs of `node`.
    void join() const;

  private:
    explicit OnStreams(const Streams& streams);  // restores the previous streams even if waiting throws

    const Streams& streams_;
    Streams before_;  // the previous streams, of the same devices
    std::optional<c10::Stream>
        own_;  // the engine's stream of the node; none: the current stream of each device

    c10::Stream engines(size_t i) const { return own_ ? *own_ : before_[i]; }
};

}  // namespace smelt::autograd
