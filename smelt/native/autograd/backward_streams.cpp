#include "autograd/backward_streams.h"

#include <c10/core/Event.h>

#include "torch.h"

namespace smelt::autograd {

namespace {

const c10::impl::DeviceGuardImplInterface& of(const c10::Stream& stream) {
    return *c10::impl::getDeviceGuardImpl(stream.device_type());
}

void wait(const c10::Stream& later, const c10::Stream& earlier) {
    if (later == earlier) return;
    c10::Event event(earlier.device_type());
    event.record(earlier);
    event.block(later);
}

}  // namespace

Streams current_streams(const std::vector<c10::Device>& devices) {
    Streams streams;
    for (const c10::Device& device : devices)
        streams.push_back(c10::impl::getDeviceGuardImpl(device.type())->getStream(device));
    return streams;
}

OnStreams::OnStreams(const Streams& streams) : streams_(streams) {
    for (const c10::Stream& stream : streams_) before_.push_back(of(stream).exchangeStream(stream));
}

OnStreams::OnStreams(const Streams& streams, Node& node) : OnStreams(streams) {
    if (streams_.empty()) return;
    own_ = node.stream();
    for (size_t i = 0; i < streams_.size(); ++i) wait(streams_[i], engines(i));
}

OnStreams::~OnStreams() {
    for (const c10::Stream& stream : before_) of(stream).exchangeStream(stream);
}

void OnStreams::join() const {
    for (size_t i = 0; i < streams_.size(); ++i) wait(engines(i), streams_[i]);
}

}  // namespace smelt::autograd
