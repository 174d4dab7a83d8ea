/* Runs linked programs on values that it reads: see test_drawn_from_c.py, which writes the table of programs.
 *
 * On standard input a request after the other: the number of a program, of its entry, how many arguments, and these; a value is a
 * 'T', a dtype (16 bytes), a rank, sizes and elements, or an 'A', a tag, how many fields, and these; '0' is a null pointer. On standard
 * output for each the status, and the result or the length of a message and the message. Numbers are int64_t.
 *
 * Every request is run by THREADS threads at once on the same arguments, which are copies or, for every other request, borrowed; the
 * bytes of their answers must be equal. Then it is run once more, with arguments that are given up. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "programs.h"

enum { THREADS = 3 };

typedef struct buffer {
  char *bytes;
  size_t size, room;
} buffer;

static void put(buffer *out, const void *data, size_t size) {
  if (out->size + size > out->room) {
    out->room = 2 * out->room + size;
    out->bytes = realloc(out->bytes, out->room);
  }
  if (size > 0)
    memcpy(out->bytes + out->size, data, size);
  out->size += size;
}

static void put_number(buffer *out, int64_t number) { put(out, &number, sizeof number); }

static int get(void *data, size_t size) { return fread(data, 1, size, stdin) == size; }

static int64_t get_number(void) {
  int64_t number = -1;
  if (!get(&number, sizeof number))
    exit(3);
  return number;
}

static relay_value *get_value(int borrowed) {
  char kind = 0, dtype[16];
  if (!get(&kind, 1))
    exit(3);
  if (kind == '0')
    return NULL;
  if (kind == 'T') {
    int64_t dims[16];
    if (!get(dtype, sizeof dtype))
      exit(3);
    size_t rank = (size_t)get_number();
    for (size_t i = 0; i < rank; ++i)
      dims[i] = get_number();
    size_t bytes = (size_t)get_number();
    void *data = malloc(bytes + 1);
    if (!get(data, bytes))
      exit(3);
    if (borrowed)
      return relay_tensor_borrow(dtype, rank, dims, data, free, data);
    relay_value *made = relay_tensor_copy(dtype, rank, dims, data);
    free(data);
    return made;
  }
  int64_t tag = get_number(), count = get_number();
  relay_value **fields = malloc(sizeof(relay_value *) * (size_t)(count + 1));
  for (int64_t i = 0; i < count; ++i)
    fields[i] = get_value(borrowed);
  relay_value *made = relay_adt((int32_t)tag, fields, (size_t)count);
  for (int64_t i = 0; i < count; ++i)
    relay_value_free(fields[i]);
  free(fields);
  return made;
}

static void put_value(buffer *out, const relay_value *value) {
  switch (relay_value_kind(value)) {
  case RELAY_TENSOR: {
    char dtype[16] = {0};
    strncpy(dtype, relay_tensor_dtype(value), sizeof dtype - 1);
    put(out, "T", 1);
    put(out, dtype, sizeof dtype);
    put_number(out, (int64_t)relay_tensor_rank(value));
    put(out, relay_tensor_dims(value), relay_tensor_rank(value) * sizeof(int64_t));
    put_number(out, (int64_t)relay_tensor_bytes(value));
    put(out, relay_tensor_data(value), relay_tensor_bytes(value));
    break;
  }
  case RELAY_ADT:
    put(out, "A", 1);
    put_number(out, relay_value_tag(value));
    put_number(out, (int64_t)relay_value_field_count(value));
    for (size_t i = 0; i < relay_value_field_count(value); ++i) {
      relay_value *field = relay_value_field(value, i);
      put_value(out, field);
      relay_value_free(field);
    }
    break;
  default:
    put(out, "?", 1);
  }
}

typedef struct request {
  relay_executable *program;
  size_t entry, count;
  relay_value **arguments;
  const unsigned char *donate;
  buffer answer;
} request;

static void *answer(void *given) {
  request *r = given;
  relay_value *result = NULL;
  relay_run_options options = {.seconds = 60, .donate = r->donate};
  relay_status status = relay_run(r->program, r->entry, r->arguments, r->count, &options, &result);
  put_number(&r->answer, status);
  if (status == RELAY_OK) {
    put_value(&r->answer, result);
  } else {
    put_number(&r->answer, (int64_t)strlen(relay_last_error()));
    put(&r->answer, relay_last_error(), strlen(relay_last_error()));
  }
  relay_value_free(result);
  return NULL;
}

int main(void) {
  relay_executable *programs[sizeof opened / sizeof *opened];
  for (size_t i = 0; i < sizeof opened / sizeof *opened; ++i)
    if ((programs[i] = opened[i]()) == NULL)
      return fprintf(stderr, "program %zu: %s\n", i, relay_last_error()), 1;
  int64_t number = 0;
  for (int round = 0; get(&number, sizeof number); ++round) {
    request r[THREADS];
    size_t entry = (size_t)get_number(), count = (size_t)get_number();
    relay_value **arguments = malloc(sizeof(relay_value *) * (count + 1));
    for (size_t i = 0; i < count; ++i)
      arguments[i] = get_value(round % 2);
    pthread_t threads[THREADS];
    for (int t = 0; t < THREADS; ++t) {
      r[t] = (request){programs[number], entry, count, arguments, NULL, {0}};
      if (pthread_create(&threads[t], NULL, answer, &r[t]) != 0)
        return 4;
    }
    int same = 1;
    for (int t = 0; t < THREADS; ++t) {
      pthread_join(threads[t], NULL);
      same &= r[t].answer.size == r[0].answer.size && memcmp(r[t].answer.bytes, r[0].answer.bytes, r[0].answer.size) == 0;
    }
    if (!same)
      return fprintf(stderr, "request %d: threads have different answers\n", round), 5;
    unsigned char *donate = malloc(count + 1);
    memset(donate, 1, count);
    request last = {programs[number], entry, count, arguments, donate, {0}};
    answer(&last);
    same = last.answer.size == r[0].answer.size && memcmp(last.answer.bytes, r[0].answer.bytes, last.answer.size) == 0;
    int ran = *(const int64_t *)(const void *)last.answer.bytes == RELAY_OK;
    for (size_t i = 0; i < count; ++i)
      same &= !ran || relay_value_kind(arguments[i]) == RELAY_NIL;
    if (!same)
      return fprintf(stderr, "request %d: with arguments given up the answer is another one\n", round), 6;
    if (ran && count > 0) {
      last.answer.size = 0;
      answer(&last);
      put(&last.answer, "", 1);
      if (strstr(last.answer.bytes + 2 * sizeof(int64_t), "was donated to a run and is gone") == NULL)
        return fprintf(stderr, "request %d: arguments are used that were given up\n", round), 7;
    }
    free(last.answer.bytes);
    free(donate);
    for (size_t i = 0; i < count; ++i)
      relay_value_free(arguments[i]);
    free(arguments);
    fwrite(r[0].answer.bytes, 1, r[0].answer.size, stdout);
    for (int t = 0; t < THREADS; ++t)
      free(r[t].answer.bytes);
  }
  for (size_t i = 0; i < sizeof opened / sizeof *opened; ++i)
    relay_executable_free(programs[i]);
  return 0;
}
