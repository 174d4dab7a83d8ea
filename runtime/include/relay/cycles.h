// Reference cells and the collection of cycles that can only be closed through them.
#pragma once

#include <atomic>
#include <cstdint>

#include "relay/object.h"

namespace relay {

// The local Refs of one run: a circular intrusive list.
class RefList {
 public:
  RefList() { head_.previous = head_.next = &head_; }
  RefList(const RefList&) = delete;

  // A new Ref in this list, which takes over the value's reference. Collects now and then.
  Ref* make(Value value);

  // Frees every local Ref that only cycles of local objects keep alive. Returns how many.
  int64_t collect();

  bool empty() const { return head_.next == &head_; }

 private:
  RefLink head_;
  int64_t until_collection_ = 4096;
};

// What the Ref holds, with a reference for the caller.
Value read(Ref* ref);

// Stores the value, whose reference is taken over.
void write(Ref* ref, Value value);

// Takes the Ref out of whatever list it is in (destroy calls this).
void unlink(Ref* ref);

// Moves a Ref that is being marked shared from its run's list to the process's.
void adopt_shared(Ref* ref);

// Shared objects may only be changed, retained or released inside a MutatorScope once Refs are among them: runs hold
// one, and so does other code that handles values. Collection of shared cycles waits for none: it gives up when one is
// open.
class MutatorScope {
 public:
  MutatorScope();
  ~MutatorScope();
  MutatorScope(const MutatorScope&) = delete;

 private:
  std::atomic<int64_t>* open_;
};

// Frees shared Refs that only cycles keep alive. Returns how many; 0 when runs are in progress. Call outside any scope.
int64_t collect_shared();

// The same, but only when enough Refs have become shared since the last time. For the embedding program to call between
// runs: freeing a value may call back into it (imported memory), so a run never does this on its own.
void maybe_collect_shared();

}  // namespace relay
