/* Runs an entry of a saved Relay executable without Python.
 *
 *     cc run.c -I <include> -L <lib> -lrelay_runtime -lstdc++ -lpthread -lm -o run
 *     ./run program.rlx main 1,2,3
 *
 * The numbers are one float32 vector, the entry's only argument; the result's
 * elements are printed. <include> and <lib> are what this prints:
 *
 *     python -c "from relay.aot.library import *; print(include_folder(), runtime_archive().parent)"
 */
#include <inttypes.h>
#include <relay/c_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int complain(const char *what) {
  fprintf(stderr, "%s: %s\n", what, relay_last_error());
  return 1;
}

static void print_tensor(const relay_value *tensor) {
  const int64_t *dims = relay_tensor_dims(tensor);
  int64_t n = 1;
  printf("%s[", relay_tensor_dtype(tensor));
  for (size_t i = 0; i < relay_tensor_rank(tensor); ++i) {
    printf("%s%" PRId64, i ? "," : "", dims[i]);
    n *= dims[i];
  }
  printf("]");
  for (int64_t i = 0;
       i < n && strcmp(relay_tensor_dtype(tensor), "float32") == 0; ++i)
    printf(" %g", (double)((const float *)relay_tensor_data(tensor))[i]);
  printf("\n");
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: %s PROGRAM ENTRY NUMBER,NUMBER,...\n", argv[0]);
    return 2;
  }
  float numbers[1024];
  int64_t count = 0;
  for (char *text = strtok(argv[3], ","); text != NULL && count < 1024;
       text = strtok(NULL, ","))
    numbers[count++] = strtof(text, NULL);

  relay_executable *program = relay_load(argv[1]);
  if (program == NULL)
    return complain("cannot load the program");
  int64_t entry = relay_find(program, argv[2]);
  if (entry < 0) {
    fprintf(stderr, "no entry named %s\n", argv[2]);
    return 1;
  }
  relay_value *input =
      relay_tensor_borrow("float32", 1, &count, numbers, NULL, NULL);
  if (input == NULL)
    return complain("cannot make the argument");
  relay_value *result = NULL;
  if (relay_run(program, (size_t)entry, &input, 1, NULL, &result) !=
      RELAY_OK)
    return complain("the run failed");

  if (relay_value_kind(result) == RELAY_TENSOR)
    print_tensor(result);
  for (size_t i = 0; i < relay_value_field_count(result); ++i) {
    relay_value *field = relay_value_field(result, i);
    if (relay_value_kind(field) == RELAY_TENSOR)
      print_tensor(field);
    relay_value_free(field);
  }
  relay_value_free(result);
  relay_value_free(input);
  relay_executable_free(program);
  return 0;
}
