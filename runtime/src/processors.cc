#include "relay/processors.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <set>

#include "relay/thread_pool.h"

namespace relay {
namespace {

double read_ratio(const std::string& path_quota, const std::string& path_period) {
  double quota = 0, period = 100000;
  FILE* file = std::fopen(path_quota.c_str(), "r");
  if (file == nullptr) return 0;
  int fields = std::fscanf(file, "%lf %lf", &quota, &period);  // "max 100000" reads no field
  std::fclose(file);
  if (fields < 1 || quota <= 0) return 0;
  if (!path_period.empty()) {
    file = std::fopen(path_period.c_str(), "r");
    if (file != nullptr) {
      if (std::fscanf(file, "%lf", &period) != 1) period = 100000;
      std::fclose(file);
    }
  }
  return period > 0 ? quota / period : 0;
}

// The tightest CPU quota on the way from this process's control group to the root, in CPUs; 0 for none.
double control_group_quota() {
  std::string group;
  if (FILE* file = std::fopen("/proc/self/cgroup", "r")) {
    char line[4096];
    while (std::fgets(line, sizeof line, file) != nullptr) {
      if (std::strncmp(line, "0::", 3) != 0) continue;
      group = line + 3;
      while (!group.empty() && group.back() == '\n') group.pop_back();
    }
    std::fclose(file);
  }
  double tightest = 0;
  auto consider = [&tightest](double quota) {
    if (quota > 0 && (tightest == 0 || quota < tightest)) tightest = quota;
  };
  for (;;) {
    consider(read_ratio("/sys/fs/cgroup" + group + "/cpu.max", ""));
    size_t slash = group.rfind('/');
    if (slash == std::string::npos || group.size() <= 1) break;
    group.resize(slash);
  }
  consider(read_ratio("/sys/fs/cgroup/cpu.max", ""));
  consider(read_ratio("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"));
  return tightest;
}

// The processors this process may run on, in order; none where the system does not say.
std::vector<int> allowed_processors() {
  // Large masks: a cpu_set_t covers 1024 processors, more need the dynamic form.
  std::vector<int> processors;
  for (int most = 1024; most <= 1 << 16; most *= 4) {
    cpu_set_t* set = CPU_ALLOC(most);
    size_t size = CPU_ALLOC_SIZE(most);
    bool ok = sched_getaffinity(0, size, set) == 0;
    for (int i = 0; ok && i < most; ++i)
      if (CPU_ISSET_S(i, size, set)) processors.push_back(i);
    CPU_FREE(set);
    if (ok) break;
  }
  return processors;
}

int64_t count_available() {
  static const std::vector<int> core = cores_of(sysconf(_SC_NPROCESSORS_CONF), "/sys/devices/system/cpu");
  std::set<int> cores;
  for (int processor : allowed_processors())
    cores.insert(static_cast<size_t>(processor) < core.size() ? core[static_cast<size_t>(processor)] : processor);
  int64_t count = static_cast<int64_t>(cores.size());
  if (count <= 0) count = std::max<int64_t>(1, sysconf(_SC_NPROCESSORS_ONLN));
  static const double quota = control_group_quota();
  if (quota > 0) count = std::min<int64_t>(count, std::max<int64_t>(1, static_cast<int64_t>(std::ceil(quota))));
  return std::min(count, max_threads);
}

}  // namespace

std::vector<int> cores_of(int64_t processors, const std::string& folder) {
  std::vector<int> cores;
  for (int processor = 0; processor < processors; ++processor) {
    int first = processor;
    std::string path = folder + "/cpu" + std::to_string(processor) + "/topology/thread_siblings_list";
    if (FILE* file = std::fopen(path.c_str(), "r")) {
      if (std::fscanf(file, "%d", &first) != 1) first = processor;
      std::fclose(file);
    }
    cores.push_back(first);
  }
  return cores;
}

int64_t available_threads() {
  // Asked by every run, and changed by nobody in a hurry: looked up once a second.
  static std::atomic<int64_t> known{0}, looked_up{0};
  timespec time;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  if (known.load(std::memory_order_relaxed) == 0 || looked_up.load(std::memory_order_relaxed) != time.tv_sec) {
    looked_up.store(time.tv_sec, std::memory_order_relaxed);
    known.store(count_available(), std::memory_order_relaxed);
  }
  return known.load(std::memory_order_relaxed);
}

}  // namespace relay
