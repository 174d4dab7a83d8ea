/* Uses a Relay program that is linked in: no Python, no file to load.
 *
 *     relay compile steps.relay -o libsteps.so        (writes libsteps.h too)
 *     cc library.c -I . -I <include> -L . -lsteps -Wl,-rpath,. -o steps
 *
 * or, with an object file, statically:
 *
 *     relay compile steps.relay -o libsteps.o
 *     cc library.c libsteps.o -I . -I <include> -L <lib> -lrelay_runtime -lstdc++ -lpthread -lm -o steps
 *
 *     ./steps 3 1,2,3,4
 *
 * applies the program three times to the rows (1, 2) and (3, 4). run.c says what <include> and <lib> are. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libsteps.h"

static int complain(const char *what) {
  fprintf(stderr, "%s: %s\n", what, relay_last_error());
  return 1;
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s STEPS NUMBER,NUMBER,...\n", argv[0]);
    return 2;
  }
  int64_t steps = strtoll(argv[1], NULL, 10);
  float numbers[1024];
  int64_t count = 0;
  for (char *text = strtok(argv[2], ","); text != NULL && count < 1024;
       text = strtok(NULL, ","))
    numbers[count++] = strtof(text, NULL);
  int64_t shape[2] = {count / 2, 2};

  relay_executable *program = steps_open();
  if (program == NULL)
    return complain("cannot open the program");
  relay_value *arguments[2] = {
      relay_tensor_copy("int64", 0, NULL, &steps),
      relay_tensor_borrow("float32", 2, shape, numbers, NULL, NULL)};
  relay_run_options options = {.seconds = 10};
  relay_value *result = NULL;
  relay_status status = relay_run(program, steps_entry_main, arguments, 2,
                                  &options, &result);
  relay_value_free(arguments[0]);
  relay_value_free(arguments[1]);
  relay_executable_free(program);
  if (status != RELAY_OK)
    return complain("the run failed");
  const float *out = relay_tensor_data(result);
  for (int64_t i = 0; i < relay_tensor_dims(result)[0]; ++i)
    printf("%g %g\n", (double)out[2 * i], (double)out[2 * i + 1]);
  relay_value_free(result);
  return 0;
}
