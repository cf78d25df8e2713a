// Streams of the backward of a graph over several GPUs.
//
// Autograd's engine orders nodes by one stream each, that on which the node was made: what a node is given is ready there when
// it runs, and what it gives is to be ready there. The work of such a graph on other GPUs is on the streams that the forward
// had on them, which is where saved values were made.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <vector>

#include "torch_autograd.h"

namespace smelt::autograd {

using Streams = std::vector<c10::Stream>;

Streams current_streams(const std::vector<c10::Device>& devices);

// For as long as this lives, `streams` are the current ones of their devices, and behind what `node` was given. No streams:
// nothing.
class OnStreams {
  public:
    OnStreams(const Streams& streams, Node& node);
    ~OnStreams();
    OnStreams(const OnStreams&) = delete;
    OnStreams& operator=(const OnStreams&) = delete;

    // What was begun here is ready for whoever reads what the node gives.
    void join() const;

  private:
    explicit OnStreams(const Streams& streams);  // puts back what was current also where waiting throws

    const Streams& streams_;
    Streams before_;                  // on the same devices
    std::optional<c10::Stream> own_;  // the engine's of the node; none: the current one of each device

    c10::Stream engines(size_t i) const { return own_ ? *own_ : before_[i]; }
};

}  // namespace smelt::autograd
