#include "relay/profile.h"

#include "relay/thread_pool.h"
#include "run.h"

namespace relay {

Recorder::Recorder(uint32_t function, int64_t workers, int64_t begin)
    : run_{EventKind::run, static_cast<int32_t>(function), 0, 0, begin, begin, 0}, pieces_(static_cast<size_t>(workers)) {}

void Recorder::note(Lane& lane, const Event& event) noexcept {
  if (lane.events.size() < Profile::most_events) try {
      lane.events.push_back(event);
      return;
    } catch (...) {  // no memory for it: the run is more important
    }
  ++lane.dropped;
}

void Recorder::leave(int64_t begin, int64_t end, const int64_t* sizes, uint32_t count) {
  auto at = static_cast<int64_t>(sizes_.size());
  if (calls_.events.size() < Profile::most_events) sizes_.insert(sizes_.end(), sizes, sizes + count);
  note(calls_, {EventKind::call, kernel_, 0, 0, begin, end, at});
}

int32_t Recorder::parallel_for(Recorder* self, relay_kernel_context* context, relay_parallel_body body, void* env,
                               int64_t n, int64_t grain) {
  struct Wrapped {
    Recorder* self;
    relay_parallel_body body;
    void* env;
    int32_t kernel;
  } wrapped{self, body, env, self->kernel_};
  relay_parallel_body piece = [](relay_kernel_context* context, void* env, int64_t begin, int64_t end, int64_t worker) {
    auto* wrapped = static_cast<Wrapped*>(env);
    int64_t start = now_ns();
    int32_t result = wrapped->body(context, wrapped->env, begin, end, worker);
    // A participant's number belongs to one thread at a time, also where regions are nested or run inline.
    note(wrapped->self->pieces_[static_cast<size_t>(worker)],
         {EventKind::piece, wrapped->kernel, static_cast<int32_t>(worker), 0, start, now_ns(), 0});
    return result;
  };
  return relay::parallel_for(context, piece, &wrapped, n, grain, reinterpret_cast<const void*>(body));
}

void Profile::take_lane(const Recorder::Lane& lane, int32_t run, int64_t sizes_before) {
  dropped_ += lane.dropped;
  for (Event event : lane.events) {
    if (events_.size() >= most_events) {
      ++dropped_;
      continue;
    }
    event.run = run;
    event.sizes += event.kind == EventKind::call ? sizes_before : 0;
    events_.push_back(event);
  }
}

void Profile::take(Recorder& recorder, int64_t end) noexcept {
  std::lock_guard guard(mutex_);
  try {
    auto before = static_cast<int64_t>(sizes_.size());
    int32_t run = runs_++;
    recorder.run_.end = end;
    Recorder::Lane whole;
    whole.events.push_back(recorder.run_);
    take_lane(whole, run, 0);
    if (events_.size() < most_events) sizes_.insert(sizes_.end(), recorder.sizes_.begin(), recorder.sizes_.end());
    take_lane(recorder.calls_, run, before);
    for (const Recorder::Lane& lane : recorder.pieces_) take_lane(lane, run, 0);
  } catch (...) {
    ++dropped_;
  }
}

void Profile::clear() {
  std::lock_guard guard(mutex_);
  events_.clear();
  sizes_.clear();
  dropped_ = 0;
  runs_ = 0;
}

uint64_t Profile::copy(std::vector<Event>* events, std::vector<int64_t>* sizes) const {
  std::lock_guard guard(mutex_);
  *events = events_;
  *sizes = sizes_;
  return dropped_;
}

}  // namespace relay
