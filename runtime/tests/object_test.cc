// Values and objects: counts, sharing, iterative destruction, cycles.
#include "relay/object.h"

#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "relay/cycles.h"
#include "relay/device.h"
#include "relay/storage_pool.h"
#include "test.h"

using namespace relay;

static int64_t alive() {
  int64_t total = 0;
  for (int i = 0; i < object_type_count; ++i) total += live_objects(static_cast<ObjectType>(i));
  return total;
}

static Value pair(Value a, Value b) {
  Adt* adt = new_adt(tuple_tag, 2);
  adt->fields()[0] = a;
  adt->fields()[1] = b;
  return Value::of(adt);
}

TEST(a_tensor_frees_its_storage) {
  int64_t before = alive(), shape[] = {2, 3};
  Tensor* tensor = new_host_tensor(DType::float32_, 2, shape);
  CHECK(tensor->bytes() == 24 && reinterpret_cast<uintptr_t>(tensor->data()) % 64 == 0);
  CHECK(unique(tensor) && unique(tensor->storage));
  retain(static_cast<Object*>(tensor));
  CHECK(!unique(tensor));
  release(static_cast<Object*>(tensor));
  release(static_cast<Object*>(tensor));
  CHECK(alive() == before);
}

TEST(a_deep_value_is_shared_and_freed_without_recursion) {
  int64_t before = alive();
  Value deep = Value::int64(0);
  for (int i = 0; i < 1'000'000; ++i) deep = pair(deep, Value::int64(i));
  share(deep);
  CHECK(deep.object->is_shared());
  release(deep);
  Value wide = Value::of(new_adt(0, 1000));
  for (int i = 0; i < 1000; ++i) as_adt(wide)->fields()[i] = pair(Value{}, Value{});
  release(wide);
  CHECK(alive() == before);
}

TEST(shared_counts_survive_threads) {
  int64_t before = alive();
  Value v = pair(Value::of(new_host_tensor(DType::int8_, 0, nullptr)), Value::int64(1));
  share(v);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    retain(v);
    threads.emplace_back([v] {
      for (int i = 0; i < 10'000; ++i) {
        Value field = as_adt(v)->fields()[0];
        retain(field);
        release(field);
      }
      release(v);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(unique(v.object));
  release(v);
  CHECK(alive() == before);
}

TEST(constants_that_escape_are_counted) {
  int64_t before = alive(), shape[] = {1};
  Tensor* constant = new_host_tensor(DType::int64_, 1, shape);
  constant->flags |= Object::immortal;
  Value v = pair(Value::of(constant), Value::int64(0));
  share(v);
  Tensor* escaped = as_tensor(as_adt(v)->fields()[0]);
  CHECK(escaped != constant && escaped->storage == constant->storage && !escaped->is_immortal());
  constant->flags = 0;
  release(static_cast<Object*>(constant));
  CHECK(escaped->shape()[0] == 1);
  release(v);
  CHECK(alive() == before);
}

TEST(values_without_fields_are_one_object) {
  int64_t before = alive();
  Value end = Value::of(new_adt(1, 0)), v = pair(end, Value::of(new_adt(1, 0)));
  CHECK(alive() == before + 1 && !unique(end.object));
  CHECK(as_adt(v)->fields()[0].object == as_adt(v)->fields()[1].object);
  CHECK(new_adt(0, 0) != end.object);
  share(v);
  CHECK(as_adt(v)->fields()[0].object == end.object);
  release(v);
  RefList refs;
  Ref* lost = refs.make(end);
  release(static_cast<Object*>(lost));
  CHECK(refs.collect() == 0 && as_adt(end)->tag == 1);
}

TEST(local_cycles_are_collected_and_what_is_held_stays) {
  int64_t before = alive();
  RefList refs;
  Ref* held = refs.make(Value{});
  Ref* lost = refs.make(Value{});
  for (Ref* ref : {held, lost}) {
    retain(static_cast<Object*>(ref));
    write(ref, pair(Value::of(ref), Value::int64(1)));
  }
  release(static_cast<Object*>(lost));
  CHECK(refs.collect() == 1 && !refs.empty());
  Value kept = read(held);
  release(static_cast<Object*>(held));
  CHECK(refs.collect() == 0);
  release(kept);
  CHECK(refs.collect() == 1 && refs.empty());
  CHECK(alive() == before);
}

TEST(shared_cycles_are_collected_when_nothing_runs) {
  int64_t before = alive();
  RefList refs;
  Ref* ref = refs.make(Value{});
  retain(static_cast<Object*>(ref));
  Value v = Value::of(ref);
  write(ref, pair(v, Value::int64(1)));
  share(v);
  CHECK(refs.empty() && ref->is_shared());
  CHECK(collect_shared() == 0);
  release(v);
  {
    MutatorScope scope;
    CHECK(collect_shared() == 0);
  }
  CHECK(collect_shared() == 1);
  CHECK(alive() == before);
}

TEST(what_is_written_into_a_shared_reference_becomes_shared) {
  int64_t before = alive();
  RefList refs;
  Value cell = Value::of(refs.make(Value{}));
  share(cell);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([cell] {
      MutatorScope scope;
      for (int i = 0; i < 2000; ++i) {
        write(as_ref(cell), pair(Value::int64(i), Value{}));
        Value seen = read(as_ref(cell));
        CHECK(seen.object->is_shared() && as_adt(seen)->size == 2);
        release(seen);
      }
    });
  for (auto& thread : threads) thread.join();
  release(cell);
  CHECK(alive() == before);
}

#ifndef __SANITIZE_ADDRESS__  // with it the pool keeps nothing
TEST(blocks_come_back_and_are_counted) {
  pool_trim(host_device);
  PoolStatistics start = pool_statistics(host_device);
  Block a = pool_allocate(host_device, 1000), b = pool_allocate(host_device, 1000);
  CHECK(a.bytes >= 1000 && a.bytes <= 1280 && a.data != b.data);
  pool_free(host_device, a);
  CHECK(pool_allocate(host_device, 1010).data == a.data);
  pool_free(host_device, a);
  pool_free(host_device, b);
  PoolStatistics end = pool_statistics(host_device);
  CHECK(end.live_bytes == start.live_bytes && end.cached_bytes == a.bytes + b.bytes);
  for (int64_t size = 1; size < (int64_t{1} << 24); size = size * 5 / 4 + 1) {
    Block block = pool_allocate(host_device, size);
    CHECK(block.bytes >= size && (size < 64 || block.bytes <= size + size / 4 + 1));
    static_cast<std::byte*>(block.data)[size - 1] = std::byte{1};
    pool_free(host_device, block);
  }
  pool_trim(host_device);
  CHECK(pool_statistics(host_device).cached_bytes == 0);
  THROWS(out_of_memory, pool_allocate(host_device, int64_t{1} << 62));
  CHECK(pool_statistics(host_device).live_bytes == start.live_bytes);
}

TEST(as_much_waits_as_was_alive_at_once) {
  pool_trim(host_device);
  pool_reset_peak(host_device);
  constexpr int64_t large = int64_t{300} << 20;
  Block a = pool_allocate(host_device, large), b = pool_allocate(host_device, large);
  int64_t both = a.bytes + b.bytes;
  void *first = a.data, *second = b.data;
  pool_free(host_device, a);
  pool_free(host_device, b);
  CHECK(pool_statistics(host_device).cached_bytes == both);
  a = pool_allocate(host_device, large);
  b = pool_allocate(host_device, large);
  CHECK(std::set<void*>({a.data, b.data}) == std::set<void*>({first, second}));
  pool_free(host_device, a);
  pool_free(host_device, b);
  // Of another size, it takes the place of one that waits: in all there is no more than there was.
  Block c = pool_allocate(host_device, int64_t{500} << 20);
  CHECK(c.bytes + pool_statistics(host_device).cached_bytes <= both + (int64_t{256} << 20));
  CHECK(pool_statistics(host_device).cached_bytes < both);
  Block small = pool_allocate(host_device, 1000);  // takes nobody's place
  pool_free(host_device, small);
  pool_free(host_device, c);
  CHECK(pool_statistics(host_device).cached_bytes <= both + (int64_t{256} << 20));
  pool_trim(host_device);
  CHECK(pool_statistics(host_device).cached_bytes == 0);
}

TEST(large_blocks_begin_at_different_places_in_their_pages) {
  pool_trim(host_device);
  std::vector<Block> blocks;
  std::set<uintptr_t> places{0};
  for (int64_t size : {1, 1, 3, 1, 2}) {
    Block block = pool_allocate(host_device, size << 20);
    auto at = reinterpret_cast<uintptr_t>(block.data);
    CHECK(at % storage_alignment == 0 && places.insert(at % 4096).second);
    std::memset(block.data, 1, static_cast<size_t>(block.bytes));
    blocks.push_back(block);
  }
  for (Block block : blocks) pool_free(host_device, block);
  pool_trim(host_device);
  CHECK(pool_statistics(host_device).cached_bytes == 0);
}

TEST(threads_take_each_others_blocks_before_they_ask_the_device) {
  pool_trim(host_device);
  PoolStatistics start = pool_statistics(host_device);
  constexpr int64_t size = 5000;
  void* first = nullptr;
  for (int i = 0; i < 40; ++i) {
    Block block{};
    std::thread([&] { block = pool_allocate(host_device, size); }).join();
    CHECK(first == nullptr || block.data == first);
    first = block.data;
    std::thread([&] { pool_free(host_device, block); }).join();
    CHECK(pool_statistics(host_device).cached_bytes == block.bytes);
  }
  CHECK(pool_statistics(host_device).live_bytes == start.live_bytes);
  pool_trim(host_device);
  CHECK(pool_statistics(host_device).cached_bytes == 0);
}
#endif

TEST(the_pool_serves_threads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      std::vector<Block> blocks;
      for (int i = 0; i < 3000; ++i) {
        blocks.push_back(pool_allocate(host_device, 64 + i % 500));
        if (blocks.size() > 20) {
          pool_free(host_device, blocks[static_cast<size_t>(i) % 20]);
          blocks[static_cast<size_t>(i) % 20] = blocks.back();
          blocks.pop_back();
        }
      }
      for (Block block : blocks) pool_free(host_device, block);
    });
  for (auto& thread : threads) thread.join();
}

TEST(the_fake_device_opens_for_copies) {
  int64_t shape[] = {1000};
  Tensor* here = new_host_tensor(DType::int32_, 1, shape);
  for (int i = 0; i < 1000; ++i) reinterpret_cast<int32_t*>(here->data())[i] = i;
  Storage* there = new_storage(4000, 64, fake_device);
  Tensor* back = new_host_tensor(DType::int32_, 1, shape);
  auto span = [](Storage* s) { return DeviceSpan{s->device, s->block, s->block_bytes, s->data}; };
  device_copy(span(there), span(here->storage), 4000);
  device_copy(span(back->storage), span(there), 4000);
  CHECK(reinterpret_cast<int32_t*>(back->data())[999] == 999);
  release(static_cast<Object*>(there));
  release(static_cast<Object*>(here));
  release(static_cast<Object*>(back));
}
