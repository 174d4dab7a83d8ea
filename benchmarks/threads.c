/* Calls of one native program by threads that share it, for threads.py: no Python, so no lock of Python's.

   threads THREADS SECONDS COLUMNS ROWS: prints how many calls a second they make together. PROGRAM_open and PROGRAM_main are
   given when this is compiled. Every call's result is compared with the first one's. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "program.h"

static relay_executable* program;
static float* data;
static int64_t shape[2];
static const void* expected;
static size_t bytes;
static volatile int stop, wrong;
static pthread_barrier_t start;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// A thread's own input, as requests bring theirs.
static relay_value* copied(void) {
  relay_value* input = relay_tensor_copy("float32", 2, shape, data);
  if (input == NULL) exit(1);
  return input;
}

static relay_value* call(relay_value* input) {
  relay_run_options options = {.threads = 1};
  relay_value* result = NULL;
  if (relay_run(program, program_entry_main, &input, 1, &options, &result) != RELAY_OK) {
    fprintf(stderr, "%s\n", relay_last_error());
    exit(1);
  }
  return result;
}

static void* work(void* count) {
  relay_value* input = copied();
  pthread_barrier_wait(&start);
  long done = 0;
  for (; !stop; ++done) {
    relay_value* result = call(input);
    if (done % 64 == 0 && memcmp(relay_tensor_data(result), expected, bytes) != 0) wrong = 1;
    relay_value_free(result);
  }
  relay_value_free(input);
  *(long*)count = done;
  return NULL;
}

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  int threads = atoi(argv[1]);
  shape[0] = atoll(argv[4]), shape[1] = atoll(argv[3]);
  size_t n = (size_t)(shape[0] * shape[1]);
  data = malloc(n * sizeof(float));
  for (size_t i = 0; i < n; ++i) data[i] = (float)(i % 17) / 8 - 1;
  program = program_open();
  if (program == NULL) return 1;
  relay_value* input = copied();
  relay_value* first = call(input);
  relay_value_free(input);
  expected = relay_tensor_data(first);
  bytes = relay_tensor_bytes(first);
  pthread_t* ids = calloc((size_t)threads, sizeof *ids);
  long* counts = calloc((size_t)threads, sizeof *counts);
  pthread_barrier_init(&start, NULL, (unsigned)threads + 1);
  for (int i = 0; i < threads; ++i)
    if (pthread_create(&ids[i], NULL, work, &counts[i]) != 0) return 1;
  pthread_barrier_wait(&start);
  double begin = now(), seconds = atof(argv[2]);
  struct timespec pause = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
  nanosleep(&pause, NULL);
  stop = 1;
  long total = 0;
  for (int i = 0; i < threads; ++i) {
    pthread_join(ids[i], NULL);
    total += counts[i];
  }
  printf("%.9g\n", (double)total / (now() - begin));
  return wrong;
}
