#!/bin/sh
# Builds the runtime for the source tree: build/dev, and src/relay/_runtime*.so (put in place atomically).
set -eu
cd "$(dirname "$0")/.."
bin=$(pwd)/.venv/bin
PATH="$bin:$PATH"
[ -f build/dev/build.ninja ] || cmake -S . -B build/dev -G Ninja -DPython_EXECUTABLE="$bin/python" >/dev/null
cmake --build build/dev -- "$@"
module=$(ls build/dev/_runtime*.so)
target=src/relay/$(basename "$module")
if ! cmp -s "$module" "$target"; then
  cp "$module" "$target.new.$$"
  mv "$target.new.$$" "$target"
fi
