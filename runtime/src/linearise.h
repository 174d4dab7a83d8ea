// Batching over structure: recursion over algebraic values as rows of tensors, level by level (see docs/batching.md).
//
//   rows.linearise(value, spec, sizes)                       -> (depth, offsets, roots, indices and payloads by clause)
//   rows.slice(data, offsets, level, clause, of_function)    -> the rows of one level, a view
//   rows.update(state, rows, offsets, level, clause, dies)   -> state with the rows of one level replaced
//   rows.room(state, offsets, level, clause, dies)           -> memory for the rows of one level: the state's own where nobody else reads it
//   rows.scatter(state, rows, index, dies)                   -> state with the rows at these places replaced
//   rows.add(table, rows, index, dies)                       -> table with rows added to those at these places
//   rows.add_from(table, rows, begin, dies)                  -> table with rows added to those from begin on
//   rows.clear(table, begin, like, dies)                     -> table with zeros in the rows from begin on, as many as like has
//   rows.empty(offsets, clause, shape, dtype, number)        -> room for all rows of a function
//   rows.repeat(data, offsets, level, clause)                -> data for each row of one level
//   rows.segment_sum(init, values, starts, offsets, level, clause, backwards)  -> init plus the sum of each row's segment, in order
//   rows.gather_sum(init, data, index, starts, ...)          -> the same of the rows of data at index
//   rows.assemble(offsets, root, parts, spec)                -> the values of data types made at the root (assemble.cc)
//   rows.requests(requests, parts, spec)                     -> what another recursion reads of each request, a list (assemble.cc)
#pragma once

#include "relay/kernel.h"
#include "relay/value.h"

namespace relay {

Value rows_linearise(const Value* arguments, relay_kernel_context* context);
Value rows_slice(const Value* arguments);
Value rows_update(const Value* arguments);
Value rows_room(const Value* arguments);
Value rows_scatter(const Value* arguments);
Value rows_add(const Value* arguments);
Value rows_add_from(const Value* arguments);
Value rows_clear(const Value* arguments);
Value rows_empty(const Value* arguments);
Value rows_repeat(const Value* arguments);
Value rows_segment_sum(const Value* arguments);
Value rows_gather_sum(const Value* arguments);
Value rows_assemble(const Value* arguments);
Value rows_requests(const Value* arguments);

}  // namespace relay
