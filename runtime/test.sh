#!/bin/bash
# The runtime's own tests, under the address and undefined-behaviour sanitizers, and those with threads under the thread
# sanitizer. Objects are kept in build/sanitize.
set -eu
cd "$(dirname "$0")"
make --no-print-directory -s -f tests/Makefile -j "$(nproc)"
export ASAN_OPTIONS=allocator_may_return_null=1 TSAN_OPTIONS=allocator_may_return_null=1
for test in asan/object_test asan/thread_pool_test asan/elf_test asan/vm_test tsan/object_test tsan/thread_pool_test tsan/vm_test; do
  echo "$test"
  ../build/sanitize/$test
done
